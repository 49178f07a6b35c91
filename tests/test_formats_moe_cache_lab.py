"""moe-cache-lab's JSON lines: prompt layer by layer, generated token by token, and what is not in that order."""

import json

import pytest
from import_cases import assert_refused_or_valid, assert_replays_as, refusal
from trace_cases import whole

from slotwise.traces import TraceWarning, open_trace

META = {
    "record_type": "metadata",
    "format": "moe-cache-lab.routing-jsonl",
    "format_version": 1,
    "model_id": "toy/moe",
    "model_revision": "r1",
    "num_experts": 4,
    "experts_per_token": 2,
    "capture_method": "by hand",
    "created_at": "2026-01-02T03:04:05+00:00",
}
TOKENS = {0: 70, 1: 71, 2: 72, 3: 73}
PROMPT = [(0, 0, [0, 1]), (1, 0, [1, 2]), (0, 3, [0, 2]), (1, 3, [0, 3])]  # position, layer, experts
GENERATED = [(2, 0, [0, 2]), (2, 3, [2, 0]), (3, 0, [1, 2]), (3, 3, [0, 3])]
STEPS = [[[[0, 1], [1, 2]], [[0, 2], [0, 3]]], [[[0, 2]], [[2, 0]]], [[[1, 2]], [[0, 3]]]]


def event(phase, position, layer, experts, probabilities=(0.6, 0.4)):
    return {
        "record_type": "routing_selection",
        "phase": phase,
        "token_position": position,
        "layer": layer,
        "selected_experts": experts,
        "selected_probabilities": list(probabilities),
        "token_id": TOKENS[position],
    }


def events(probabilities=(0.6, 0.4)):
    return [event("prompt", *one, probabilities) for one in PROMPT] + [
        event("generated", *one, probabilities) for one in GENERATED
    ]


def written(folder, records, meta=META, name="toy.jsonl"):
    path = folder / name
    path.write_text("".join(json.dumps(record) + "\n" for record in [meta, *records]))
    return path


def changed(at, **fields):
    out = events()
    out[at] |= fields
    return out


def test_the_prompt_is_one_prefill_step_and_every_generated_token_a_decode_step(tmp_path):
    trace = open_trace(written(tmp_path, events()))
    found = whole(trace, weights=True)
    assert found["starts"].tolist() == [0, 2, 3, 4]
    assert found["phase"].tolist() == [0, 1, 1]
    assert found["experts"].tolist() == [[[0, 1], [1, 2], [0, 2], [1, 2]], [[0, 2], [0, 3], [2, 0], [0, 3]]]
    assert found["token_id"].tolist() == [70, 71, 72, 73]
    assert found["weights"].astype(float).round(1).tolist() == [[[0.6, 0.4]] * 4] * 2
    assert (trace.n_experts, trace.meta.model_layers, trace.model) == (4, (0, 3), "toy/moe")
    assert (trace.meta.revision, trace.meta.captured_by, trace.meta.captured_at[:4]) == ("r1", "by hand", "2026")
    assert [dict(request) for request in trace.meta.requests] == [{"id": 0, "label": None, "prompt_tokens": 2}]


def test_it_replays_to_the_counters_of_a_naive_count(tmp_path):
    assert_replays_as(open_trace(written(tmp_path, events())), STEPS, tmp_path)


def test_an_unsorted_top_k_is_ranked_by_probability(tmp_path):
    with pytest.warns(TraceWarning, match="ranked by weight"):
        trace = open_trace(written(tmp_path, events((0.1, 0.9))))
    assert whole(trace)["experts"][0].tolist() == [[1, 0], [2, 1], [2, 0], [2, 1]]


def test_probabilities_of_some_events_only_are_left_out_with_a_warning(tmp_path):
    with pytest.warns(TraceWarning, match="1 of 8 records have no weights; all weights are left out"):
        assert not open_trace(written(tmp_path, changed(3, selected_probabilities=[]))).has_weights
    assert not open_trace(written(tmp_path, events(()))).has_weights


def test_a_prompt_pruned_in_its_last_layer_is_absent_there(tmp_path):
    with pytest.warns(TraceWarning, match=r"the last layer \(1\) is absent in 1 of 2 prefill rows"):
        trace = open_trace(written(tmp_path, events()[:2] + events()[3:]))
    assert whole(trace)["experts"][1].tolist() == [[255, 255], [0, 3], [2, 0], [0, 3]]


def test_files_are_requests_and_their_positions_restart(tmp_path):
    paths = [written(tmp_path, events(), name=f"{name}.jsonl") for name in "ab"]
    with pytest.warns(TraceWarning, match="rows 0 to 3 are repeated by rows 4 to 7: a warm-up run"):
        trace = open_trace(paths)
    assert [request["label"] for request in trace.meta.requests] == ["a", "b"]
    assert whole(trace)["position"].tolist() == [0, 1, 2, 3] * 2
    assert whole(trace)["request"].tolist() == [0, 0, 0, 1, 1, 1]
    other = written(tmp_path, events(), META | {"model_id": "other"}, "c.jsonl")
    assert "model_id 'other', but 'toy/moe' in" in refusal(paths[0], other)


def test_what_the_metadata_does_not_say_is_guessed_or_told(tmp_path):
    path = written(tmp_path, events(), META | {"num_experts": None, "experts_per_token": None})
    with pytest.warns(TraceWarning, match="taken as the largest id \\+ 1 = 4"):
        assert open_trace(path).n_experts == 4
    trace = open_trace(path, n_experts=9, row_bytes=5, model="m")
    assert (trace.n_experts, trace.row_bytes, trace.model) == (9, (5, 5), "m")


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([], "a metadata record and no routing_selection (truncated?)"),
        (events()[:-1], "position 3 has no layer 3; every token passes every layer (truncated?)"),
        (events() + events(), "line 10: prompt position 0 at layer 0 comes too late; prompt events go layer by layer"),
        ([*events(), META, *events()], "line 10: record_type 'metadata'; only routing_selection follows"),
        ([events()[i] for i in (0, 2, 1, 3)], "line 4: prompt position 1 at layer 0 comes too late"),
        (events()[4:] + events()[:4], "line 6: prompt position 0 at layer 0 comes too late"),
        (changed(4, token_position=1, token_id=71), "line 6: position 1 is generated, but it was part of the prompt"),
        (changed(5, token_id=9), "line 7: token_id 9 at position 2, but 72 at the layer before"),
        (changed(4, phase="decode"), "line 6: phase 'decode'; it is prompt or generated"),
        (changed(4, selected_experts=[0, 4]), "line 6: expert 4, but n_experts=4: ids lie in 0 to 3"),
        (changed(4, selected_experts=[0, -1]), "line 6: expert -1, but n_experts=4"),
        (changed(4, selected_experts=[2, 2]), "line 6: an expert twice in one top-2 [2, 2]"),
        (changed(4, selected_experts=[2]), "line 6: 1 experts [2], but top_k=2"),
        (changed(4, selected_experts=[2, 1.5]), "line 6: experts [2, 1.5]; they must be a list of whole numbers"),
        (changed(4, selected_experts=[2, True]), "line 6: experts [2, True]"),
        (changed(4, selected_probabilities=[0.5]), "line 6: weights [0.5], but 2 experts"),
        (changed(4, selected_probabilities=[0.5, float("nan")]), "line 6: weights [0.5, nan]; they must be finite"),
        (changed(4, layer=10**9), "line 6: layer=1000000000; it must be a whole number from 0 to 100000"),
        (changed(4, token_position=-1), "line 6: token_position=-1; it must be"),
    ],
)
def test_a_file_that_breaks_a_rule_is_refused_in_one_line(tmp_path, records, words):
    assert words in refusal(written(tmp_path, records))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"format_version": 2}, "line 1: format_version 2; version 1 is read"),
        ({"num_experts": 0}, "line 1: num_experts=0; it must be a whole number from 1 to 65535"),
        ({"num_experts": 10**30}, "line 1: num_experts=1"),
        ({"experts_per_token": 3}, "line 2: 2 experts [0, 1], but top_k=3"),
        ({"model_id": ""}, "line 1: no model_id"),
        ({"record_type": "x"}, "line 1: the first record must be metadata"),
    ],
)
def test_metadata_that_breaks_a_rule_is_refused_in_one_line(tmp_path, fields, words):
    assert words in refusal(written(tmp_path, events(), META | fields))


def test_a_line_cut_short_is_an_error_and_never_a_shorter_trace(tmp_path):
    path = written(tmp_path, events())
    data = path.read_bytes()
    for cut in range(len(data) - 2, data.index(b"\n") + 1, -7):
        path.write_bytes(data[:cut])
        if b"\n" not in data[cut - 1 : cut + 1]:  # after a whole line there is nothing to see
            assert "truncated?" in refusal(path)
    path.write_bytes(data[:-1])
    with pytest.warns(TraceWarning, match="line 9: the file does not end with a line break; is it cut off"):
        assert open_trace(path).n_tokens == 4


@pytest.mark.filterwarnings("ignore::slotwise.traces.errors.TraceWarning")
def test_a_file_that_rots_is_refused_or_read_with_valid_ids(tmp_path):
    path = written(tmp_path, events())
    assert_refused_or_valid(path, path.read_bytes(), format="moe-cache-lab")
