"""The text logs of colibri and of demand: calls that count up, ranks by gate, unions of several tokens, and damage."""

import pytest
from import_cases import assert_replayed, outcomes, refusal, written
from trace_cases import whole

from slotwise import replay
from slotwise.traces import BadTrace, TraceWarning, open_trace

# A prompt of 2 tokens whose last layer has the final one alone, then a token. Gates are not in order.
COLIBRI = """0 0 3 5:0.3000 6:0.7000
0 1 3 6:0.6000 7:0.4000
1 0 4 1:0.9000 2:0.1000
2 0 3 7:0.8000 3:0.2000
3 0 4 2:0.5000 0:0.5000
"""
TICKS = [(3, [5, 6, 6, 7]), (4, [1, 2]), (3, [7, 3]), (4, [2, 0])]
ROUTE = """route 0 3 2 2 6:0 5:1 6:0 7:-1
route 0 4 2 1 1:0 2:1
route 1 3 2 1 7:3 3:4
route 1 4 2 1 2:0 0:1
"""
UNION = """step=0 layer=3 ids=5,6,7
step=0 layer=4 ids=1,2
step=1 layer=3 ids=7,3
step=1 layer=4 ids=2,0
"""
quiet = pytest.mark.filterwarnings("ignore::slotwise.traces.errors.TraceWarning")


@pytest.mark.filterwarnings("ignore:.*the last layer")
def test_a_call_of_colibri_is_a_layer_of_a_forward_pass_and_gates_rank_the_experts(tmp_path):
    with pytest.warns(TraceWarning, match="ranked by weight"):
        trace = open_trace(written(tmp_path, COLIBRI), n_experts=8)
    found = whole(trace, weights=True)
    assert (trace.meta.model_layers, trace.meta.captured_by) == ((3, 4), "colibri")
    assert found["starts"].tolist() == [0, 2, 3]
    assert found["phase"].tolist() == [0, 1]
    assert found["experts"].tolist() == [[[6, 5], [6, 7], [7, 3]], [[255, 255], [1, 2], [2, 0]]]
    assert found["weights"][0, 0].astype(float).round(1).tolist() == [0.7, 0.3]
    assert_replayed(trace, tmp_path, TICKS)


@quiet
def test_logs_strung_together_are_requests(tmp_path):
    assert open_trace(written(tmp_path, COLIBRI * 2), n_experts=8).n_requests == 2
    decode = "0 0 3 7:0.8 3:0.2\n1 0 4 2:0.6 0:0.5\n"
    assert open_trace(written(tmp_path, decode * 3), n_experts=8).n_requests == 3
    for text in (ROUTE, UNION, "step=0 layer=3 ids=1\nstep=1 layer=3 ids=2\n"):
        assert open_trace(written(tmp_path, text * 2), n_experts=8).n_requests == 2


@pytest.mark.filterwarnings("ignore:.*the last layer")
def test_a_route_line_holds_the_experts_of_every_token_of_a_step(tmp_path):
    trace = open_trace(written(tmp_path, ROUTE), n_experts=8)
    assert whole(trace)["experts"].tolist() == [[[6, 5], [6, 7], [7, 3]], [[255, 255], [1, 2], [2, 0]]]
    assert whole(trace)["phase"].tolist() == [0, 1]
    assert_replayed(trace, tmp_path, TICKS)


def test_a_union_is_laid_out_in_rows_that_keep_its_demand_and_its_order(tmp_path):
    with pytest.warns(TraceWarning, match="1 steps show the union of several tokens, laid out in rows of 2"):
        trace = open_trace(written(tmp_path, UNION), n_experts=8)
    assert whole(trace)["experts"].tolist() == [[[5, 6], [6, 7], [7, 3]], [[1, 2], [1, 2], [2, 0]]]
    assert whole(trace)["starts"].tolist() == [0, 2, 3]
    assert_replayed(trace, tmp_path, TICKS)


def test_the_least_recent_of_a_union_is_evicted_first(tmp_path):
    """By hand, 3 slots: 0 1 2 fill; 3 evicts 0; 0 evicts 1; 1 evicts 2."""
    text = "step=0 layer=0 ids=0,1,2\n" + "".join(
        f"step={s} layer=0 ids={e}\n" for s, e in ((1, 3), (2, 0), (3, 1), (4, 3))
    )
    with pytest.warns(TraceWarning):
        trace = open_trace(written(tmp_path, text), n_experts=4)
    counted = replay(trace, policy="lru", slots=3).counters
    assert (counted["demands"], counted["misses"], counted["evictions"]) == (7, 6, 3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (COLIBRI[:-1], "line 5: '3 0 4 2:0.5000 0:0.5000' has no end of line; truncated?"),
        (COLIBRI[: COLIBRI.rindex("3 0")], "line 4: the forward pass of this token has no layer 4"),
        (COLIBRI.replace("2 0 3", "3 0 3"), "line 4: call 3 row 0 of layer 3 after call 1 row 0 of layer 4"),
        (COLIBRI.replace("0 1 3", "0 2 3"), "line 2: call 0 row 2 of layer 3 after call 0 row 0"),
        (COLIBRI.replace("0 1 3", "0 1 4"), "a call is of one layer"),
        (COLIBRI.replace("0 0 3", "0 1 3", 1), "line 1: call 0 row 1 of layer 3 after nothing"),
        (COLIBRI.replace("7:0.8", "9:0.8"), "line 4: expert 9, but n_experts=8"),
        (COLIBRI.replace("7:0.8", "3:0.8"), "line 4: expert 3 twice in one top-2 [3, 3]"),
        (COLIBRI.replace(" 3:0.2000", ""), "line 4: 1 experts after 2"),
        (COLIBRI.replace("0.8000", "nan"), "weight nan"),
        (COLIBRI.replace("0.8000", "0.8.0"), "line 4: '2 0 3 7:0.8.0 3:0.2000' is no 'call row layer id:gate ...'"),
        (ROUTE.replace("3 2 2 6", "3 2 3 6"), "line 1: 4 experts for 3 tokens of k=2"),
        (ROUTE.replace("3 2 2 6", "3 2 999999999 6"), "line 1: 4 experts for 999999999 tokens of k=2"),
        (ROUTE[:-4] + "\n", "line 4: 1 experts for 1 tokens of k=2 (truncated?)"),
        (ROUTE.replace("1:0 2:1", "1:0 2:"), "line 2: 'route 0 4 2 1 1:0 2:' is neither 'step="),
        (UNION.replace("step=1 layer=4", "step=1 layer=3"), "line 4: step 1 layer 3 after layer 3; layers rise"),
        (UNION.replace("ids=7,3", "ids=7,7"), "line 3: an expert twice in 'step=1 layer=3 ids=7,7'"),
        (UNION[:-1], "has no end of line; truncated?"),
        (UNION[: UNION.rindex("step")], "line 3: the forward pass of this token has no layer 4"),
        (UNION + "route 1 5 2 1 7:0 3:0\n", "line 5: the other form of line within one step"),
    ],
)  # fmt: skip
@quiet
def test_a_log_that_breaks_a_rule_is_refused_in_one_line(tmp_path, text, words):
    assert words in refusal(written(tmp_path, text), n_experts=8)


@quiet
def test_a_top_k_above_what_a_line_holds_is_refused(tmp_path):
    assert "line 2: 2 ids, but top_k=3" in refusal(written(tmp_path, UNION), top_k=3, n_experts=8)
    path = written(tmp_path, COLIBRI)
    with pytest.raises(BadTrace, match="is one file; import"):
        open_trace([path, path])


@pytest.mark.parametrize(("name", "text"), [("colibri", COLIBRI), ("demand-log", ROUTE), ("demand-log", UNION)])
@quiet
def test_a_log_that_rots_is_read_with_valid_ids_or_refused(tmp_path, name, text):
    found = outcomes(tmp_path, text.encode() * 2, name, 8)
    assert 0 < found.count("read") < len(found) / 2
