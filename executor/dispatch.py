"""From a plan to work: which rows are hits, misses and loads, and which (token, rank) pairs chose each expert."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slotwise.policies import Plan
from slotwise.policies.names import V

from .backend import Rows
from .merge import ABSENT

_SMALL = 64  # pairs up to which Python's own loops are faster than sorting in NumPy
_MISSES = frozenset((V.load_demand, V.bypassed, V.gated, V.throttled, V.late, V.streamed))
_LOADS = frozenset((V.load_demand, V.load_speculative))


class Load(NamedTuple):
    """One row to copy into a slot. `pool` is 0 for the global pool."""

    layer: int
    expert: int
    pool: int
    slot: int


class Dispatch(NamedTuple):
    """A plan, sorted: (expert, slot) of hits and misses in order of demand (slot -1: none), loads in order.

    `initial` are rows that are there from now on, before any hit is judged: pins, static profiles.
    """

    hits: list[tuple[int, int]]
    misses: list[tuple[int, int]]
    initial: list[Load]
    loads: list[Load]
    streamed: bool


def read_plan(plan: Plan, layer: int, wide: bool, n_experts: int) -> Dispatch:
    """Sorts the decisions of one tick; keys of a global pool hold the layer."""
    hits, misses, initial, loads, streamed = [], [], [], [], False
    for verb, key, slot in zip(*(array.tolist() for array in plan.arrays()), strict=True):
        expert = key % n_experts
        if verb == V.hit:
            hits.append((expert, slot))
        elif verb in _MISSES:
            misses.append((expert, slot))
            streamed = streamed or verb == V.streamed
        if verb in _LOADS or verb == V.load_initial:
            (initial if verb == V.load_initial else loads).append(
                Load(key // n_experts, expert, 0, slot) if wide else Load(layer, expert, layer, slot)
            )
    return Dispatch(hits, misses, initial, loads, streamed)


class Pairs:
    """The (token, rank) pairs of a step by expert. `chains` [n, k] says who computes each: ABSENT, HOT or COLD."""

    def __init__(self, ids: np.ndarray, n_experts: int):
        self.top_k = ids.shape[1]
        self.chains = np.full(ids.shape, ABSENT, np.uint8)
        flat = ids.ravel().astype(np.int64)
        there = (flat >= 0) & (flat < n_experts)
        self._of: dict[int, list[int]] = {}
        if flat.size <= _SMALL:
            for pair, (expert, kept) in enumerate(zip(flat.tolist(), there.tolist(), strict=True)):
                if kept:
                    self._of.setdefault(expert, []).append(pair)
        else:
            order = np.flatnonzero(there)
            order = order[np.argsort(flat[order], kind="stable")]
            experts, starts = np.unique(flat[order], return_index=True)
            parts = (part.tolist() for part in np.split(order, starts[1:]))
            self._of = dict(zip(experts.tolist(), parts, strict=True))

    def take(self, experts: list[int], addresses: list[int], chain: int) -> Rows:
        """The work of these experts, whose rows lie at these addresses, for that chain."""
        pairs, offsets = [], [0]
        for expert in experts:
            pairs.extend(self._of[expert])
            offsets.append(len(pairs))
        places = np.array(pairs, np.int64)
        self.chains.reshape(-1)[places] = chain
        return Rows(np.array(addresses, np.int64), np.array(offsets, np.int64), places // self.top_k, places)
