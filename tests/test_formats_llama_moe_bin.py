"""llama.cpp's int32 streams: the bare one and MBLT, passes, a pruned last layer, and damage."""

from itertools import chain

import numpy as np
import pytest
from import_cases import assert_replayed, outcomes, refusal, written
from trace_cases import whole

from slotwise.traces import BadTrace, TraceWarning, open_trace

# (layer, ids of each token): a prompt of 3 tokens whose last layer has the final one alone, then two tokens.
CALLS = [
    (1, [[5, 6], [6, 7], [7, 1]]),
    (2, [[1, 2]]),
    (1, [[7, 3]]), (2, [[2, 0]]),
    (1, [[7, 5]]), (2, [[2, 1]]),
]  # fmt: skip
TICKS = [(layer, [e for ids in tokens for e in ids]) for layer, tokens in CALLS]


def bare(calls=CALLS) -> bytes:
    return b"".join(np.array([layer, len(t), len(t[0]), *chain(*t)], "<i4").tobytes() for layer, t in calls)


def mblt(calls=CALLS, n_expert=8) -> bytes:
    head = np.array([0x544C424D, 1, n_expert], "<i4").tobytes()
    return head + b"".join(np.array([y, len(t[0]), len(t), *chain(*t)], "<i4").tobytes() for y, t in calls)


@pytest.mark.parametrize("data", [bare(), mblt()])
@pytest.mark.filterwarnings("ignore:.*the last layer")
def test_a_pass_ends_where_the_layer_falls_and_a_pruned_last_layer_has_the_final_token(tmp_path, data):
    trace = open_trace(written(tmp_path, data), n_experts=8)
    found = whole(trace)
    assert (trace.meta.model_layers, trace.n_experts, trace.n_requests) == ((1, 2), 8, 1)
    assert found["starts"].tolist() == [0, 3, 4, 5]
    assert found["phase"].tolist() == [0, 1, 1]
    assert found["position"].tolist() == [0, 1, 2, 3, 4]
    none = [255, 255]
    assert found["experts"].tolist() == [
        [[5, 6], [6, 7], [7, 1], [7, 3], [7, 5]],
        [none, none, [1, 2], [2, 0], [2, 1]],
    ]
    assert_replayed(trace, tmp_path, TICKS)


@pytest.mark.filterwarnings("ignore::slotwise.traces.errors.TraceWarning")
def test_files_strung_together_are_requests_by_their_header_or_by_prefill_after_decode(tmp_path):
    for data in (bare() + bare(), mblt() + mblt(), mblt(CALLS + CALLS)):
        trace = open_trace(written(tmp_path, data), n_experts=8)
        assert (trace.n_requests, trace.n_steps) == (2, 6)
        assert [dict(r) for r in trace.meta.requests][1] == {"id": 1, "label": None, "prompt_tokens": 3}
        assert whole(trace)["position"].tolist() == [0, 1, 2, 3, 4] * 2
    decode = mblt(CALLS[2:])  # a header alone says where a file without a prompt begins
    assert open_trace(written(tmp_path, decode + decode)).n_requests == 2


def test_a_piece_of_a_prompt_whose_logits_nobody_wanted_has_no_last_layer(tmp_path):
    with pytest.warns(TraceWarning, match=r"the last layer \(1\) is absent in 4 of 5 prefill rows"):
        trace = open_trace(written(tmp_path, mblt([(1, [[0, 1], [2, 3]]), *CALLS])))
    assert whole(trace)["starts"].tolist() == [0, 2, 5, 6, 7]
    assert whole(trace)["experts"][1, :, 0].tolist() == [255, 255, 255, 255, 1, 2, 2]


def test_one_layer_alone_is_a_step_a_record(tmp_path):
    trace = open_trace(written(tmp_path, mblt([(3, [[0, 1]]), (3, [[1, 2]]), (3, [[2, 3], [4, 5]]), (3, [[6, 7]])])))
    assert whole(trace)["starts"].tolist() == [0, 1, 2, 4, 5]
    assert trace.meta.model_layers == (3,)


def test_a_bare_stream_does_not_say_how_many_experts_there_are(tmp_path):
    with pytest.warns(TraceWarning, match="taken as the largest id \\+ 1 = 8"):
        open_trace(written(tmp_path, bare(CALLS[2:])))


def with_word(data, at, value) -> bytes:
    words = np.frombuffer(data, "<i4").copy()
    words[at] = value
    return words.tobytes()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (mblt()[:-2], "byte 128: 1 tokens of 2 ids promised, but 6 bytes follow; truncated?"),
        (mblt()[:-4], "1 tokens of 2 ids promised, but 4 bytes follow; truncated?"),
        (mblt()[:-12], "8 bytes left, but a record begins with 12; truncated?"),
        (mblt()[:-20], "the forward pass of this token has no layer 2; every token passes every layer (truncated"),
        (mblt([*CALLS, (1, [[0, 1], [2, 3]])]), "no layer 2"),
        (mblt()[:12], "no routing in it"),
        (with_word(mblt(), 1, 2), "byte 4: version 2 of MBLT; this reader knows version 1"),
        (with_word(mblt(), 2, 0), "byte 8: n_expert 0, but it is a number from 1 to 65535"),
        (with_word(mblt(), 2, 7), "byte 12: expert 7, but n_experts=7"),
        (with_word(mblt(), 4, 2**31 - 1), "k 2147483647 is no record"),
        (with_word(mblt(), 5, 2**31 - 1), "byte 12: 2147483647 tokens of 2 ids promised, but 124 bytes follow"),
        (with_word(mblt(), 5, -1), "n_tokens -1"),
        (with_word(mblt(), 6, -1), "expert -1 in [-1, 6]"),
        (with_word(mblt(), 6, 6), "expert 6 twice in one top-2 [6, 6]"),
        (mblt() + mblt(n_expert=9), "n_expert 9 after 8; are these captures of two models?"),
        (mblt([*CALLS, (1, [[0, 1, 2]])]), "3 experts after 2 in the lines before"),
        (mblt([(1, [[0, 1]] * 3), (2, [[0, 1]] * 2)]), "the last layer has 2 of the 3 tokens of its forward pass"),
    ],
)  # fmt: skip
def test_a_stream_that_breaks_a_rule_is_refused_in_one_line(tmp_path, data, words):
    assert words in refusal(written(tmp_path, data))


def test_two_streams_are_two_captures(tmp_path):
    path = written(tmp_path, mblt())
    with pytest.raises(BadTrace, match="is one file; import"):
        open_trace([path, path])


@pytest.mark.parametrize("data", [bare(CALLS * 2), mblt(CALLS * 2)])
@pytest.mark.filterwarnings("ignore::slotwise.traces.errors.TraceWarning")
def test_a_stream_that_rots_is_read_with_valid_ids_or_refused(tmp_path, data):
    found = outcomes(tmp_path, data, "llama-moe-bin", 8)
    assert 0 < found.count("read") < len(found) / 2
