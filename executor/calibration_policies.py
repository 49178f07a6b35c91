"""What other policies than lru take of the host: by how much their calls are longer than lru's on one routing."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np

from slotwise.policies import Pool, parse_policy

from .journal import Journal
from .stopwatch import FLOOR, Value, settled

POLICIES = ("lru+gate", "lru+guard", "lfu", "lfru", "lfru+gate", "lfru+guard")
CALLS = ("policy_s", "policy_ahead_s")
LAYERS = 16
WARM_STEPS = 8
SKEW = 0.5  # of the demand: about half of it hits a quarter of the experts, as real routers' does


def policy_figures(
    policies: Sequence[str],
    lru: dict[str, Value],
    *,
    n_experts: int,
    top_k: int,
    steps: int,
    random: np.random.Generator,
) -> dict[str, dict[str, Value]]:
    """CALLS of every family of `policies`: lru's, as they were measured in the executor, and what these take beyond it.

    Pools of a quarter of the experts meet one routing; at each tick all take turns in a random order, so that every one
    finds the processor's caches as others left them, and is held against lru at the same tick.
    Raises BadPolicy, for one that knows the future too.
    """
    spelt = {"lru": "lru"} | {parse_policy(policy).family: policy for policy in policies}
    journals = [
        Journal(
            Pool(
                policy, n_layers=LAYERS, n_experts=n_experts, slots=max(top_k, n_experts // 4), width=top_k // 2,
                full=True,
            )
        )
        for policy in spelt.values()
    ]  # fmt: skip
    taken = np.zeros((len(CALLS), len(journals), steps * LAYERS))
    odds = np.arange(1, n_experts + 1) ** -SKEW
    orders = [random.permutation(n_experts) for _ in range(LAYERS)]
    dtype = np.uint8 if n_experts <= 255 else np.uint16

    def chosen(layer: int) -> np.ndarray:
        picked = random.choice(n_experts, (1, top_k), replace=False, p=odds / odds.sum())
        return orders[layer][picked].astype(dtype)

    upcoming = chosen(0)
    for step in range(-WARM_STEPS, steps):
        for layer in range(LAYERS):
            ids, upcoming = upcoming, chosen((layer + 1) % LAYERS)
            predicted = np.ascontiguousarray(upcoming[:, : top_k // 2])
            for i in random.permutation(len(journals)):
                began = time.perf_counter()
                journals[i].step(layer, ids)
                decided = time.perf_counter()
                if layer + 1 < LAYERS:
                    journals[i].prefetch(layer + 1, predicted)
                if step >= 0:
                    taken[:, i, step * LAYERS + layer] = decided - began, time.perf_counter() - decided
    taken = taken.reshape(len(CALLS), len(journals), steps, LAYERS)
    taken = taken[..., :-1]  # the last layer looks at none ahead
    return {
        family: {name: _beyond(lru[name], (taken[at, i] - taken[at, 0]).ravel()) for at, name in enumerate(CALLS)}
        for i, family in enumerate(spelt)
        if family != "lru"
    }  # fmt: skip


def _beyond(lru: Value, seconds: np.ndarray) -> Value:
    more = settled(seconds)
    return Value(max(FLOOR, lru.value + more.value), math.hypot(lru.spread, more.spread)).checked()
