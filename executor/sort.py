"""A plan, sorted by compiled code: which rows are hits, misses and loads, and which pairs (token, rank) chose each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from slotwise.policies import Plan
from slotwise.policies.names import P, V

from .backend import Rows
from .merge import ABSENT, COLD, HOT

_HIT, _MISS, _LOAD, _INITIAL, _STREAMED = 1, 2, 4, 8, 16
_N_RECORDS = int(P.n_records)  # of a plan's head
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


# Lines of the desk's memory: of hits, misses, initial rows and loads, then of the pairs of both chains.
_HITS, _MISSES, _INITIALS, _LOADS, _OF_HOT, _OF_COLD, _LINES = 0, 3, 6, 8, 10, 13, 16
_PAIRS = {HOT: _OF_HOT, COLD: _OF_COLD}


class Sorted:
    """A plan, sorted. All arrays are views, valid until the next plan is read.

    chains: [n, k], who computes each pair if hits are hot and misses cold; `hot` and `cold` are the work of both then.
    initial: rows that are there from now on, before any hit is judged: pins, static profiles.
    """

    __slots__ = ("_counts", "_memory", "chains", "initial", "loads", "n_hits", "n_misses", "streamed")

    def __init__(self, memory: NDArray[np.int64], chains: NDArray[np.uint8], counts: Sequence[int]):
        self._memory, self.chains, self._counts = memory, chains, counts
        self.n_hits, self.n_misses, self.streamed = counts[0], counts[1], counts[4] > 0
        self.initial: list[Load] = []
        self.loads: list[Load] = []

    @property
    def hits(self) -> Chosen:
        return Chosen(*self._memory[_HITS : _HITS + 3, : self.n_hits])

    @property
    def slots_hit(self) -> list[int]:
        return self._memory[_HITS + 1, : self.n_hits].tolist()

    @property
    def misses(self) -> Chosen:
        return Chosen(*self._memory[_MISSES : _MISSES + 3, : self.n_misses])

    @property
    def hot(self) -> Rows:
        return _work(self._memory, _HITS + 2, self.n_hits, _OF_HOT, self._counts[5])

    @property
    def cold(self) -> Rows:
        return _work(self._memory, _MISSES + 2, self.n_misses, _OF_COLD, self._counts[6])


def _work(memory: NDArray[np.int64], rows: int, count: int, pairs: int, n_pairs: int) -> Rows:
    offsets = memory[pairs, : count + 1]
    return Rows(memory[rows, :count], offsets, memory[pairs + 1, :n_pairs], memory[pairs + 2, :n_pairs])


class Desk:
    """Sorts plans, and pairs by expert, into memory of its own, which only grows.

    device, host: of each layer, the address of its first row and the bytes from row to row, in its pool and in host
    memory.
    """

    def __init__(
        self, n_experts: int, device: Sequence[tuple[int, int]], host: Sequence[tuple[int, int]], *, wide: bool
    ):
        self._n_experts, self._wide = n_experts, wide
        self._places = [(n_experts, *one, *other) for one, other in zip(device, host, strict=True)]
        self._memory = np.empty((_LINES, 64), np.int64)
        self._chains = np.empty(64, np.uint8)
        self._group_of = np.full(n_experts, -1, np.int64)
        self._nobody = np.empty((0, 1), np.uint8 if n_experts <= 255 else np.uint16)
        # Compiled, or loaded from the cache, while the executor opens: no tick should pay for that.
        no_plan, nobody = np.empty(0, np.int32), np.empty(0, np.int64)
        nothing = np.zeros(P.n_records + 1, np.int64), no_plan, no_plan, no_plan
        arrange(*nothing, self._nobody, self._chains[:0], n_experts, 0, 0, 0, 0, self._memory, self._group_of)
        self.pair_up(self._nobody, nobody, nobody, self._chains[:0], HOT)

    def sort(self, plan: Plan, layer: int, ids: np.ndarray | None = None) -> Sorted:
        """What the plan of one tick asks to be done. ids: its demand [n, k], C-contiguous; None for predictions."""
        ids = self._nobody if ids is None else ids
        told = plan.memory
        self._make_room(max(told[1].size, ids.size + 1), ids.size)
        chains = self._chains[: ids.size].reshape(ids.shape)
        counts = arrange(*told, ids, chains.reshape(-1), *self._places[layer], self._memory, self._group_of)
        work = Sorted(self._memory, chains, counts)
        if counts[2]:
            work.initial = self._loads(_INITIALS, counts[2], layer)
        if counts[3]:
            work.loads = self._loads(_LOADS, counts[3], layer)
        return work

    def _make_room(self, size: int, pairs: int) -> None:
        if self._memory.shape[1] < size:
            self._memory = np.empty((_LINES, 2 * size), np.int64)
        if self._chains.size < pairs:
            self._chains = np.empty(2 * pairs, np.uint8)

    def _loads(self, at: int, count: int, layer: int) -> list[Load]:
        keys, slots = self._memory[at : at + 2, :count].tolist()
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
        """Work for a chain, which `chains` then names: demanded experts, whose rows lie at the addresses `rows`.

        ids: [n, k], C-contiguous, as is `chains`. The pairs are views, valid until the next call for that chain.
        """
        at = _PAIRS[chain]
        self._make_room(max(ids.size, experts.size) + 1, 0)
        count = pair_up(ids, experts, self._group_of, self._memory[at : at + 3], chains.reshape(-1), chain)
        memory = self._memory
        return Rows(rows, memory[at, : len(experts) + 1], memory[at + 1, :count], memory[at + 2, :count])


@njit(cache=True)
def arrange(
    head, verbs, keys, slots, ids, chains, n_experts, device, device_stride, host, host_stride, memory, group_of
):  # fmt: skip
    """Hits' experts, slots and addresses, those of misses, keys and slots of initial rows and loads; and both chains'
    pairs. Returns the numbers of hits, misses, initial rows, loads, streamed rows, hot pairs and cold pairs."""
    hits = misses = loads = initial = streamed = 0
    for i in range(head[_N_RECORDS]):
        kind, slot = _KINDS[verbs[i]], slots[i]
        expert = keys[i] % n_experts
        if kind & _HIT:
            memory[0, hits], memory[1, hits], memory[2, hits] = expert, slot, device + slot * device_stride
            hits += 1
        if kind & _MISS:
            memory[3, misses], memory[4, misses], memory[5, misses] = expert, slot, host + expert * host_stride
            misses += 1
        if kind & _INITIAL:
            memory[6, initial], memory[7, initial] = keys[i], slot
            initial += 1
        if kind & _LOAD:
            memory[8, loads], memory[9, loads] = keys[i], slot
            loads += 1
        streamed += (kind & _STREAMED) != 0
    chains[:] = ABSENT
    cold = pair_up(ids, memory[3, :misses], group_of, memory[13:16], chains, COLD) if misses else 0
    hot = pair_up(ids, memory[0, :hits], group_of, memory[10:13], chains, HOT) if hits else 0
    return hits, misses, initial, loads, streamed, hot, cold


@njit(cache=True)
def pair_up(ids, experts, group_of, pairs, chains, chain):
    """Sorts the pairs of these experts by expert, in the order given, then by token and rank: offsets, tokens, places.

    Returns how many pairs there are.
    """
    flat, top_k = ids.reshape(-1), ids.shape[1]
    offsets, tokens, places = pairs[0], pairs[1], pairs[2]
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
            chains[pair] = chain
    count = offsets[experts.size]
    for group in range(experts.size, 0, -1):
        offsets[group] = offsets[group - 1]
    offsets[0] = 0
    for group in range(experts.size):
        group_of[experts[group]] = -1
    return count
