"""SGLang's routed_experts: the shape that has to be worked out, dense layers, and answers that do not add up."""

import base64
import json

import numpy as np
import pytest
from import_cases import assert_refused_or_valid, assert_replays_as, refusal
from trace_cases import whole

from slotwise.traces import TraceWarning, open_trace

# Three prompt tokens and two generated: four rows of two layers, top 2 of 4.
IDS = np.array([[[0, 1], [3, 2]], [[1, 2], [0, 3]], [[0, 2], [2, 0]], [[3, 1], [1, 0]]], np.int32)
STEPS = [[IDS[:3, 0].tolist(), IDS[:3, 1].tolist()], [IDS[3:, 0].tolist(), IDS[3:, 1].tolist()]]


def answer(ids=IDS, **info):
    said = {"id": "a1", "prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": 0}
    return {"text": "…", "meta_info": said | {"routed_experts": base64.b64encode(ids.tobytes()).decode()} | info}


def written(folder, *answers, text=None):
    path = folder / "answers.json"
    path.write_text(json.dumps(answers[0] if len(answers) == 1 else answers) if text is None else text)
    return path


def test_the_rows_of_a_prompt_are_one_step_and_the_layers_are_worked_out_from_top_k(tmp_path):
    trace = open_trace(written(tmp_path, answer()), top_k=2, n_experts=4, model="m", row_bytes=5)
    found = whole(trace)
    assert found["starts"].tolist() == [0, 3, 4]
    assert found["phase"].tolist() == [0, 1]
    assert np.array_equal(found["experts"], IDS.transpose(1, 0, 2))
    assert (trace.model, trace.row_bytes, trace.meta.model_layers) == ("m", (5, 5), (0, 1))
    assert [dict(request) for request in trace.meta.requests] == [{"id": 0, "label": "a1", "prompt_tokens": 3}]
    assert_replays_as(trace, STEPS, tmp_path)


@pytest.mark.parametrize("dtype", ["uint16", "uint8"])
def test_ids_may_come_in_a_smaller_type_that_the_answer_names(tmp_path, dtype):
    said = answer(IDS.astype(dtype), routed_experts_dtype=dtype)
    trace = open_trace(written(tmp_path, said), top_k=2, n_experts=4)
    assert np.array_equal(whole(trace)["experts"], IDS.transpose(1, 0, 2))
    other = written(tmp_path, answer(routed_experts_dtype="int4"))
    assert "routed_experts_dtype='int4'; it is int32, uint16, uint8" in refusal(other, top_k=2, n_experts=4)


@pytest.mark.filterwarnings("ignore:.*a warm-up run")
def test_lists_lines_indented_json_and_chat_completions_are_read_alike(tmp_path):
    two = [answer(), answer(id="a2")]
    chat = [{"object": "chat.completion", "choices": [one]} for one in two]
    texts = [json.dumps(two), "".join(json.dumps(one) + "\n" for one in two), json.dumps(chat, indent=2)]
    texts.append(json.dumps({"choices": two}, indent=1))
    for text in texts:
        trace = open_trace(written(tmp_path, text=text), top_k=2, n_experts=4)
        assert [request["label"] for request in trace.meta.requests] == ["a1", "a2"]
        assert whole(trace)["position"].tolist() == [0, 1, 2, 3] * 2
        assert whole(trace)["phase"].tolist() == [0, 1, 0, 1]


def test_rows_may_start_late_and_end_with_the_last_token(tmp_path):
    found = whole(open_trace(written(tmp_path, answer(IDS[2:], routed_experts_start_len=2)), top_k=2, n_experts=4))
    assert (found["position"].tolist(), found["phase"].tolist()) == ([2, 3], [0, 1])
    found = whole(open_trace(written(tmp_path, answer(IDS[3:], routed_experts_start_len=3)), top_k=2, n_experts=4))
    assert (found["position"].tolist(), found["phase"].tolist()) == ([3], [1])
    one_more = np.concatenate([IDS[:, :1], IDS[:1, :1]])
    trace = open_trace(written(tmp_path, answer(one_more)), top_k=2, n_experts=4)
    assert np.array_equal(whole(trace)["experts"], IDS[:, :1].transpose(1, 0, 2))


@pytest.mark.parametrize(("fill", "word"), [(0, "all zero"), (-1, "empty")])
def test_dense_layers_are_left_out_and_the_others_keep_their_numbers(tmp_path, fill, word):
    path = written(tmp_path, answer(np.insert(IDS, 1, fill, axis=1)))
    with pytest.warns(TraceWarning, match=rf"layers \[1\] are {word}, as dense layers are; left out"):
        trace = open_trace(path, top_k=2, n_experts=4)
    assert trace.meta.model_layers == (0, 2)
    assert np.array_equal(whole(trace)["experts"], IDS.transpose(1, 0, 2))


def test_a_row_without_experts_is_absent_and_one_with_some_is_refused(tmp_path):
    ids = IDS.copy()
    ids[1, 0] = -1
    assert open_trace(written(tmp_path, answer(ids)), top_k=2, n_experts=4).layer(0)[1].tolist() == [255, 255]
    ids[1, 0, 0] = 1
    assert "row 1, layer 0, rank 1: absent, but other ranks" in refusal(
        written(tmp_path, answer(ids)), top_k=2, n_experts=4
    )


def test_an_unsorted_top_k_is_warned_about(tmp_path):
    rng = np.random.default_rng(0)
    ids = np.sort(np.argsort(rng.random((40, 2, 16)), axis=2)[..., :4], axis=2).astype(np.int32)
    with pytest.warns(TraceWarning, match="top-k looks unsorted: 100% of the rows"):
        open_trace(written(tmp_path, answer(ids, prompt_tokens=40, completion_tokens=1)), top_k=4, n_experts=16)


def test_the_number_of_experts_is_guessed_with_a_warning(tmp_path):
    with pytest.warns(TraceWarning, match="taken as the largest id \\+ 1 = 4"):
        assert open_trace(written(tmp_path, answer()), top_k=2).n_experts == 4


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([answer(prompt_tokens=4)], "answer 0: 16 ids are no whole number of layers of 5 rows x top_k=2"),
        ([answer(prompt_tokens=0, completion_tokens=0)], "answer 0: 16 ids for -1 rows"),
        ([answer(prompt_tokens=2**31)], "answer 0: prompt_tokens=2147483648; it must be a whole number from 0"),
        ([answer(prompt_tokens=None)], "answer 0: prompt_tokens=None"),
        ([answer(routed_experts_start_len=-1)], "answer 0: routed_experts_start_len=-1"),
        ([answer(routed_experts="AAAA=")], "answer 0: routed_experts is not base64 of int32"),
        ([answer(routed_experts="AAA*")], "answer 0: routed_experts is not base64 of int32"),
        ([answer(routed_experts="AAAA")], "answer 0: routed_experts is not base64 of int32"),
        ([answer(routed_experts="")], "answer 0: 0 ids for 4 rows"),
        ([answer(), {"text": "x"}], "answer 1: no meta_info.routed_experts; was return_routed_experts asked for?"),
        ([answer(), answer(IDS[:, :1])], "answer 1: 1 layers at top_k=2, but 2 in the first answer"),
        ([answer(IDS * 0)], "experts holds zeros only"),
        ([answer(IDS + 1)], "row 0, layer 1, rank 0: experts 4, but n_experts=4"),
        ([answer(IDS // 2)], "twice in one top-2"),
    ],
)
def test_an_answer_that_breaks_a_rule_is_refused_in_one_line(tmp_path, answers, words):
    assert words in refusal(written(tmp_path, *answers), top_k=2, n_experts=4)


def test_top_k_has_to_be_told(tmp_path):
    assert "--top-k K` tells" in refusal(written(tmp_path, answer()))
    assert "top_k=0, but it must be a whole number" in refusal(written(tmp_path, answer()), top_k=0)


def test_a_file_cut_off_is_never_a_shorter_trace(tmp_path):
    text = json.dumps(answer())
    for cut in range(len(text) - 1, 200, -3):
        assert "truncated?" in refusal(written(tmp_path, text=text[:cut]), top_k=2, n_experts=4)


@pytest.mark.filterwarnings("ignore::slotwise.traces.errors.TraceWarning")
def test_a_file_that_rots_is_refused_or_read_with_valid_ids(tmp_path):
    path = written(tmp_path, answer())
    assert_refused_or_valid(path, path.read_bytes(), format="sglang-r3", n_experts=4, top_k=2)
