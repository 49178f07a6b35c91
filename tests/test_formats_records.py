"""Formats of one record per token and layer: vllm-logger, lattice, rtrace and gpt-oss-fingerprint."""

import json

import numpy as np
import pytest
from import_cases import assert_replayed, outcomes, refusal, written
from trace_cases import whole

from slotwise.traces import BadTrace, TraceWarning, open_trace

# (layer, token, ids): a prompt of 2 tokens, then two tokens, over layers 1 and 3.
CELLS = [
    (1, 0, [5, 6]), (1, 1, [6, 7]), (3, 0, [0, 1]), (3, 1, [1, 2]),
    (1, 0, [7, 3]), (3, 0, [2, 0]),
    (1, 0, [7, 5]), (3, 0, [2, 1]),
]  # fmt: skip
EXPERTS = [[[5, 6], [6, 7], [7, 3], [7, 5]], [[0, 1], [1, 2], [2, 0], [2, 1]]]
TICKS = [(1, [5, 6, 6, 7]), (3, [0, 1, 1, 2]), *((layer, ids) for layer, _, ids in CELLS[4:])]
META = json.dumps({"type": "meta", "model_id": "m", "top_k": 2, "layers_logged": [1, 3]}) + "\n"
quiet = pytest.mark.filterwarnings("ignore::slotwise.traces.errors.TraceWarning")


def route(layer, token, ids, req: str | None = "a", **more):
    record = {"type": "route", "req_id": req, "token_idx": token, "layer": layer, "topk_ids": ids}
    return json.dumps({**record, "topk_weights": [0.7, 0.3][: len(ids)], **more}) + "\n"


def lattice(layer, token, ids, **more):
    record = {"layer_idx": layer, "token_idx": token, "selected_ids": ids, "gate_weights": [0.7, 0.3][: len(ids)]}
    return json.dumps({**record, **more}) + "\n"


LOGGER = META + "".join(route(*cell) for cell in CELLS)
LATTICE = "".join(lattice(*cell) for cell in CELLS)


def rtrace(cells=CELLS, n_experts=8, version=1, reverse=False) -> bytes:
    kind = np.dtype([("token", "<i4"), ("layer", "<i4"), ("probs", "<f4", (n_experts,))])
    records = np.zeros(len(cells), kind)
    for record, (layer, token, ids) in zip(records, cells, strict=True):
        record["token"], record["layer"] = token, layer
        record["probs"][ids] = [0.75, 0.25]
    return b"RTRACE01" + np.array([n_experts, version], "<i4").tobytes() + records.tobytes()


@pytest.mark.parametrize("data", [LOGGER, LOGGER.removeprefix(META), LATTICE, rtrace()])
def test_token_numbers_start_again_with_every_forward_pass(tmp_path, data):
    trace = open_trace(written(tmp_path, data), n_experts=8, top_k=2)
    found = whole(trace, weights=True)
    assert (trace.meta.model_layers, trace.n_requests) == ((1, 3), 1)
    assert found["experts"].tolist() == EXPERTS
    assert found["starts"].tolist() == [0, 2, 3, 4]
    assert found["phase"].tolist() == [0, 1, 1]
    assert found["position"].tolist() == [0, 1, 2, 3]
    assert found["weights"][0, 0, 0] > 0.6
    assert_replayed(trace, tmp_path, TICKS)


def test_the_meta_line_names_the_model_and_k_and_a_second_one_begins_another_file(tmp_path):
    with pytest.warns(TraceWarning, match="rows 0 to 3 are repeated by rows 4 to 7: a warm-up run"):
        trace = open_trace(written(tmp_path, LOGGER * 2), n_experts=8)
    assert (trace.model, trace.n_requests, trace.n_steps) == ("m", 2, 6)
    assert "line 2: 3 experts, but top_k=2" in refusal(written(tmp_path, META + route(0, 0, [1, 2, 3])), n_experts=8)


def test_a_warm_up_that_was_logged_too_is_warned_about(tmp_path):
    warm = "".join(route(*cell, req="warm") for cell in CELLS[:4])
    with pytest.warns(TraceWarning, match="rows 0 to 1 are repeated by rows 2 to 3: a warm-up run"):
        open_trace(written(tmp_path, warm + warm + LOGGER), n_experts=8)


def test_requests_that_share_a_forward_pass_are_told_apart_and_one_token_each_is_decode(tmp_path):
    rows = [(0, 0, [1], "a"), (0, 1, [2], "a"), (0, 2, [3], "b"), (0, 0, [1], "a"), (0, 1, [0], "b")]
    trace = open_trace(written(tmp_path, "".join(route(*row) for row in rows)), n_experts=4)
    found = whole(trace)
    assert found["row_request"].tolist() == [0, 0, 1, 0, 1]
    assert found["row_phase"].tolist() == [0, 0, 1, 1, 1]
    assert found["starts"].tolist() == [0, 3, 5]
    assert found["position"].tolist() == [0, 1, 0, 2, 1]
    assert [request["label"] for request in trace.meta.requests] == ["a", "b"]


def test_padding_is_left_out_and_said_and_a_count_over_the_run_is_suspected(tmp_path):
    padded = LOGGER + route(1, 0, [-1, -1]) + route(3, 0, [-1, -1])
    with pytest.warns(TraceWarning, match="2 rows of padding"):
        assert open_trace(written(tmp_path, padded), n_experts=8).n_tokens == 4
    with pytest.warns(TraceWarning, match="token_idx never starts again, so all 3 tokens are one forward pass"):
        open_trace(written(tmp_path, "".join(route(0, i, [i]) for i in range(3))), n_experts=4)


@pytest.mark.parametrize("make", [lattice, route])
def test_an_unsorted_top_k_is_ranked_by_its_gates(tmp_path, make):
    more = {"gate_weights": [0.1, 0.9]} if make is lattice else {"topk_weights": [0.1, 0.9]}
    with pytest.warns(TraceWarning, match="ranked by weight"):
        trace = open_trace(written(tmp_path, make(0, 0, [1, 2], **more)), n_experts=4)
    assert trace.layer(0).tolist() == [[2, 1]]


def test_token_by_token_positions_that_start_again_open_a_request(tmp_path):
    text = "".join(lattice(layer, token, [token % 3]) for token in [4, 5, 6, 4, 5] for layer in range(2))
    trace = open_trace(written(tmp_path, text), n_experts=4)
    assert whole(trace)["row_request"].tolist() == [0, 0, 0, 1, 1]
    assert trace.n_steps == 5


def test_the_top_k_of_probabilities_is_taken_with_ties_to_the_lowest_id(tmp_path):
    data = bytearray(rtrace(CELLS[4:6]))
    data[24:56] = np.array([0.1, 0.2, 0.2, 0.2, 0, 0, 0, 0.3], "<f4").tobytes()
    trace = open_trace(written(tmp_path, bytes(data)), top_k=3)
    assert (trace.n_experts, trace.layer(0).tolist()) == (8, [[7, 1, 2]])


def fingerprint(cells=CELLS, **more):
    """Tokens from 0, in an order of text in which token_10 comes before token_2."""
    tokens = {}
    for i, (layer, _, ids) in enumerate(cells[4:]):
        tokens.setdefault(f"token_{i // 2}", {})[f"layer_{layer}"] = {
            "selected_experts": ids, "selected_probs": [0.25, 0.75]
        }  # fmt: skip
    return {"router_data": [dict(reversed(tokens.items())), {"prompt": "p", **tokens}], **more}


def test_a_fingerprint_is_a_request_an_entry_in_the_order_of_numbers_ranked_by_probability(tmp_path):
    with pytest.warns(TraceWarning, match=r"ranked by weight|repeated by rows"):
        trace = open_trace(written(tmp_path, json.dumps(fingerprint())), n_experts=8)
    found = whole(trace)
    assert (trace.meta.model_layers, trace.n_requests) == ((1, 3), 2)
    assert found["experts"].tolist() == [[[3, 7], [5, 7]] * 2, [[0, 2], [1, 2]] * 2]
    assert found["row_request"].tolist() == [0, 0, 1, 1]
    assert found["phase"].tolist() == [1] * 4
    assert_replayed(trace, tmp_path, [(layer, ids) for layer, _, ids in CELLS[4:]] * 2)


def test_tokens_of_a_fingerprint_are_counted_not_spelt(tmp_path):
    entry = {f"token_{i}": {"layer_0": {"selected_experts": [i]}} for i in sorted(range(12), key=str)}
    trace = open_trace(written(tmp_path, json.dumps({"router_data": [entry]})), n_experts=12)
    assert trace.layer(0)[:, 0].tolist() == list(range(12))
    assert (trace.n_steps, trace.has_weights) == (12, False)


LAST = route(*CELLS[-1])
LAST_LATTICE = lattice(*CELLS[-1])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (LOGGER[:-9], "line 9: not JSON"),
        (LOGGER.removesuffix(LAST), "line 8: the forward pass of this token has no layer 3"),
        (LOGGER + route(1, 0, [7, 9]) + route(3, 0, [1, 2]), "line 10: expert 9, but n_experts=8"),
        (LOGGER + route(1, 0, [7, 7]), "line 10: expert 7 twice in one top-2 [7, 7]"),
        (LOGGER + route(1, 0, [7, -1]), "line 10: expert -1 in [7, -1]"),
        (LOGGER + route(1, 0, [7, "3"]), "line 10: topk_ids [7, '3']; it must be a list of whole numbers"),
        (LOGGER + route(1, 0, [7, 10**400]), "line 10: topk_ids [7, 1000"),
        (LOGGER + route(1, 0, [7, 3], topk_weights=[1e300, 0]), "line 10: topk_weights [1e+300, 0]; it must be a list"),
        (LOGGER + route(1, 0, [7, 3], topk_weights=[1]), "line 10: 1 weights for 2 experts"),
        (LOGGER + route(1, 0, [7, 3], topk_weights=None), "line 10: 0 weights for 2 experts"),
        (LOGGER + route(10**9, 0, [7, 3]), "line 10: layer=1000000000; it must be a whole number from 0 to 99999"),
        (LOGGER + route(1, -1, [7, 3]), "line 10: token_idx=-1"),
        (LOGGER + route(1, 0, [7, 3], None), "line 10: req_id None, but other lines have one"),
        (LOGGER + "7\n", "line 10: 7; a line is one JSON object"),
        (LOGGER + '{"type": "x"}\n', "line 10: type='x'; a line is a route, or the meta line"),
        (META, "no routing in it"),
        (LATTICE[:-9], "line 8: not JSON"),
        (LATTICE.removesuffix(LAST_LATTICE), "line 7: the forward pass of this token has no layer 3"),
        (LATTICE.replace('"selected_ids"', '"ids"').replace('"ids"', '"selected_ids"', 1), "no 'selected_ids'"),
        (rtrace()[:-1], "39 bytes after 7 records of 40; truncated?"),
        (rtrace()[:-40], "record 6: the forward pass of this token has no layer 3"),
        (rtrace()[:12], "12 bytes, but the header has 16"),
        (rtrace()[:16], "no routing in it"),
        (rtrace(version=2), "version 2 with n_experts=8; it must be version 1"),
        (b"RTRACE01" + np.array([2**31 - 1, 1], "<i4").tobytes(), "n_experts=2147483647; it must be version 1 with 1"),
        (rtrace(n_experts=9), "n_experts=8 was asked for, but the file says 9"),
        (rtrace()[:-4] + np.array([np.nan], "<f4").tobytes(), "record 7: probability nan; probabilities are finite"),
        (rtrace([(1, -5, [0, 1])]), "record 0: token -5, but tokens are counted from 0"),
        (json.dumps(fingerprint())[:-1], "not JSON"),
        (json.dumps({"router_data": {}}), "no list 'router_data'"),
        (json.dumps({"router_data": []}), "no routing in it"),
        (json.dumps({"router_data": [{}]}), "router_data[0] holds no token_0, token_1, ..."),
        (json.dumps({"router_data": [{"token_1": {}}]}), "router_data[0] has no token_0, but token_1"),
        (json.dumps({"router_data": [{"token_0": {"layer_x": 1}}]}), "router_data[0].token_0 has 'layer_x'"),
        (json.dumps({"router_data": [{"token_0": 1}]}), "router_data[0].token_0: 1; it must hold layer_0, "),
        (json.dumps({"router_data": [{"token_0": {"layer_0": 1}}]}), "router_data[0].token_0.layer_0: 1; it must be"),
        (json.dumps({"router_data": [{"token_0": {"layer_0": {"selected_experts": [1, 8]}}}]}),
         "router_data[0].token_0.layer_0: expert 8, but n_experts=8"),
        ('{"router_data": ' + "[" * 100_000, "not JSON"),
    ],
)  # fmt: skip
@quiet
def test_a_file_that_breaks_a_rule_is_refused_in_one_line(tmp_path, data, words):
    path = written(tmp_path, data)
    assert words in refusal(path, n_experts=8, **({"top_k": 2} if data[:6] == b"RTRACE" else {}))


@quiet
def test_what_is_not_recorded_is_asked_for(tmp_path):
    path = written(tmp_path, rtrace())
    assert "top_k=None, but a number from 1 to 8 is needed" in refusal(path)
    assert "top_k=9, but a number from 1 to 8 is needed" in refusal(path, top_k=9)
    with pytest.raises(BadTrace, match="is one file; import"):
        open_trace([path, path], top_k=2)


@pytest.mark.parametrize(
    ("name", "data"),
    [("vllm-logger", LOGGER), ("lattice", LATTICE), ("gpt-oss-fingerprint", json.dumps(fingerprint()))],
)
@quiet
def test_text_that_rots_is_read_with_valid_ids_or_refused(tmp_path, name, data):
    found = outcomes(tmp_path, data.encode(), name, 8, times=250)
    assert 0 < found.count("read") < len(found) / 2


@quiet
def test_probabilities_that_rot_are_read_with_valid_ids_or_refused(tmp_path):
    found = outcomes(tmp_path, rtrace(), "rtrace", 8, top_k=2)
    assert 0 < found.count("read") < len(found)
