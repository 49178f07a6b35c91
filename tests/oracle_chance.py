"""Traces, policies and options drawn at random, so that every sentence of the law meets every other."""

import itertools
import random

from conftest import few_policies
from hypothesis import strategies as st
from oracle_case import Case

from slotwise.replay.failures import Failure


@st.composite
def cases(draw, *, one_row=False, top_k=3, max_steps=14) -> Case:
    """Steps of one to four rows, several requests and phases, absent layers, good and bad predictions."""
    n_layers, n_experts = draw(st.integers(1, 3)), draw(st.integers(2, 7))
    k = draw(st.integers(1, min(top_k, n_experts)))
    n_steps, width = draw(st.integers(1, max_steps)), draw(st.integers(1, 4))
    rng = random.Random(draw(st.integers(0, 2**32 - 1)))
    hot = [rng.sample(range(n_experts), n_experts) for _ in range(n_layers)]

    def chosen(layer):
        if not one_row and rng.random() < 0.07:
            return None
        few = rng.choice([n_experts, max(k, n_experts - 2)])
        return rng.sample(hot[layer][:few], k)

    def guessed(layer, row):
        """Some right, some wrong, some repeated, out of range or absent."""
        right = row or [0]
        kinds = [
            rng.choice(right),
            rng.randrange(n_experts),
            rng.randrange(n_experts),
            n_experts + rng.randrange(2),
            -1,
        ]
        return rng.choices(kinds, weights=[4, 4, 2, 1, 1])[0]

    request, step, phase = [], [], []
    current = 0
    for now in range(n_steps):
        current = rng.choice([current, current, current, rng.randrange(3)])
        for _ in range(1 if one_row else rng.choice([1, 1, 2, 3, 4])):
            mixed = rng.random() < 0.05
            request.append(current + mixed)
            step.append(now)
            phase.append(rng.choice([0, 1, 1]))
    experts = [[chosen(layer) for _ in step] for layer in range(n_layers)]
    if all(row is None for layer in experts for row in layer):
        experts[0][0] = hot[0][:k]
    predicted = {
        h: [
            [[guessed(layer, row) if layer >= h else -1 for _ in range(width)] for row in experts[layer]]
            for layer in range(n_layers)
        ]
        for h in range(1, n_layers)
    }
    row_bytes = rng.choice([None, tuple(rng.choice([[64] * n_layers, rng.choices([40, 64, 100], k=n_layers)]))])
    return Case(n_experts, experts, request, step, phase, predicted, row_bytes)


@st.composite
def large_cases(draw) -> Case:
    """Two layers of many experts, eight a row, in steps of one to three rows: what the fast paths were made for."""
    n_experts = draw(st.sampled_from([9, 31, 64, 130, 300]))
    rng = random.Random(draw(st.integers(0, 2**32 - 1)))
    k = rng.choice([1, 2, 8])
    step = sorted(now for now in range(60) for _ in range(rng.choice([1, 1, 1, 2, 3])))
    request, phase = [now // 20 for now in step], [int(now % 20 > 2) for now in step]
    spread = rng.choice([0.7, 2.0, 5.0])

    def skewed(n):
        """Distinct ids, the low ones more often."""
        ids = {}
        while len(ids) < n:
            ids[int(n_experts * rng.random() ** spread)] = None
        return list(ids)

    experts = [[skewed(k) for _ in step] for _ in range(2)]
    guesses = [[rng.choice([row[0], *skewed(2)]) for _ in range(4)] for row in experts[1]]
    return Case(n_experts, experts, request, step, phase, {1: [[[-1] * 4 for _ in step], guesses]}, (64, 64))


def tables(rng, shape):
    return [[rng.choice([0, 0, 1, 2, 5, 9]) for _ in range(shape.n_experts)] for _ in range(shape.n_layers)]


NAMES = tuple(few_policies(("lru", "fifo", "lfu", "lfru", "random", "static", "belady", "opt")))


@st.composite
def policies(draw, shape, names=NAMES):
    """A policy with its parameters, and for half of them a guard, a gate or pins."""
    name = draw(st.sampled_from(names))
    rng = random.Random(draw(st.integers(0, 2**32 - 1)))
    params = {
        "lfu": lambda: rng.choice([{}, {"half_life": rng.randint(1, 6)}]),
        "lfru": lambda: rng.choice([{}, {"half_life": rng.randint(1, 6)}]) | rng.choice([{}, {"clock": "access"}]),
        "random": lambda: rng.choice([{}, {"seed": rng.randrange(1000)}]),
        "static": lambda: rng.choice([{"counts": tables(rng, shape)}, {"warmup": rng.randint(1, 5)}]),
    }.get(name, dict)()
    if name == "opt":
        return {"name": name, "params": params}
    guards = [
        None,
        {"warm": 2, "ratio": 0.25, "counts": 4},
        {"warm": rng.randrange(4), "ratio": rng.choice([0, 0.1, 0.25, 1.5]), "counts": rng.randrange(6)},
    ]
    gates = [None, None, {"window": rng.choice([0, 1, 2, 4, 16]), "admit": rng.randint(1, 4)}]
    pins = [None, None, None, {"counts": tables(rng, shape), "n": rng.randint(1, 3)}]
    return {
        "name": name,
        "params": params,
        "guard": rng.choice(guards),
        "gate": rng.choice(gates),
        "pin": rng.choice(pins) if name != "static" else None,
    }


@st.composite
def options(draw, shape, policy, *, fails=False):
    """Any option that the policy accepts on this trace; `fails` adds copies that fail."""
    rng = random.Random(draw(st.integers(0, 2**32 - 1)))
    name, bound, pinned = policy["name"], policy["name"] == "opt", (policy.get("pin") or {"n": 0})["n"]
    out = {"scope": draw(st.sampled_from(["layer", "global"]))}
    out["contract"] = "event" if bound else draw(st.sampled_from(["event", "sequential"]))
    keys = shape.n_experts * (shape.n_layers if out["scope"] == "global" else 1)
    if shape.row_bytes and not pinned and rng.random() < 0.6 and not (bound and len(set(shape.row_bytes)) > 1):
        out["vram"] = draw(st.integers(0, sum(shape.row_bytes) * shape.n_experts))
    else:
        out["slots"] = draw(st.integers(pinned, keys + 1))
    has_room = out.get("slots", 0) or out.get("vram", 0) >= shape.n_layers * max(shape.row_bytes or (1,))
    if shape.predicted and not bound and has_room and draw(st.booleans()):
        out["width"] = draw(st.integers(1, 4))
        out["width"] = min(out["width"], len(shape.predicted[1][0][0]))
        out["horizon"] = rng.choice(sorted(shape.predicted))
    if not bound:
        out["lag_demand"], out["lag_prefetch"] = rng.choice([(0, 0), (0, 0), (rng.randrange(5), rng.randrange(5))])
        out["max_loads"] = rng.choice([None, None, None, 1, 2, 3])
        out["prefill"] = rng.choice(["cached", "cached", "stream"])
        if name != "static":
            out["overflow"] = rng.choice(["bypass", "bypass", "exceed"])
    if fails and not bound and rng.random() < 0.3:
        out["failures"] = failures_of(rng, shape, out.get("horizon", 1))
    out["batch_gate"] = rng.choice([1, 2, 3, 8])
    out["miss"] = rng.choice(["cpu", "fetch"])
    if -1 not in _requests(shape):
        out["reset"] = rng.choice(["persistent", "persistent", "request"])
    return out


def failures_of(rng, shape, horizon):
    """Copies that fail here and there, in either way."""
    places = [(now, layer, "demand") for now in range(len(shape.starts) - 1) for layer in range(shape.n_layers)]
    places += [(now, layer, "ahead") for now, layer, _ in places if layer >= horizon]
    chosen = rng.sample(places, rng.randint(1, len(places)))
    return tuple(Failure(*place, rng.choice([0, 0, 1, 2]), rng.choice(["refused", "doubtful"])) for place in chosen)


def _requests(shape):
    starts = shape.starts
    rows = [set(shape.request[a:b]) for a, b in itertools.pairwise(starts)]
    return [-1 if len(r) > 1 else r.pop() for r in rows]
