"""Predictors: small cases by hand, slow twins under hypothesis, and the words for what cannot be predicted."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_cases import arrays

import slotwise
from slotwise.traces import BadTrace, Trace, list_predictors, make_predictor, open_trace

NONE = 255
TWO = np.array([[[0, 1], [4, 5]], [[2, 1], [5, 6]], [[3, 0], [6, 4]]])  # 3 tokens, 2 layers, top 2 of 8


def predicted(trace, name, width, horizon=1, reset="persistent", **params):
    predictor = make_predictor(name, params, trace, width, horizon, reset)
    blocks = trace.blocks(predicted=predictor.needs_predicted, horizon=horizon)
    return np.concatenate([predictor.predict(block)[:, :, :width] for block in blocks], axis=1)


def two(**columns):
    return Trace.from_arrays(TWO, n_experts=8, **columns)


def test_the_recorded_predictions_are_cut_to_the_width_asked_for():
    trace = two(predicted=np.array([[[7, 7, 7], [0, 1, 2]], [[7, 7, 7], [3, -1, 4]], [[7, 7, 7], [5, 6, 7]]]))
    assert predicted(trace, "trace", 2).tolist() == [[[NONE] * 2] * 3, [[0, 1], [3, NONE], [5, 6]]]
    options = {"slots": 4, "width": 2, "plan_hash": True}
    kept = two(predicted=np.array([[[7, 7], [0, 1]], [[7, 7], [3, -1]], [[7, 7], [5, 6]]]))
    wide, narrow = (slotwise.replay(each, "lru", **options) for each in (trace, kept))
    assert wide.counters["predictions"] == 5
    assert (wide.counters, wide.plan_sha256) == (narrow.counters, narrow.plan_sha256)


def test_the_oracle_knows_the_demand_in_router_rank_and_no_more():
    assert predicted(two(), "oracle", 1).tolist() == [[[NONE]] * 3, [[4], [5], [6]]]
    assert predicted(two(), "oracle", 3)[1].tolist() == [[4, 5, NONE], [5, 6, NONE], [6, 4, NONE]]


def test_previous_repeats_the_step_before_in_order_of_demand():
    assert predicted(two(), "previous", 2)[1].tolist() == [[NONE, NONE], [4, 5], [5, 6]]
    assert predicted(two(), "previous", 3)[1].tolist() == [[NONE] * 3, [4, 5, NONE], [5, 6, NONE]]


def test_a_list_for_a_step_of_several_tokens_is_read_rank_by_rank():
    """Step 0 demands 4 5 | 5 6 = 4 5 6; step 1 has two tokens: 4 and 5 are its first rank, 6 begins the second."""
    experts = np.concatenate([TWO[:2], TWO[2:], TWO[2:]])
    trace = Trace.from_arrays(experts, n_experts=8, step=[0, 0, 1, 1])
    assert predicted(trace, "previous", 2)[1, 2:].tolist() == [[4, 6], [5, NONE]]


def test_frequency_puts_the_most_demanded_first_and_ties_in_order_of_id():
    """Layer 1 demands 4 5 | 5 6 | 6 4: after two steps 5 leads with two ticks, then 4 and 6 with one."""
    experts = np.concatenate([TWO, TWO[:1]])
    trace = Trace.from_arrays(experts, n_experts=8)
    assert predicted(trace, "frequency", 3)[1].tolist() == [[NONE] * 3, [4, 5, NONE], [5, 4, 6], [4, 5, 6]]


def test_coupled_sums_how_often_the_experts_of_the_layer_before_came_with_those_of_this_one():
    """0 1 -> 4 5, 2 1 -> 5 6, 3 0 -> 6 4, then 0 1 again: 1 came with 4 5 5 6, 0 with 4 5 6 4, so 4 and 5 lead."""
    trace = Trace.from_arrays(np.concatenate([TWO, TWO[:1]]), n_experts=8)
    assert predicted(trace, "coupled", 3)[1].tolist() == [[NONE] * 3, [4, 5, NONE], [4, 5, NONE], [4, 5, 6]]
    apart = Trace.from_arrays(np.array([[[0], [1], [2]], [[3], [1], [5]], [[0], [4], [7]]]), n_experts=8)
    assert predicted(apart, "coupled", 1)[2].tolist() == [[NONE], [2], [NONE]]
    assert predicted(apart, "coupled", 1, horizon=2)[2].tolist() == [[NONE], [NONE], [2]]


def test_coupled_refuses_more_pairs_than_memory_is_for():
    with pytest.raises(BadTrace, match="pairs of 60000 experts over 2 layers take 28800000000 bytes"):
        make_predictor("coupled", {}, Trace.from_arrays(np.zeros((1, 2, 1), int), n_experts=60000), 1)


def test_an_expert_counts_once_a_tick_however_many_tokens_chose_it():
    experts = np.array([[[0], [3]], [[0], [3]], [[0], [3]], [[0], [1]], [[0], [1]], [[0], [2]]])
    trace = Trace.from_arrays(experts, n_experts=4, step=[0, 0, 0, 1, 2, 3])
    assert predicted(trace, "frequency", 2)[1, 5].tolist() == [1, 3]


@pytest.mark.parametrize(("name", "third"), [("previous", 5), ("frequency", 5), ("coupled", 4)])
def test_history_can_start_anew_at_each_request(name, third):
    trace = two(request=[0, 0, 1], group_rows=1)
    assert predicted(trace, name, 1)[1].tolist() == [[NONE], [4], [third]]
    assert predicted(trace, name, 1, reset="request")[1].tolist() == [[NONE], [4], [NONE]]
    again = Trace.from_arrays(TWO[[0, 0, 0, 0]], n_experts=8, request=[0, 0, 1, 1], group_rows=1)
    assert predicted(again, name, 1, reset="request")[1].tolist() == [[NONE], [4], [NONE], [4]]


def test_none_predicts_nothing():
    assert (predicted(two(), "none", 4) == NONE).all()


@pytest.mark.parametrize("name", ["previous", "frequency", "oracle", "noisy"])
@pytest.mark.parametrize("horizon", [1, 2])
def test_the_first_layers_are_never_predicted(name, horizon):
    trace = Trace.synthesise(n_tokens=50, n_layers=4, n_experts=16, top_k=4)
    found = predicted(trace, name, 2, horizon)
    assert (found[:horizon] == NONE).all()
    assert (found[horizon:, 1:] != NONE).all()


def test_noisy_is_right_as_often_as_it_says():
    trace = Trace.synthesise(n_tokens=2000, n_layers=4, n_experts=64, top_k=8)
    truth = next(trace.blocks()).experts[1:]
    for recall in (0.0, 0.3, 0.8, 1.0):
        found = predicted(trace, "noisy", 8, recall=recall)[1:]
        right = (found[..., None] == truth[..., None, :]).any(axis=3)
        assert abs(right.mean() - recall) < 0.01
        assert ((found == truth) == right).all()  # what is right keeps its rank
        assert (np.diff(np.sort(found, axis=2), axis=2) > 0).all()
        assert (found < 64).all()


def test_noisy_depends_on_its_seed_and_neither_on_width_nor_on_blocks(tmp_path):
    trace = Trace.synthesise(n_tokens=100, n_layers=3, n_experts=16, top_k=4)
    trace.save(tmp_path / "t.parquet", group_rows=7)
    wide = predicted(trace, "noisy", 4, recall=0.5, seed=3)
    assert np.array_equal(predicted(open_trace(tmp_path / "t.parquet"), "noisy", 4, recall=0.5, seed=3), wide)
    assert np.array_equal(predicted(trace, "noisy", 2, recall=0.5, seed=3), wide[..., :2])
    assert not np.array_equal(predicted(trace, "noisy", 4, recall=0.5, seed=4), wide)


def test_noisy_says_nothing_when_every_expert_is_wanted():
    trace = Trace.from_arrays(np.array([[[0, 1], [1, 0]]]), n_experts=2)
    assert predicted(trace, "noisy", 2, recall=0)[1].tolist() == [[NONE, NONE]]


def twin(trace, name, width, horizon):
    """One list per tick from everything before it, laid out by division; slow and plain."""
    (block,) = trace.blocks()
    none = np.iinfo(block.experts.dtype).max
    out = np.full((*block.experts.shape[:2], width), none, block.experts.dtype)
    for layer in range(horizon, trace.n_layers):
        previous, heat, together = [], Counter(), Counter()
        for start, stop in zip(block.starts, block.starts[1:], strict=False):
            causes, wanted = (list(dict.fromkeys(int(e) for e in block.experts[at, start:stop].ravel() if e != none))
                              for at in (layer - horizon, layer))  # fmt: skip
            score = heat
            if name == "coupled":
                score = Counter()
                for (a, b), count in together.items():
                    score[b] += count * (a in causes)
            ranked = sorted((e for e in score if score[e]), key=lambda e: (-score[e], e))
            guess = previous if name == "previous" else ranked
            for j, e in enumerate(guess[: width * (stop - start)]):
                out[layer, start + j % (stop - start), j // (stop - start)] = e
            previous = wanted
            heat.update(wanted)
            together.update((a, b) for a in causes for b in wanted)
    return out


@given(
    case=arrays(), name=st.sampled_from(["previous", "frequency", "coupled"]), width=st.integers(1, 5),
    horizon=st.integers(1, 3), group_rows=st.integers(1, 40),
)  # fmt: skip
def test_the_fast_predictors_say_what_their_slow_twins_say(case, name, width, horizon, group_rows):
    trace = Trace.from_arrays(**case)
    expected = twin(trace, name, width, horizon)
    assert np.array_equal(predicted(trace, name, width, horizon), expected)
    assert np.array_equal(predicted(Trace.from_arrays(**case, group_rows=group_rows), name, width, horizon), expected)


@pytest.mark.parametrize("name", ["previous", "frequency", "coupled", "noisy"])
def test_a_predictor_that_is_reset_says_the_same_again(name):
    trace = Trace.synthesise(n_tokens=60, n_layers=3, n_experts=16, top_k=2)
    predictor = make_predictor(name, {}, trace, 2)
    (block,) = trace.blocks()
    first = predictor.predict(block)
    again = predictor.predict(block)
    predictor.reset()
    assert np.array_equal(predictor.predict(block), first)
    assert not np.array_equal(again, first)


@pytest.mark.parametrize(
    ("name", "params", "width", "words"),
    [
        ("orcale", {}, 1, "no predictor named 'orcale'; known: coupled, frequency, noisy, none, oracle, previous, tr"),
        ("noisy", {"recal": 1}, 1, "predictor noisy has no parameter 'recal'; it takes recall=0.8, seed=0"),
        ("oracle", {"x": 1}, 1, "predictor oracle has no parameter 'x'; it takes no parameters"),
        ("noisy", {"recall": 1.5}, 1, "predictor noisy: recall=1.5; it must lie in 0 to 1"),
        ("noisy", {"seed": -1}, 1, "predictor noisy: seed=-1; it must be a whole number"),
        ("previous", {}, 0, "predictor previous: width=0, horizon=1; both must be 1 or more"),
        ("trace", {}, 1, "has no recorded predictions at horizon 1; width 1 needs a predictor that makes them:"),
    ],
)  # fmt: skip
def test_what_cannot_be_predicted_is_said_with_the_way_out(name, params, width, words):
    with pytest.raises(BadTrace) as refused:
        make_predictor(name, params, two(), width)
    assert words in str(refused.value)


def test_a_width_above_the_recorded_one_is_an_error_that_names_it():
    with pytest.raises(BadTrace, match="width 9 is above the 8 predictions that trace sample records at horizon 1"):
        make_predictor("trace", {}, open_trace("sample"), 9)


def test_the_list_of_predictors_has_their_parameters_and_sources():
    rows = {row["name"]: row for row in list_predictors()}
    assert sorted(rows) == ["coupled", "frequency", "noisy", "none", "oracle", "previous", "trace"]
    assert rows["noisy"]["parameters"] == {"recall": 0.8, "seed": 0}
    assert all(row["description"] and row["source"] for row in rows.values())
