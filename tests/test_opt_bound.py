"""`opt` is the optimum: equal to an exhaustive search over all decisions, never beaten by a policy that it bounds."""

import itertools
import random

import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from oracle_case import case, with_profiles
from oracle_chance import NAMES, cases, policies

import slotwise

pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore::UserWarning")]  # tiny pools are warned about

SETS = [s for n in (1, 2, 3) for s in itertools.combinations(range(3), n)]  # every demand of three experts


def most_hits(demands, slots):
    """Hits of the best decisions of all: after each tick a pool may keep any of its residents and the demand."""
    best = {frozenset(): 0}
    for demand in map(frozenset, demands):
        after = {}
        for held, hits in best.items():
            hits += len(held & demand)
            for size in range(slots + 1):
                for kept in itertools.combinations(sorted(held | demand), size):
                    after[frozenset(kept)] = max(hits, after.get(frozenset(kept), 0))
        best = after
    return max(best.values())


def test_every_sequence_of_four_demands_of_three_experts_by_law():
    for demands in itertools.product(SETS, repeat=4):
        trace = case([list(d) for d in demands], n_experts=3)
        for slots in (1, 2):
            assert trace.by_law("opt", slots=slots).counters["hits"] == most_hits(demands, slots), (demands, slots)


def test_every_sequence_of_five_demands_of_three_experts_by_replay():
    """All 16807 sequences in one trace, one request each."""
    sequences = list(itertools.product(SETS, repeat=5))
    rows, step, request = [], [], []
    for i, demands in enumerate(sequences):
        for now, demand in enumerate(demands):
            rows += [[e] for e in demand]
            step += [5 * i + now] * len(demand)
            request += [i] * len(demand)
    trace = case(rows, n_experts=3, step=step, request=request)
    for slots in (1, 2):
        by_request = trace.by_replay("opt", slots=slots, reset="request").by_request
        hits = dict(zip(by_request["request"], by_request["hits"], strict=True))
        wrong = [d for i, d in enumerate(sequences) if hits[i] != most_hits(d, slots)]
        assert not wrong, (slots, wrong[0])


@pytest.mark.parametrize("run", ["by_law", "by_replay"])
@examples(100)
@given(data=st.data())
def test_no_decisions_beat_it_on_random_traces(run, data):
    trace = data.draw(cases(max_steps=8))
    scope = data.draw(st.sampled_from(["layer", "global"]))
    slots = data.draw(st.integers(1, 3))
    pools = range(trace.n_layers) if scope == "layer" else [None]
    expected = sum(most_hits(demands_of(trace, pool), slots) for pool in pools)
    assert getattr(trace, run)("opt", slots=slots, scope=scope).counters["hits"] == expected


def demands_of(trace, pool):
    """The keys demanded at each tick of a pool; None is the pool of all layers."""
    spans = list(itertools.pairwise(trace.starts))
    for first, last in spans:
        for layer in range(trace.n_layers) if pool is None else [pool]:
            yield {(layer, e) for row in trace.experts[layer][first:last] for e in row or []}


@pytest.mark.parametrize("run", ["by_law", "by_replay"])
@examples(300)
@given(data=st.data())
def test_no_policy_beats_it(run, data, tmp_path_factory):
    trace = data.draw(cases())
    rivals = [name for name in NAMES if name not in ("opt", "static")]
    policy = data.draw(policies(trace, rivals)) | {"guard": None, "pin": None}
    scope = data.draw(st.sampled_from(["layer", "global"]))
    slots = data.draw(st.integers(1, trace.n_experts))
    policy = with_profiles(policy, tmp_path_factory.mktemp("profiles"))
    rival = getattr(trace, run)(policy, slots=slots, scope=scope)
    bound = getattr(trace, run)("opt", slots=slots, scope=scope)
    assert rival.counters["hits"] <= bound.counters["hits"]
    for layer in range(trace.n_layers) if scope == "layer" else ():
        assert rival.by_layer["hits"][layer] <= bound.by_layer["hits"][layer]


def test_a_lag_of_look_ahead_is_nothing_where_there_is_none():
    trace = slotwise.synthesise(n_tokens=50, n_layers=2, n_experts=8, top_k=2)
    plain, lagging = (slotwise.replay(trace, "opt", 3, lag_prefetch=lag).counters for lag in (0, 5))
    assert plain == lagging


@pytest.mark.parametrize("kept", [{"lag_demand": 2}, {"max_loads": 1}, {"contract": "event"}])
def test_lag_and_throttle_only_lower_what_it_bounds(kept):
    rng = random.Random(5)
    for _ in range(100):
        trace = case([[rng.randrange(4)] for _ in range(12)], n_experts=4)
        bound = trace.by_law("opt", slots=2).counters["hits"]
        for policy in ("lru", "lfu", "lfru", "fifo", "belady"):
            assert trace.by_law(policy, slots=2, **kept).counters["hits"] <= bound


@pytest.mark.parametrize(
    "where",
    [
        "lab24x128/decode.npz",
        "lab24x128/text.npz",
        "gpt-oss-20b/decode.npz",
        "deepseek-v2-lite/law.npz",
        "bigmoeonedge/qwen.route.csv",
    ],
)
def test_no_policy_beats_it_on_captured_traces(shared, where):
    trace = slotwise.open_trace(shared / "traces" / where)
    slots = trace.n_experts // 4
    bound = slotwise.replay(trace, "opt", slots)
    for policy in ("lru", "fifo", "lfu(half_life=16)", "lfru(half_life=16)", "random", "belady", "lru+gate"):
        rival = slotwise.replay(trace, policy, slots)
        assert rival.counters["demands"] == bound.counters["demands"]
        assert all(a <= b for a, b in zip(rival.by_layer["hits"], bound.by_layer["hits"], strict=True)), policy
