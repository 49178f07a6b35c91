"""BigMoeOnEdge's route trace: what its columns mean, and what a damaged or mixed-up file is told."""

import pytest
from trace_cases import whole

from slotwise.traces import BadTrace, TraceWarning, open_trace

HEAD = """# route_trace v1
# model=/models/Toy-Q4.gguf arch=toy n_layer=3 n_expert=8 n_expert_used=2
# layer=0 expert_bytes=0 dense_bytes=5
# layer=1 expert_bytes=100 dense_bytes=5
# layer=2 expert_bytes=200 dense_bytes=5
turn,phase,step,layer,slot,expert,weight,residency,expert_bytes
"""
# Two prompt tokens, layer by layer; the last layer sees only the final one. Then one decoded token.
ROWS = """0,0,0,1,0,5,0.7,0,100
0,0,0,1,1,6,0.3,0,100
0,0,1,1,0,6,0.6,0,0
0,0,1,1,1,7,0.4,0,100
0,0,1,2,0,1,0.9,0,200
0,0,1,2,1,2,0.1,0,200
0,1,2,1,0,7,0.8,1,0
0,1,2,1,1,3,0.2,0,100
0,1,2,2,0,2,0.5,1,0
0,1,2,2,1,0,0.5,0,200
"""


def written(folder, text):
    path = folder / "toy.csv"
    path.write_text(text)
    return path


def opened(folder, text=HEAD + ROWS):
    with pytest.warns(TraceWarning, match=r"the last layer \(1\) is absent in 1 of 2 prefill rows"):
        return open_trace(written(folder, text))


def refusal(folder, text) -> str:
    path = written(folder, text)
    with pytest.raises(BadTrace) as refused:
        open_trace(path)
    assert "\n" not in str(refused.value)
    assert str(path) in str(refused.value)
    return str(refused.value)


def test_prefill_is_one_step_and_its_last_layer_has_only_the_final_token(tmp_path):
    trace = opened(tmp_path)
    found = whole(trace, weights=True)
    assert found["starts"].tolist() == [0, 2, 3]
    assert found["phase"].tolist() == [0, 1]
    assert found["position"].tolist() == [0, 1, 2]
    assert found["experts"].tolist() == [[[5, 6], [6, 7], [7, 3]], [[255, 255], [1, 2], [2, 0]]]
    assert found["weights"][1, :, 0].tolist()[0] == 0


def test_the_preamble_names_the_model_and_the_size_of_a_row_per_layer(tmp_path):
    trace = opened(tmp_path)
    assert (trace.model, trace.n_experts, trace.top_k) == ("Toy-Q4", 8, 2)
    assert (trace.meta.model_layers, trace.row_bytes) == ((1, 2), (100, 200))
    assert trace.token_cycle_bytes == 2 * 300
    assert [dict(request) for request in trace.meta.requests] == [{"id": 0, "label": "turn 0", "prompt_tokens": 2}]


def test_a_turn_is_a_request_and_the_order_of_lines_does_not_matter(tmp_path):
    second = ROWS.replace("\n0,", "\n1,").replace("0,0,0,1,0,5", "1,0,0,1,0,5")
    mixed = "".join(reversed((ROWS + second).splitlines(keepends=True)))
    with pytest.warns(TraceWarning):
        trace = open_trace(written(tmp_path, HEAD + mixed))
    found = whole(trace)
    assert found["starts"].tolist() == [0, 2, 3, 5, 6]
    assert found["request"].tolist() == [0, 0, 1, 1]
    assert found["experts"][0].tolist() == [[5, 6], [6, 7], [7, 3]] * 2


@pytest.mark.filterwarnings("ignore:.*the last layer")
def test_weights_that_the_engine_did_not_know_are_left_out(tmp_path):
    lines = [line.split(",") for line in ROWS.splitlines()]
    text = "".join(",".join([*line[:6], "nan", *line[7:]]) + "\n" for line in lines)
    with pytest.warns(TraceWarning, match=r"weights are unknown \(nan\); left out"):
        assert not open_trace(written(tmp_path, HEAD + text)).has_weights


@pytest.mark.filterwarnings("ignore:.*the last layer")
def test_columns_are_found_by_name_and_dropped_routings_are_warned_about(tmp_path):
    lines = [line.split(",") for line in ROWS.splitlines()]
    head = HEAD.rpartition("turn,")[0] + "expert,slot,layer,step,phase,dropped,turn\n"
    rows = "".join(",".join([*line[5:0:-1], str(int(i == 3)), line[0]]) + "\n" for i, line in enumerate(lines))
    with pytest.warns(TraceWarning, match="the engine dropped 1 routings"):
        trace = open_trace(written(tmp_path, head + rows))
    assert whole(trace)["experts"][0].tolist() == [[5, 6], [6, 7], [7, 3]]
    assert not trace.has_weights


def without(number):
    return "".join(line for i, line in enumerate(ROWS.splitlines(keepends=True)) if i != number)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD, "a preamble and no routing"),
        (HEAD[:40], "truncated"),
        ("# route_trace v1\nturn,phase\n", "no line '# model= arch="),
        (HEAD.replace("slot", "rank") + ROWS, "line 6: no column 'slot'"),
        (HEAD + ROWS[:-8], "line 16: 7 fields, but the header has 9 (truncated?)"),
        (HEAD + ROWS.replace("0,1,2,2,1,0", "0,1,2,2,1,x"), "line 16: expert 'x' is not a number"),
        (HEAD + ROWS.replace("0,1,2,2,1,0", "0,1,2,2,1,1e9"), "line 16: expert '1e9' is not a number"),
        (HEAD + ROWS.replace("0,1,2,2,1,0", "0,1,2,2,1,8"), "line 16: expert 8, but the preamble allows 0 to 7"),
        (HEAD + ROWS.replace("0,1,2,2,1,0", "0,1,2,2,2,0"), "line 16: slot 2, but the preamble allows 0 to 1"),
        (HEAD + ROWS.replace("0,1,2,2,1,0", "0,1,2,3,1,0"), "line 16: layer 3, but the preamble allows 0 to 2"),
        (HEAD + ROWS.replace("0,1,2,2,1,0", "0,2,2,2,1,0"), "line 16: phase 2, but the preamble allows 0 to 1"),
        (HEAD + ROWS.replace("0,1,2,2,1,0", "0,1,-2,2,1,0"), "line 16: step -2"),
        (HEAD + ROWS.replace("0,1,2,2,1,0", "0,1,2,2,1,2"), "row 2, layer 1: expert 2 twice"),
        (HEAD + ROWS + ROWS, "line 17: turn 0 phase 0 step 0 layer 1 slot 0 again; are these two captures"),
        (HEAD + without(9), "turn 0 phase 1 step 2 layer 2 has 1 of 2 slots; truncated?"),
        (HEAD + "".join(ROWS.splitlines(keepends=True)[:8]), "turn 0 phase 1 step 2 has no layer 2"),
        (HEAD + ROWS.replace("0.7", "nan"), "row 0, layer 0, rank 0: weight nan"),
        (HEAD.replace("expert_bytes=100", "expert_bytes=0") + ROWS, "layer 1 routes experts, but the preamble gives"),
        (HEAD.replace("n_expert_used=2", "n_expert_used=999999999") + ROWS, "has 2 of 999999999 slots"),
    ],
)  # fmt: skip
def test_a_file_that_breaks_a_rule_is_refused_in_one_line(tmp_path, text, words):
    assert words in refusal(tmp_path, text)


def test_two_route_traces_are_two_traces(tmp_path):
    path = written(tmp_path, HEAD + ROWS)
    with pytest.raises(BadTrace, match="a route trace is one file"):
        open_trace([path, path])
