"""Inclusion: which policies' contents at S slots always lie within those at S + 1, tick for tick.

What is declared a stack policy is proved by random search here, what is not is refuted by it. Only the declared ones
may have their whole curve computed in one pass.
"""

import itertools
import random

import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from oracle_case import Case
from oracle_chance import cases
from oracles import Oracle

GUARD = {"warm": 2, "ratio": 0.25, "counts": 4}
LOW_GUARD = {"warm": 2, "ratio": 0.0, "counts": 1}  # lets more through, so that more can go wrong
AGEING = {"half_life": 3}


class Watched(Oracle):
    """An oracle that remembers what every pool holds after every call."""

    def run(self):
        self.contents = []
        super().run()
        return self.contents

    def close(self, now, layer, kind, pool):
        super().close(now, layer, kind, pool)
        self.contents.append([frozenset(pool.rows) for pool in self.pools])


def described(name, params=None, guard=None):
    return {"name": name, "params": params or {}, "guard": guard}


HOLDS = {
    "lru": described("lru"),
    "lfu": described("lfu"),
    "lfu ageing": described("lfu", AGEING),
    "lfru": described("lfru"),
    "lfru ageing": described("lfru", AGEING),
    "random": described("random"),
    "belady": described("belady"),
    "lfu+guard": described("lfu", guard=GUARD),
    "lfu ageing+guard": described("lfu", AGEING, LOW_GUARD),
    "lfru+guard": described("lfru", guard=GUARD),
    "lfru ageing+guard": described("lfru", AGEING, LOW_GUARD),
    "lfru ageing+guard(warm=0)": described("lfru", AGEING, GUARD | {"warm": 0}),
}
FAILS = {
    "fifo": described("fifo"),
    "lru+guard": described("lru", guard=LOW_GUARD),
    "belady+guard": described("belady", guard=LOW_GUARD),
    "random+guard": described("random", guard=LOW_GUARD),
}


def included(trace, policy, **options):
    """Whether contents only grow with the slots, at every capacity from none to all."""
    keys = trace.n_experts * (trace.n_layers if options.get("scope") == "global" else 1)
    runs = [trace.by_law(policy, slots=s, engine=Watched, **options) for s in range(1, keys + 1)]
    return all(
        small <= large
        for fewer, more in itertools.pairwise(runs)
        for at_fewer, at_more in zip(fewer, more, strict=True)
        for small, large in zip(at_fewer, at_more, strict=True)
    )


@st.composite
def situations(draw):
    """A trace with a look-ahead over it, or none, under any option that inclusion is claimed for."""
    trace = draw(cases(max_steps=10))
    rng = random.Random(draw(st.integers(0, 2**32 - 1)))
    ahead = {"width": rng.randint(0, len(trace.predicted[1][0][0]))} if trace.predicted else {}
    return trace, {
        **ahead,
        "scope": rng.choice(["layer", "layer", "global"]),
        "contract": rng.choice(["event", "event", "sequential"]),
        "overflow": rng.choice(["bypass", "bypass", "exceed"]),
        "prefill": rng.choice(["cached", "stream"]),
        "batch_gate": rng.choice([1, 2, 8]),
    }


@pytest.mark.parametrize("policy", HOLDS)
@examples(60)
@given(situation=situations())
def test_a_larger_pool_of_a_stack_policy_holds_all_that_a_smaller_one_holds(policy, situation):
    trace, options = situation
    assert included(trace, HOLDS[policy], **options)


@examples(200)
@given(cases(max_steps=10))
def test_the_bound_is_a_stack_policy(trace):
    assert included(trace, described("opt"))
    assert included(trace, described("opt"), scope="global")


@pytest.mark.parametrize("policy", FAILS)
def test_the_others_are_not_and_a_counterexample_says_so(policy):
    rng = random.Random(1)
    for _ in range(3000):
        trace = chance(rng)
        if not included(trace, FAILS[policy], width=2):
            return
    pytest.fail(f"{policy} kept inclusion over 3000 traces, though it is declared not to")


def chance(rng):
    """Two layers of which the second is predicted, in steps of one to three rows."""
    n_experts, n_steps = 5, 9
    step = sorted(now for now in range(n_steps) for _ in range(rng.randint(1, 2)))
    rows = [[rng.sample(range(n_experts), 2) for _ in step] for _ in range(2)]
    predicted = [[[-1, -1] for _ in step], [[rng.randrange(n_experts) for _ in range(2)] for _ in step]]
    return Case(n_experts, rows, [0] * len(step), step, [1] * len(step), {1: predicted})
