"""Traces in memory: what from_arrays takes, what it refuses in which words, and what blocks say about steps."""

import numpy as np
import pytest
from trace_cases import tiny, whole

from slotwise.traces import BadTrace, Trace, TraceWarning, open_trace

PAIRS = np.array([[[0, 1], [1, 0]], [[2, 3], [3, 1]], [[0, 2], [2, 3]]])  # 3 tokens, 2 layers, top 2 of 4


def test_five_tokens_are_five_decode_steps_of_one_request():
    trace = tiny()
    (block,) = trace.blocks()
    assert (trace.n_tokens, trace.n_steps, trace.n_requests, trace.n_layers, trace.top_k) == (5, 5, 1, 1, 1)
    assert block.experts.tolist() == [[[0], [1], [2], [0], [1]]]
    assert block.starts.tolist() == [0, 1, 2, 3, 4, 5]
    assert block.phase.tolist() == [1] * 5
    assert trace.rows("position")["position"].tolist() == [0, 1, 2, 3, 4]


def test_arrays_come_token_first_and_are_kept_layer_first():
    (block,) = Trace.from_arrays(PAIRS, n_experts=4).blocks()
    assert block.experts.dtype == np.uint8
    assert block.experts.flags.c_contiguous
    assert block.experts.tolist() == [[[0, 1], [2, 3], [0, 2]], [[1, 0], [3, 1], [2, 3]]]


@pytest.mark.parametrize(("n_experts", "dtype"), [(255, np.uint8), (256, np.uint16)])
def test_ids_are_bytes_up_to_255_experts_since_255_means_absent(n_experts, dtype):
    trace = Trace.from_arrays(np.full((1, 1, 1), n_experts - 1), n_experts=n_experts)
    assert trace.dtype == dtype
    assert trace.layer(0).tolist() == [[n_experts - 1]]


def test_in_bytes_255_is_absent_with_up_to_255_experts_and_an_expert_with_256():
    ids = np.array([[[255]], [[3]]], np.uint8)
    assert Trace.from_arrays(ids, n_experts=255).layer(0).tolist() == [[255], [3]]
    assert Trace.from_arrays(ids, n_experts=256).layer(0).tolist() == [[255], [3]]
    assert Trace.from_arrays(ids.astype(np.int64) - 256 * (ids == 255), n_experts=256).layer(0).tolist() == [
        [65535],
        [3],
    ]


def test_a_step_is_a_run_of_equal_values_and_may_mix_requests_and_phases():
    trace = tiny(step=[7, 7, 9, 9, 30], request=[0, 0, 0, 1, 1], phase=[0, 0, 1, 0, 1])
    (block,) = trace.blocks()
    assert block.starts.tolist() == [0, 2, 4, 5]
    assert block.request.tolist() == [0, -1, 1]
    assert block.phase.tolist() == [0, 0, 1]
    assert trace.rows("position")["position"].tolist() == [0, 1, 2, 0, 1]
    assert (trace.n_steps, trace.n_requests) == (3, 2)


def test_the_first_steps_of_a_trace_are_its_first_steps_wherever_blocks_end():
    columns = {"step": [0, 0, 1, 2, 2]}
    for group_rows in (None, 1, 2, 3):
        assert whole(tiny(group_rows=group_rows, **columns), n_steps=2)["starts"].tolist()[:2] == [0, 2]
        assert whole(tiny(group_rows=group_rows, **columns), n_steps=2)["experts"].tolist() == [[[0], [1], [2]]]
    assert len(list(tiny().blocks(n_steps=0))) == 0
    assert whole(tiny(), n_steps=99)["starts"].tolist() == [0, 1, 2, 3, 4, 5]


def test_predictions_for_the_first_layer_are_dropped_since_nothing_comes_before_it():
    trace = Trace.from_arrays(PAIRS, n_experts=4, predicted=PAIRS[..., :1])
    (block,) = trace.blocks(predicted=True)
    assert block.predicted is not None
    assert block.predicted.tolist() == [[[255], [255], [255]], [[1], [3], [2]]]
    assert (trace.predicted_width, trace.horizons) == (1, (1,))
    assert trace.meta["predictor"] == {"kind": None, "width": 1, "horizon": 1}


def test_several_horizons_live_side_by_side():
    three = np.concatenate([PAIRS, PAIRS[:, :1]], axis=1)
    trace = Trace.from_arrays(three, n_experts=4, predicted={1: three, 2: three[..., :1]})
    assert (trace.horizons, trace.predicted_width) == ((1, 2), 2)
    (block,) = trace.blocks(predicted=True, horizon=2)
    assert block.predicted is not None
    assert block.predicted[:2].tolist() == [[[255]] * 3] * 2
    assert block.predicted[2].tolist() == [[0], [2], [0]]


def test_the_token_cycle_is_top_k_rows_of_every_layer():
    assert Trace.from_arrays(PAIRS, n_experts=4, row_bytes=[10, 100]).token_cycle_bytes == 2 * (10 + 100)
    assert Trace.from_arrays(PAIRS, n_experts=4).token_cycle_bytes is None


def test_the_digest_follows_the_ids_and_nothing_else():
    same = [tiny(), tiny(step=[0, 0, 0, 1, 1]), tiny(request=[0, 1, 2, 3, 4], model="x")]
    other = Trace.from_arrays(np.array([0, 1, 2, 0, 3]).reshape(5, 1, 1), n_experts=4)
    assert len({trace.sha256 for trace in same}) == 1
    assert other.sha256 != same[0].sha256


def changed(row, layer, rank, value):
    ids = PAIRS.copy()
    ids[row, layer, rank] = value
    return ids


@pytest.mark.parametrize(
    ("experts", "columns", "words"),
    [
        (changed(1, 1, 0, 4), {}, "row 1, layer 1, rank 0: experts 4, but n_experts=4"),
        (changed(2, 0, 1, 300), {}, "row 2, layer 0, rank 1: experts 300, but n_experts=4"),
        (changed(2, 1, 1, 2), {}, "row 2, layer 1: expert 2 twice in one top-2 [2, 2]"),
        (changed(1, 0, 1, -1), {}, "row 1, layer 0, rank 1: absent, but other ranks are not"),
        (PAIRS * 0, {}, "row 0, layer 0: expert 0 twice"),
        (PAIRS[:0], {}, "no tokens; a trace needs at least one row"),
        (PAIRS[0], {}, "experts must be whole numbers [tokens, layers, k], not int64 [2, 2]"),
        (PAIRS + 0.5, {}, "experts must be whole numbers [tokens, layers, k], not float64 [3, 2, 2]"),
        (PAIRS, {"step": [0, 2, 1]}, "row 2: step 1 after step 2; steps never fall"),
        (PAIRS, {"step": [-1, 0, 1]}, "row 0: step -1; it must not be negative"),
        (PAIRS, {"position": [0, -5, 1]}, "row 1: position -5; it must not be negative"),
        (PAIRS, {"request": [0, 0, 2**31]}, "row 2: request 2147483648"),
        (PAIRS, {"phase": [0, 1, 2]}, "row 2: phase 2; it must lie in 0 to 1"),
        (PAIRS, {"phase": [0, 1]}, "phase must be 3 whole numbers, one per token"),
        (PAIRS, {"weights": PAIRS[:2] * 0.1}, "weights must be numbers [3, 2, 2] like experts"),
        (PAIRS, {"weights": PAIRS * np.nan}, "row 0, layer 0, rank 0: weight nan; weights must be finite"),
        (PAIRS, {"weights": PAIRS * 1e9}, "row 0, layer 0, rank 1: weight inf; weights must be finite"),
        (PAIRS, {"predicted": PAIRS[:, :1]}, "predicted must be whole numbers [3, 2, P], not int64 [3, 1, 2]"),
        (PAIRS, {"predicted": {2: PAIRS}}, "predictions at horizon 2 of a trace with 2 layers"),
        (PAIRS, {"predicted": PAIRS + 300}, "predicted 300"),
        (PAIRS, {"row_bytes": [5]}, "row_bytes lists 1 sizes for n_layers=2"),
        (PAIRS, {"row_bytes": [5, 0]}, "row_bytes=0, but it must be a whole number from 1"),
        (PAIRS, {"model_layers": [3, 3]}, "model_layers must be 2 rising layer numbers"),
        (PAIRS, {"model": 3}, "model must be text, not 3"),
        (PAIRS, {"n_experts": 70_000}, "n_experts=70000, but it must be a whole number from 1 to 65535"),
        (PAIRS, {"n_experts": 1}, "top_k=2, but it must be a whole number from 1 to 1"),
    ],
)
def test_a_broken_rule_is_named_with_its_row_and_value(experts, columns, words):
    with pytest.raises(BadTrace) as refused:
        Trace.from_arrays(experts, **{"n_experts": 4, **columns})
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_prediction_of_no_expert_is_kept_for_a_replay_counts_it():
    trace = Trace.from_arrays(PAIRS, n_experts=4, predicted=PAIRS + 200)
    assert whole(trace, predicted=True)["predicted"][1].tolist() == [[201, 200], [203, 201], [202, 203]]


def test_bytes_cannot_hold_predictions_when_expert_255_exists():
    with pytest.raises(BadTrace, match="predicted is uint8, where 255 means none, but n_experts=256"):
        Trace.from_arrays(PAIRS, n_experts=256, predicted=PAIRS.astype(np.uint8))


def test_what_was_not_recorded_cannot_be_asked_for():
    with pytest.raises(BadTrace, match="no predictions at horizon 1; recorded: none"):
        next(tiny().blocks(predicted=True))
    with pytest.raises(BadTrace, match="no router weights recorded"):
        next(tiny().blocks(weights=True))


@pytest.mark.parametrize("layer", [-1, 1])
def test_a_layer_that_is_not_there_is_an_index_error(layer):
    with pytest.raises(IndexError, match=f"no layer {layer}; it has layers 0 to 0"):
        tiny().layer(layer)


def test_a_trace_says_what_it_is():
    assert repr(tiny(model="toy")) == "<Trace arrays: toy, 5 tokens x 1 layers, top 1 of 4>"


def test_the_tidy_view_has_a_line_per_rank_and_none_for_absent_layers():
    experts = PAIRS.copy()
    experts[1, 0] = -1
    frame = Trace.from_arrays(experts, n_experts=4, weights=PAIRS / 4, phase=[0, 1, 1]).to_polars()
    assert frame.columns == ["token", "request", "step", "position", "phase", "layer", "rank", "expert", "weight"]
    assert frame.height == 10
    assert frame.row(1) == (0, 0, 0, 0, "prefill", 0, 1, 1, 0.25)
    assert frame.filter(token=1)["layer"].to_list() == [1, 1]
    assert tiny().to_pandas()["expert"].tolist() == [0, 1, 2, 0, 1]


@pytest.mark.parametrize("field", [{"requests": [{"id": 0, "x": float("nan")}]}, {"predictor": {"x": {1, 2}}}])
def test_what_a_file_could_not_carry_is_refused_when_the_trace_is_made(field):
    with pytest.raises(BadTrace, match="predictor and requests must be JSON, without NaN and Infinity"):
        tiny(**field)


def test_a_warning_about_a_trace_points_at_the_line_that_asked_for_it(tmp_path):
    np.savez(tmp_path / "t.npz", experts=np.array([[[0, 1]], [[1, 2]]]))
    with pytest.warns(TraceWarning) as warned:
        open_trace(tmp_path / "t.npz")
    assert {one.filename for one in warned} == {__file__}


@pytest.mark.parametrize(
    ("given", "words"),
    [({"experts": [[[0, 1], [2]]]}, "experts is no array"), ({"weights": [[[1], [1, 2]]]}, "weights is no array"),
     ({"step": [[0], [0, 1]]}, "step is no array"), ({"predicted": {"1": [[[0], [1]]]}}, "at horizon '1' of a trace"),
     ({"predicted": {1.0: [[[0], [1]]]}}, "at horizon 1.0 of a trace")],
)  # fmt: skip
def test_lists_that_are_no_arrays_are_refused_in_one_line(given, words):
    with pytest.raises(BadTrace) as refused:
        Trace.from_arrays(**{"experts": [[[0, 1], [2, 3]]], "n_experts": 4} | given)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_same_rows_over_experts_of_other_bytes():
    trace = tiny(row_bytes=[10])
    other = trace.with_row_bytes([30])
    assert (trace.row_bytes, other.row_bytes, other.token_cycle_bytes) == ((10,), (30,), 30)
    assert other.sha256 == trace.sha256
    for wrong, told in (([1, 2], "row_bytes lists 2 sizes for n_layers=1"), ([0], "row_bytes=0"), ([1.5], "row_bytes")):
        with pytest.raises(BadTrace, match=told):
            trace.with_row_bytes(wrong)


def test_weights_that_are_given_stay_as_they_are_and_may_be_read_only():
    given = np.full((2, 1, 1), 0.5, np.float16)
    given.setflags(write=False)
    trace = Trace.from_arrays(np.array([[[0]], [[-1]]]), n_experts=4, weights=given)
    assert trace.read("weights", 0, 2).ravel().tolist() == [0.5, 0]
    assert given.ravel().tolist() == [0.5, 0.5]
