"""Plain LRU over whole blocks, several times faster than the general kernel, which it is tested equal to.

It covers what most curves are drawn from: layer pools of slots, event contract, no look-ahead, lag, cap, gate, pins,
overflow or streaming. Then every member of a demand ends up in front, so a tick is: move to the front, cut the tail.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .layout import COUNTERS

_DEMANDS, _HITS, _HITS_DEMAND, _MISSES, _COMPULSORY, _LOADS, _BYPASSED, _FILLS, _EVICTIONS, _BY_DEMAND, _ROUTED = (
    COUNTERS.index(name)
    for name in (
        "demands hits hits_demand misses compulsory loads_demand bypassed fills evictions evicted_by_demand routed"
    ).split()
)


class LruLists:
    """State of one layer: a ring of experts from newest to oldest; `state` = [occupied, loads of the last step]."""

    def __init__(self, n_experts: int, slots: int):
        self.slots = slots
        self.newer = np.full(n_experts + 1, n_experts, np.uint32)
        self.older = np.full(n_experts + 1, n_experts, np.uint32)
        self.flags = np.zeros((2, n_experts), np.uint8)  # resident, known
        self.marks = np.full((2, n_experts), -1, np.int64)  # step of the last demand, step of the last admission
        self.state = np.zeros(2, np.int64)

    def replay(self, layer, first_step, starts, cells, experts, counts) -> None:
        """As `replay_block` of the general kernel, for this layer alone."""
        replay_lru(
            self.slots, layer, first_step, starts, cells, experts, counts,
            self.newer, self.older, self.flags[0], self.flags[1], self.marks[0], self.marks[1], self.state,
        )  # fmt: skip

    def finish(self, layer: int, counts) -> None:
        """Counts what is there after the last step; loads of the very last tick are still in flight."""
        flying = int(self.state[1]) if layer == counts.shape[1] - 1 else 0
        counts[0, layer, COUNTERS.index("residents")] += int(self.state[0]) - flying
        counts[0, layer, COUNTERS.index("in_flight")] += flying


@njit(nogil=True, cache=True)
def replay_lru(
    slots, layer, first_step, starts, cells, experts, counts, newer, older, resident, known, demanded, admitted, state
):
    """One layer's block. `experts` [layers, rows, top_k]; `counts` [cells, layers, counters]; `cells` [steps + 1]."""
    ids = experts[layer]
    top_k = np.uint32(ids.shape[1])
    end = np.uint32(newer.shape[0] - 1)
    occupied = state[0]
    loads = np.int64(0)
    for i in range(starts.size - 1):
        lo, hi = np.uint64(starts[i]), np.uint64(starts[i + 1])
        demands = routed = hits = bypassed = compulsory = 0
        if hi - lo == np.uint64(1) and top_k <= slots:
            for rank in range(top_k):
                e = np.uint32(ids[lo, rank])
                if e >= end:
                    continue
                demands += 1
                if resident[e]:
                    hits += 1
                    o, w = older[e], newer[e]
                    newer[o] = w
                    older[w] = o
                else:
                    compulsory += 1 - known[e]
                    known[e] = 1
                    resident[e] = 1
                    occupied += 1
                newest = older[end]
                newer[newest] = e
                older[e] = newest
                newer[e] = end
                older[end] = e
            routed = demands
        else:
            step = first_step + i
            misses = 0
            for row in range(lo, hi):
                for rank in range(top_k):
                    e = np.uint32(ids[row, rank])
                    if e >= end:
                        continue
                    routed += 1
                    if demanded[e] != step:
                        demanded[e] = step
                        demands += 1
                        hits += resident[e]
            room = slots - hits
            for row in range(lo, hi):
                for rank in range(top_k):
                    e = np.uint32(ids[row, rank])
                    if e >= end or resident[e] or admitted[e] == step or demanded[e] != step:
                        continue
                    demanded[e] = -1
                    compulsory += 1 - known[e]
                    known[e] = 1
                    if misses < room:
                        admitted[e] = step
                    else:
                        bypassed += 1
                    misses += 1
            for row in range(lo, hi):
                for rank in range(top_k):
                    e = np.uint32(ids[row, rank])
                    if e >= end:
                        continue
                    if resident[e]:
                        o, w = older[e], newer[e]
                        newer[o] = w
                        older[w] = o
                    elif admitted[e] == step:
                        resident[e] = 1
                        occupied += 1
                    else:
                        continue
                    newest = older[end]
                    newer[newest] = e
                    older[e] = newest
                    newer[e] = end
                    older[end] = e
        evictions = 0
        while occupied > slots:
            oldest = newer[end]
            w = newer[oldest]
            newer[end] = w
            older[w] = end
            resident[oldest] = 0
            occupied -= 1
            evictions += 1
        loads = demands - hits - bypassed
        n = counts[cells[i + 1], layer]
        n[_DEMANDS] += demands
        n[_ROUTED] += routed
        n[_HITS] += hits
        n[_HITS_DEMAND] += hits
        n[_MISSES] += demands - hits
        n[_COMPULSORY] += compulsory
        n[_LOADS] += loads
        n[_BYPASSED] += bypassed
        n[_FILLS] += loads
        n[_EVICTIONS] += evictions
        n[_BY_DEMAND] += evictions
    state[0] = occupied
    state[1] = loads
