"""vLLM's routed experts: .npy and base64 of it, dense layers of zeros, prompts, and headers that lie."""

import base64
import io
import json

import numpy as np
import pytest
from import_cases import assert_replayed, outcomes, refusal, written
from trace_cases import whole

from slotwise.traces import TraceWarning, open_trace

PAIRS = [[0, 1], [1, 2], [2, 3], [3, 0]]
IDS = np.array([[[0, 0]] * 4, PAIRS, PAIRS[::-1]], np.uint8).transpose(1, 0, 2)  # 4 tokens, a dense layer, 2 of MoE
TICKS = [(layer, ids) for token in IDS.tolist() for layer, ids in enumerate(token) if layer]


def npy(array: np.ndarray = IDS) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def response(array: np.ndarray = IDS, **usage) -> dict:
    choice = {"text": "x" * 5000, "routed_experts": base64.b64encode(npy(array)).decode()}
    return {"id": "r", "choices": [choice], **({"usage": usage} if usage else {})}


@pytest.mark.parametrize(
    "data", [npy(), npy(IDS.astype(np.int32)), npy(np.asfortranarray(IDS)), json.dumps(response())]
)
def test_dense_layers_of_zeros_are_left_out_and_the_rest_keep_their_numbers(tmp_path, data):
    with pytest.warns(TraceWarning, match=r"layers \[0\] are all zero, as dense layers are; left out"):
        trace = open_trace(written(tmp_path, data), n_experts=4)
    assert trace.meta.model_layers == (1, 2)
    assert np.array_equal(whole(trace)["experts"], IDS[:, 1:].transpose(1, 0, 2))
    assert whole(trace)["phase"].tolist() == [1] * 4
    assert_replayed(trace, tmp_path, TICKS)


@pytest.mark.filterwarnings("ignore:.*all zero")
def test_a_response_says_how_long_the_prompt_was(tmp_path):
    two = [response(prompt_tokens=3), response(IDS[:2], prompt_tokens=1)]
    trace = open_trace(written(tmp_path, json.dumps(two)), n_experts=4)
    assert whole(trace)["starts"].tolist() == [0, 3, 4, 5, 6]
    assert whole(trace)["phase"].tolist() == [0, 1, 0, 1]
    assert [request["prompt_tokens"] for request in trace.meta.requests] == [3, 1]
    with pytest.warns(TraceWarning, match="says prompt_tokens=9, but has 4 rows"):
        open_trace(written(tmp_path, json.dumps(response(prompt_tokens=9))), n_experts=4)


@pytest.mark.filterwarnings("ignore:.*all zero")
def test_files_of_one_capture_are_requests(tmp_path):
    paths = [written(tmp_path, npy(IDS[a:b]), f"{a}.npy") for a, b in ((0, 1), (1, 4))]
    trace = open_trace(paths, n_experts=4)
    assert (trace.n_requests, trace.n_tokens) == (2, 4)
    assert [request["label"] for request in trace.meta.requests] == ["0", "1"]
    mixed = [response(prompt_tokens=3), response()]
    assert "known for some requests only" in refusal(written(tmp_path, json.dumps(mixed)), n_experts=4)


def lying(shape) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return out.getvalue() + IDS.tobytes()


CODED = json.dumps(response())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (npy()[:-1], "promises 24 bytes (uint8 [4, 3, 2]), but 23 follow; truncated?"),
        (npy()[:20], "is not a NumPy array"),
        (lying((10**9, 10**3, 10**3)), "promises 1000000000000000 bytes"),
        (lying((-4, -3, 2)), "promises 24 bytes (uint8 [-4, -3, 2])"),
        (npy(IDS[:0]), "no tokens"),
        (npy(IDS[0]), "it must be of kind i or u"),
        (npy(IDS * 1.0), "counts only (layer, expert, count)"),
        (npy(IDS.astype(object)), "is a pickle (dtype object), and nothing is unpickled"),
        (npy(IDS * 0), "experts holds zeros only; nothing was captured"),
        (npy(IDS[:, 1:] + 1), "row 0, layer 1, rank 0: experts 4, but n_experts=4"),
        (CODED[:-1], "not JSON"),
        (CODED.replace("k05VTVBZ", "k05VTVBZ!"), "routed_experts 0 is not base64"),
        (CODED.replace("k05VTVBZAQ", "k05VTVBZ"), "routed_experts 0 is not"),
        (CODED.replace("routed_experts", "experts"), "no text under 'routed_experts' in it"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::slotwise.traces.errors.TraceWarning")
def test_what_breaks_a_rule_is_refused_in_one_line(tmp_path, data, words):
    assert words in refusal(written(tmp_path, data), n_experts=4)


@pytest.mark.parametrize("depth", [500, 5000, 500_000])
def test_json_of_any_depth_is_searched_or_refused(tmp_path, depth):
    said = refusal(written(tmp_path, '{"a": ' + "[" * depth + "]" * depth + ', "routed_experts": "k05VTVBZ"}'))
    assert "not JSON ('maximum recursion depth" in said or "routed_experts 0 is not a NumPy array" in said


MANY = np.tile(IDS[:, 1:], (20, 1, 1))
ROTTEN = json.dumps(response(MANY)).replace("x" * 5000, "").encode()


@pytest.mark.parametrize("data", [npy(MANY), ROTTEN])
@pytest.mark.filterwarnings("ignore::slotwise.traces.errors.TraceWarning")
def test_what_rots_is_read_with_valid_ids_or_refused(tmp_path, data):
    found = outcomes(tmp_path, data, "vllm", 250)
    assert 0 < found.count("read") < len(found)
