"""Synthetic traces: seeded, and each property is as strong as it was asked for."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_cases import whole

from slotwise.traces import BadTrace, Trace

EVEN = {"skew": 0, "reuse": 0, "correlation": 0, "topics": 1}


def facts(**options):
    return Trace.synthesise(
        **{"n_tokens": 3000, "n_layers": 4, "n_experts": 64, "top_k": 4, **EVEN, **options}
    ).describe()


def test_the_same_seed_gives_the_same_trace_and_another_seed_another():
    one, same, other = (Trace.synthesise(n_tokens=200, n_layers=3, width=3, seed=seed) for seed in (1, 1, 2))
    expected, found = whole(one, predicted=True), whole(same, predicted=True)
    assert all(np.array_equal(expected[name], found[name]) for name in expected)
    assert one.sha256 == same.sha256 != other.sha256


def test_a_seed_keeps_its_meaning():
    assert Trace.synthesise(n_tokens=100, n_layers=2, n_experts=16, top_k=2, seed=7).sha256.startswith("07b957d3e103")


@given(
    n_experts=st.sampled_from([1, 2, 8, 255, 256]), top_k=st.integers(1, 8), skew=st.sampled_from([0.0, 1.0, 20.0]),
    reuse=st.sampled_from([0.0, 0.5, 1.0]), width=st.integers(0, 6), seed=st.integers(0, 2**64 - 1),
)  # fmt: skip
def test_every_trace_keeps_the_rules_of_a_capture(n_experts, top_k, skew, reuse, width, seed):
    top_k, width = min(top_k, n_experts), min(width, n_experts)
    trace = Trace.synthesise(
        n_tokens=30, n_layers=3, n_experts=n_experts, top_k=top_k, skew=skew, reuse=reuse, correlation=(1 - reuse) / 2,
        width=width, requests=3, prompt_tokens=4, topic_tokens=5, seed=seed,
    )  # fmt: skip
    found = whole(trace, predicted=width > 0)
    ids = found["experts"].transpose(1, 0, 2)
    columns = {"request": found["row_request"], "position": found["position"], "phase": found["row_phase"]}
    again = Trace.from_arrays(ids, n_experts=n_experts, **columns)  # checks every rule
    assert again.sha256 == trace.sha256
    assert found["starts"].tolist() == [0, *range(4, 11), *range(14, 21), *range(24, 31)]
    assert found["phase"].tolist() == [0, *[1] * 6] * 3
    if width:
        ahead = found["predicted"][1:]
        real = np.where(ahead == np.iinfo(ahead.dtype).max, np.arange(width) + n_experts, ahead.astype(int))
        assert (np.diff(np.sort(real, axis=2), axis=2) > 0).all()
        assert (found["predicted"][0] == np.iinfo(ahead.dtype).max).all()


def test_without_skew_experts_are_drawn_evenly_and_tokens_meet_by_chance():
    even = facts()
    assert even["layers"]["entropy_bits"] == pytest.approx([6] * 4, abs=0.02)
    assert even["overlap"]["previous"] == pytest.approx(4 / 64, abs=0.005)


def test_skew_makes_a_few_experts_popular():
    gini = [np.mean(facts(skew=skew)["layers"]["gini"]) for skew in (0, 0.5, 1.0)]
    assert gini[0] < 0.1 < gini[1] < gini[2]


def test_reuse_is_the_overlap_with_the_token_before_beyond_chance():
    """Of 4 experts a share r is repeated, and of the others 4 / 64 meet by chance, a little less as some are taken."""
    for reuse in (0.25, 0.5):
        overlap = facts(reuse=reuse)["overlap"]
        assert overlap["previous"] == pytest.approx(reuse + (1 - reuse) * 4 / 64, abs=0.01)
        assert overlap["shuffled"] == pytest.approx(4 / 64, abs=0.01)


def test_correlation_ties_a_layer_to_the_one_before_by_a_fixed_pairing():
    def surest_partner(correlation):
        options = {"n_tokens": 3000, "n_layers": 2, "n_experts": 64, "top_k": 4, **EVEN}
        ids = whole(Trace.synthesise(**{**options, "correlation": correlation}))["experts"]
        together = np.zeros((64, 64), int)
        np.add.at(together, (ids[0], ids[1]), 1)
        return (together.max(axis=1) / together.sum(axis=1)).mean()

    assert surest_partner(0) < 0.1
    assert surest_partner(0.5) == pytest.approx(0.5, abs=0.05)


def test_topics_drift_apart_by_the_share_asked_for():
    def distance(drift):
        """Mean total variation between the popularity in neighbouring thirds of the trace."""
        options = {**EVEN, "skew": 1.0, "topics": 50, "topic_tokens": 1000, "drift": drift, "seed": 3}
        ids = Trace.synthesise(n_tokens=9000, n_layers=1, n_experts=64, top_k=4, **options).layer(0)
        shares = [np.bincount(part.ravel(), minlength=64) / part.size for part in np.split(ids, 9)]
        return np.mean([np.abs(a - b).sum() / 2 for a, b in pairwise(shares)])

    assert distance(0) < 0.06
    assert distance(0) < distance(0.3) - 0.05 < distance(1) - 0.1


def test_predictions_have_the_recall_asked_for():
    (record,) = facts(width=6, recall=0.7)["predictions"]
    assert record["recall"][3] == pytest.approx(0.7, abs=0.01)
    assert record["precision"][3] == pytest.approx(0.7, abs=0.01)
    assert record["recall"][5] == record["recall"][3]  # past top-k every entry is a wrong one
    assert record["recall_by_layer"][0] == [None] * 6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_layers": 0}, "synth: n_layers=0"),
        ({"n_experts": 70_000}, "synth: n_experts=70000"),
        ({"top_k": 200}, "synth: top_k=200, but it must be a whole number from 1 to 128"),
        ({"n_tokens": 0}, "synth: n_tokens=0"),
        ({"reuse": 0.7, "correlation": 0.5}, "synth: reuse + correlation=1.2; it must lie in 0 to 1"),
        ({"recall": 2}, "synth: recall=2; it must lie in 0 to 1"),
        ({"width": 129}, "synth: width=129, but it must be a whole number from 0 to 128"),
        (
            {"requests": 4, "n_tokens": 8, "prompt_tokens": 3},
            "synth: prompt_tokens=3, but it must be a whole number from 0 to 2",
        ),
        ({"seed": -1}, "synth: seed=-1"),
        ({"row_bytes": 0}, "synth: row_bytes=0"),
    ],
)
def test_options_out_of_range_are_named(options, words):
    with pytest.raises(BadTrace) as refused:
        Trace.synthesise(**options)
    assert words in str(refused.value)


@pytest.mark.parametrize("shape", [{"n_tokens": 2**31 - 1, "n_layers": 100_000}, {"n_layers": 100_000, "topics": 4096}])
def test_a_trace_that_no_memory_holds_is_refused_with_its_size(shape):
    with pytest.raises(BadTrace, match=r"synth: .* take [\d,.]+ GiB of memory, but this machine has .*; ask for fewer"):
        Trace.synthesise(**{"n_experts": 65535, "top_k": 1} | shape)


@pytest.mark.parametrize("name", ["n_tokens", "n_layers", "n_experts", "top_k", "topics", "width", "requests", "seed"])
@pytest.mark.parametrize("value", [1.5, "1", True, -1, 10**30])
def test_a_number_that_counts_must_be_whole(name, value):
    with pytest.raises(BadTrace, match=f"synth: {name}=.*whole number from"):
        Trace.synthesise(**{"n_tokens": 9, "n_layers": 2, "n_experts": 4, "top_k": 1} | {name: value})


@pytest.mark.parametrize("value", ["x", None, True, float("nan"), 2])
def test_a_share_lies_in_0_to_1(value):
    with pytest.raises(BadTrace, match=r"synth: recall=.*; it must lie in 0 to 1"):
        Trace.synthesise(recall=value)
