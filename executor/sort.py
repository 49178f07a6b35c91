"""A plan, sorted by compiled code: which rows are hits, misses and loads, and which pairs (token, rank) chose each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from slotwise.policies import Plan
from slotwise.policies.names import V

from .backend import Rows

_HIT, _MISS, _LOAD, _INITIAL, _STREAMED = 1, 2, 4, 8, 16
_KINDS = np.zeros(32, np.uint8)  # of a verb: what its row is to a tick
_KINDS[[V.load_demand, V.bypassed, V.gated, V.throttled, V.late, V.streamed]] = _MISS
_KINDS[[V.load_demand, V.load_speculative]] |= _LOAD
_KINDS[V.hit], _KINDS[V.load_initial] = _HIT, _INITIAL
_KINDS[V.streamed] |= _STREAMED


class Load(NamedTuple):
    """One row to copy into a slot. `pool` is 0 for the global pool."""

    layer: int
    expert: int
    pool: int
    slot: int


class Chosen(NamedTuple):
    """Experts in order of demand: their ids, their slots (-1: none), and the addresses of their rows, of hits in device
    memory, of misses in host memory. All [n].
    """

    experts: NDArray[np.int64]
    slots: NDArray[np.int64]
    rows: NDArray[np.int64]

    def part(self, which: slice | list[int]) -> Chosen:
        """Some of them."""
        return Chosen(self.experts[which], self.slots[which], self.rows[which])

    def places(self) -> list[tuple[int, int]]:
        """(expert, slot) of each, to keep."""
        return list(zip(self.experts.tolist(), self.slots.tolist(), strict=True))


class Sorted(NamedTuple):
    """A plan, sorted. `initial` are rows that are there from now on, before any hit is judged: pins, static profiles.

    Hits and misses are views, valid until the next plan is read.
    """

    hits: Chosen
    misses: Chosen
    initial: list[Load]
    loads: list[Load]
    streamed: bool


class Desk:
    """Sorts plans, and pairs by expert, into arrays of its own, which only grow.

    device, host: of each layer, the address of its first row and the bytes from row to row, in its pool and in host
    memory.
    """

    def __init__(
        self, n_experts: int, device: Sequence[tuple[int, int]], host: Sequence[tuple[int, int]], *, wide: bool
    ):
        self._n_experts, self._device, self._host, self._wide = n_experts, device, host, wide
        self._found = np.empty((10, 64), np.int64)
        self._group_of = np.full(n_experts, -1, np.int64)
        self._pairs = np.empty((3, 64), np.int64)
        # Compiled, or loaded from the cache, while the executor opens: no tick should pay for that.
        no_ids = np.empty((0, 1), np.uint8 if n_experts <= 255 else np.uint16)
        nobody, no_plan = np.empty(0, np.int64), np.empty(0, np.int32)
        self.pair_up(no_ids, nobody, nobody, np.empty((0, 1), np.uint8), 0)
        sort_plan(no_plan, no_plan, no_plan, n_experts, 0, 0, 0, 0, _KINDS, self._found)

    def sort(self, plan: Plan, layer: int) -> Sorted:
        """What the plan of one tick asks to be done."""
        decisions = plan.arrays()
        if self._found.shape[1] < decisions[0].size:
            self._found = np.empty((10, 2 * decisions[0].size), np.int64)
        found = self._found
        hits, misses, initial, loads, streamed = sort_plan(
            *decisions, self._n_experts, *self._device[layer], *self._host[layer], _KINDS, found
        )
        return Sorted(
            Chosen(found[0, :hits], found[1, :hits], found[2, :hits]),
            Chosen(found[3, :misses], found[4, :misses], found[5, :misses]),
            self._loads(6, initial, layer) if initial else [],
            self._loads(8, loads, layer) if loads else [],
            streamed,
        )

    def _loads(self, at: int, count: int, layer: int) -> list[Load]:
        keys, slots = self._found[at : at + 2, :count].tolist()
        n = self._n_experts
        if self._wide:
            return [Load(key // n, key % n, 0, slot) for key, slot in zip(keys, slots, strict=True)]
        return [Load(layer, key, layer, slot) for key, slot in zip(keys, slots, strict=True)]

    def pair_up(
        self,
        ids: np.ndarray,
        experts: NDArray[np.int64],
        rows: NDArray[np.int64],
        chains: NDArray[np.uint8],
        chain: int,
    ) -> Rows:
        """Work for a chain, which `chains` [n, k] then names: demanded experts, whose rows lie at the addresses `rows`.

        ids: [n, k], C-contiguous. The result holds views, valid until the next call.
        """
        if self._pairs.shape[1] <= ids.size:
            self._pairs = np.empty((3, 2 * ids.size), np.int64)
        offsets, tokens, places = self._pairs
        count = pair_up(ids, experts, self._group_of, offsets, tokens, places, chains, chain)
        return Rows(rows, offsets[: len(experts) + 1], tokens[:count], places[:count])


@njit(nogil=True, cache=True)
def sort_plan(verbs, keys, slots, n_experts, device, device_stride, host, host_stride, kinds, found):
    """`found`: hits' experts, slots and addresses, those of misses, then keys and slots of initial rows and loads."""
    hits = misses = loads = initial = 0
    streamed = False
    for i in range(verbs.size):
        kind, slot = kinds[verbs[i]], slots[i]
        expert = keys[i] % n_experts
        if kind & _HIT:
            found[0, hits], found[1, hits], found[2, hits] = expert, slot, device + slot * device_stride
            hits += 1
        if kind & _MISS:
            found[3, misses], found[4, misses], found[5, misses] = expert, slot, host + expert * host_stride
            misses += 1
        if kind & _INITIAL:
            found[6, initial], found[7, initial] = keys[i], slot
            initial += 1
        if kind & _LOAD:
            found[8, loads], found[9, loads] = keys[i], slot
            loads += 1
        streamed |= (kind & _STREAMED) != 0
    return hits, misses, initial, loads, streamed


@njit(nogil=True, cache=True)
def pair_up(ids, experts, group_of, offsets, tokens, places, chains, chain):
    """Sorts the pairs of these experts by expert, in the order given, then by token and rank. Returns how many."""
    flat, top_k = ids.reshape(-1), ids.shape[1]
    said = chains.reshape(-1)
    n_experts = group_of.size
    for group in range(experts.size):
        group_of[experts[group]] = group
    offsets[: experts.size + 1] = 0
    for pair in range(flat.size):
        if 0 <= flat[pair] < n_experts and group_of[flat[pair]] >= 0:
            offsets[group_of[flat[pair]] + 1] += 1
    for group in range(experts.size):
        offsets[group + 1] += offsets[group]
    for pair in range(flat.size):
        if not 0 <= flat[pair] < n_experts:
            continue
        group = group_of[flat[pair]]
        if group >= 0:
            at = offsets[group]
            offsets[group] += 1  # for now: where the next pair of this group goes
            tokens[at], places[at] = pair // top_k, pair
            said[pair] = chain
    count = offsets[experts.size]
    for group in range(experts.size, 0, -1):
        offsets[group] = offsets[group - 1]
    offsets[0] = 0
    for group in range(experts.size):
        group_of[experts[group]] = -1
    return count
