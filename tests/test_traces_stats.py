"""What `describe` computes, by hand; profiles; and the signs of a broken capture."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_cases import arrays, tiny

from slotwise.traces import BadTrace, Trace
from slotwise.traces.profile import profile
from slotwise.traces.suspects import suspects

NINE = [[0, 1], [1, 2], [0, 1]]  # 3 tokens, top 2: A B | B C | A B


def layers(*rows, **columns):
    """A trace from one list of rows per layer."""
    return Trace.from_arrays(np.array(rows).transpose(1, 0, 2), **{"n_experts": 4, **columns})


def test_overlap_is_the_share_of_experts_that_the_token_before_chose_too():
    """A B | B C | A B: B is kept, then B is kept: 2 of 4."""
    facts = layers(NINE).describe()
    assert facts["overlap"]["previous"] == 0.5
    assert facts["overlap"]["uniform"] == 0.5
    assert facts["layers"]["overlap_previous"] == [0.5]


def test_the_token_before_is_of_the_same_request():
    """Requests x: A B | A B and y: B C alternate; x repeats itself fully, y has one token."""
    assert layers(NINE, request=[0, 1, 0]).describe()["overlap"]["previous"] == 1.0
    assert layers(NINE, request=[0, 1, 2]).describe()["overlap"]["previous"] is None


def test_the_shuffled_control_keeps_the_skew_and_loses_the_order():
    runs = np.repeat(np.arange(64), 50).reshape(-1, 1, 1)  # each expert 50 tokens in a row
    facts = Trace.from_arrays(runs, n_experts=64).describe(seed=1)
    assert facts["overlap"]["previous"] == pytest.approx(1 - 63 / 3199)
    assert facts["overlap"]["shuffled"] == pytest.approx(1 / 64, abs=0.01)
    assert facts["overlap"] == Trace.from_arrays(runs, n_experts=64).describe(seed=1)["overlap"]
    assert facts["overlap"] != Trace.from_arrays(runs, n_experts=64).describe(seed=2)["overlap"]


def test_entropy_and_gini_are_those_of_the_shares():
    """A B | B C | A B chose A 2, B 3, C 1, D 0 times."""
    found = layers(NINE).describe()["layers"]
    assert found["entropy_bits"] == [pytest.approx(-sum(n / 6 * math.log2(n / 6) for n in (2, 3, 1)))]
    assert found["gini"] == [pytest.approx(sum(abs(a - b) for a in (0, 1, 2, 3) for b in (0, 1, 2, 3)) / (2 * 4 * 6))]
    assert (found["experts_seen"], found["top_share"]) == ([3], [0.5])


def test_a_layer_of_one_expert_has_no_entropy_and_an_even_one_no_gini():
    one, even = np.zeros((8, 1, 1), int), np.arange(8).reshape(8, 1, 1) % 4
    found = [Trace.from_arrays(ids, n_experts=4).describe()["layers"] for ids in (one, even)]
    assert [facts["entropy_bits"] for facts in found] == [[0.0], [2.0]]
    assert [facts["gini"] for facts in found] == [[0.75], [0.0]]


def test_first_touch_counts_layers_times_experts_seen_so_far():
    """Layer 0 has seen 2, 3, 3 experts after each token, layer 1 has seen 2, 2, 4."""
    curve = layers(NINE, [[0, 1], [1, 0], [2, 3]]).describe()["first_touch"]
    assert curve == {"tokens": [1, 2, 3], "experts": [4, 5, 7], "of": 8}


def test_phases_count_tokens_and_steps():
    facts = layers(NINE, phase=[0, 0, 1], step=[0, 0, 1]).describe()
    assert facts["phases"] == {
        "prefill": {"tokens": 2, "steps": 1, "largest_step": 2},
        "decode": {"tokens": 1, "steps": 1, "largest_step": 1},
    }


def test_recall_and_precision_by_width():
    """Layer 1 wants A B | B C | A B. Predictions: A C | D - | A A, so right: A; none; A once, the repeat is wrong."""
    ahead = np.array([[[0, 0], [0, 2]], [[0, 0], [3, -1]], [[0, 0], [0, 0]]])
    trace = layers(NINE, NINE, predicted=ahead)
    (record,) = trace.describe()["predictions"]
    assert (record["horizon"], record["width"]) == (1, 2)
    assert record["recall"] == [2 / 6, 2 / 6]
    assert record["precision"] == [2 / 3, 2 / 5]
    assert record["recall_by_layer"] == [[None, None], [2 / 6, 2 / 6]]


def test_baselines_are_the_token_before_and_the_most_chosen_so_far():
    """Layer 1: A B | B C | A B | B D, one request. By width 1 the token before says -, A, B, A: wrong thrice.

    By width 2 it says - | A B | B C | A B, of which B, B and B are right. Chosen most: nothing | A B (1 each) |
    B A (2, 1) | B A (3, 2): by width 1 none, B, B; by width 2 B, B A, B.
    """
    four = [*NINE, [1, 3]]
    (record,) = layers(four, four, predicted=np.zeros((4, 2, 2), int)).describe()["predictions"]
    previous, frequency = record["baselines"]["previous"], record["baselines"]["frequency"]
    assert previous["recall_by_layer"] == [[None, None], [1 / 8, 3 / 8]]
    assert previous["precision_by_layer"] == [[None, None], [1 / 3, 3 / 6]]
    assert frequency["recall"] == [2 / 8, 4 / 8]
    assert frequency["precision"] == [2 / 3, 4 / 6]


def test_the_token_before_of_a_baseline_is_of_the_same_request():
    """Requests x: A B | A B and y: B C alternate: one token of three has one before it, and repeats it."""
    trace = layers(NINE, NINE, request=[0, 1, 0], predicted=np.zeros((3, 2, 2), int))
    (record,) = trace.describe()["predictions"]
    assert record["baselines"]["previous"]["recall"] == [1 / 6, 2 / 6]
    assert record["baselines"]["previous"]["precision"] == [1.0, 1.0]


def test_each_horizon_has_its_own_figures_over_the_layers_it_reaches():
    """Three layers alike. Two layers ahead only layer 2 is predicted, and its baselines are counted there alone."""
    right = np.array([NINE, NINE, NINE]).transpose(1, 0, 2)
    near, far = layers(NINE, NINE, NINE, predicted={1: right, 2: right[..., :1]}).describe()["predictions"]
    assert [(r["horizon"], r["width"], r["recall"]) for r in (near, far)] == [(1, 2, [0.5, 1.0]), (2, 1, [0.5])]
    assert near["recall_by_layer"] == [[None, None], [0.5, 1.0], [0.5, 1.0]]
    assert far["recall_by_layer"] == [[None], [None], [0.5]]
    assert far["baselines"]["previous"]["recall_by_layer"] == [[None], [None], [1 / 6]]
    assert near["baselines"]["previous"]["recall"][0] == far["baselines"]["previous"]["recall"][0] == 1 / 6


@given(case=arrays())
def test_baselines_are_those_of_a_loop_over_tokens(case):
    """The twin: token by token, with lists and counts in dictionaries."""
    trace = Trace.from_arrays(**case)
    for record in trace.describe()["predictions"]:
        experts = trace.read("experts", 0, trace.n_tokens).astype(int)
        request = trace.rows("request")["request"].tolist()
        for name, rates in record["baselines"].items():
            for layer in range(record["horizon"], trace.n_layers):
                right, given, wanted = np.zeros(record["width"]), np.zeros(record["width"]), 0
                counts, last = dict.fromkeys(range(trace.n_experts), 0), {}
                for row, ids in enumerate(experts[layer].tolist()):
                    there = ids[0] < trace.n_experts
                    if name == "previous":
                        said = last.get(request[row], [])
                    else:
                        said = sorted((e for e in counts if counts[e]), key=lambda e: (-counts[e], e))
                    if there:
                        wanted += len(ids)
                        for width in range(record["width"]):
                            right[width] += len(set(said[: width + 1]) & set(ids))
                            given[width] += len(said[: width + 1])
                    last[request[row]] = ids if there else []
                    for e in ids if there else []:
                        counts[e] += 1
                assert rates["recall_by_layer"][layer] == [r / wanted if wanted else None for r in right]
                expected = [r / g if g else None for r, g in zip(right, given, strict=True)]
                assert rates["precision_by_layer"][layer] == expected


@given(case=arrays())
def test_any_trace_can_be_described_as_json(case):
    facts = Trace.from_arrays(**case).describe()
    assert json.loads(json.dumps(facts)) == json.loads(json.dumps(facts, allow_nan=False))
    assert facts["first_touch"]["experts"][-1] == sum(facts["layers"]["experts_seen"])
    assert sum(phase["tokens"] for phase in facts["phases"].values()) == facts["n_tokens"]
    assert sum(phase["steps"] for phase in facts["phases"].values()) == facts["n_steps"]


# -- profiles ---------------------------------------------------------------------------------------------------------


def test_a_profile_counts_ticks_of_decode_steps():
    """Step 0 is prefill; step 1 has two tokens that both choose B, which counts once; step 2 chooses A B."""
    trace = layers([*NINE, [0, 1]], phase=[0, 1, 1, 1], step=[0, 1, 1, 2])
    assert profile([trace])["counts"] == [[2, 2, 1, 0]]
    assert profile([trace], "prefill")["counts"] == [[1, 1, 0, 0]]
    assert profile([trace], "all")["counts"] == [[3, 3, 1, 0]]


def test_profiles_add_up_over_traces_and_name_them():
    one, two = layers(NINE, name="one"), layers([[2, 3]], name="two")
    merged = profile([one, two])
    assert merged["counts"] == [[2, 3, 2, 1]]
    assert merged["traces"] == [{"name": "one", "sha256": one.sha256}, {"name": "two", "sha256": two.sha256}]
    assert (merged["format"], merged["version"], merged["n_layers"], merged["n_experts"]) == (
        "slotwise.profile",
        1,
        1,
        4,
    )


@given(case=arrays(), phase=st.sampled_from(["decode", "prefill", "all"]))
def test_a_profile_agrees_with_counting_by_hand(case, phase):
    trace = Trace.from_arrays(**case)
    counts = np.zeros((trace.n_layers, trace.n_experts), int)
    (block,) = trace.blocks()
    for code, a, b in zip(block.phase, block.starts, block.starts[1:], strict=False):
        if phase == "all" or ("prefill", "decode")[code] == phase:
            for layer in range(trace.n_layers):
                wanted = set(block.experts[layer, a:b].ravel().tolist())
                counts[layer, [e for e in wanted if e < trace.n_experts]] += 1
    if counts.any():
        assert profile([trace], phase)["counts"] == counts.tolist()
    else:
        with pytest.raises(BadTrace, match=f"profile: no {phase} step in arrays"):
            profile([trace], phase)


def test_a_profile_is_of_one_model(tmp_path):
    with pytest.raises(BadTrace, match="arrays has 1 layers of 4 experts, but arrays has 2 of 4"):
        profile([layers(NINE, NINE), tiny()])
    with pytest.raises(BadTrace, match="no phase 'decoding'; known: decode, prefill, all"):
        profile([tiny()], "decoding")
    assert Trace.profile([tiny()], tmp_path / "p.json") == json.loads((tmp_path / "p.json").read_text())


# -- captures that are known to be broken -----------------------------------------------------------------------------


def sound(n=40):
    """Rows that are not suspect: a seeded permutation each."""
    return np.argsort(np.random.default_rng(0).random((n, 2, 16)), axis=2)[..., :4]


def signs(experts, **columns):
    return suspects(Trace.from_arrays(experts, **{"n_experts": 16, **columns}))


def test_a_sound_capture_is_not_suspect():
    assert signs(sound()) == []


def test_a_layer_that_always_chooses_the_same_is_a_constant_router_in_whatever_order():
    ids = sound()
    ids[::2, 1], ids[1::2, 1] = [7, 3, 9, 1], [1, 9, 3, 7]
    assert signs(ids) == ["layer 1 chose [1, 3, 7, 9] in every row: a constant router"]


def test_a_layer_of_zeros_is_a_dense_one():
    (text,) = signs(np.concatenate([sound()[..., :1], sound()[:, :1, :1] * 0], axis=1))
    assert text == "layer 2 is all zero: a dense layer, or one that was never captured"


def test_a_layer_that_is_never_there_is_suspect():
    ids = sound()
    ids[:, 0] = -1
    assert signs(ids) == ["layer 0 is absent in every row; was it captured?"]


def test_a_warm_up_that_was_captured_too_repeats_the_first_rows():
    ids = sound()
    ids[5:10] = ids[:5]
    (text,) = signs(ids)
    assert text == "rows 0 to 4 are repeated by rows 5 to 9: a warm-up run that was captured too?"
    ids[7] = ids[20]
    assert signs(ids) == []


def test_positions_that_go_back_within_a_request_mean_that_token_order_is_lost():
    order = np.arange(40)
    order[[3, 30]] = order[[30, 3]]
    (text,) = signs(sound(), position=order)
    assert "token order lost: request 0 goes from position 30 to 4 at row 4" in text
    assert signs(sound(), position=order, request=order) == []


def test_a_last_layer_that_prefill_skips_is_pruned():
    ids = sound()
    ids[:9, 1] = -1
    (text,) = signs(ids, phase=np.arange(40) >= 10, step=np.maximum(np.arange(40) - 9, 0))
    assert text.startswith("the last layer (1) is absent in 9 of 10 prefill rows")


def test_a_top_k_in_rising_order_of_ids_was_sorted_by_someone():
    assert signs(np.sort(sound(), axis=2))[0].startswith("top-k looks unsorted: 100% of the rows")
