"""Plain LRU over whole blocks, several times faster than the general kernel, which it is tested equal to.

It covers what most curves are drawn from: layer pools of slots, event contract, no look-ahead, lag, cap, gate, pins,
overflow or streaming. The trace itself is the recency list: a pool holds the experts last touched at or after some
place in it, its tail, and evicting moves the tail on. So a touch writes one number, and a hit is one comparison.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .layout import COUNTERS, VERBS

_DEMANDS, _HITS, _HITS_DEMAND, _MISSES, _COMPULSORY, _LOADS, _BYPASSED, _FILLS, _EVICTIONS, _BY_DEMAND, _ROUTED = (
    COUNTERS.index(name)
    for name in (
        "demands hits hits_demand misses compulsory loads_demand bypassed fills evictions evicted_by_demand routed"
    ).split()
)
HIT, LOADED, BYPASSED = (1 + VERBS.index(verb) for verb in ("hit", "load_demand", "bypassed"))
NEVER = -(2**62)  # place of an expert that was never demanded
GONE = NEVER + 1  # of one that was, and is not resident


class LruWindow:
    """State of one layer between calls: its residents, oldest first, and which experts were ever demanded."""

    def __init__(self, n_experts: int, slots: int):
        self.slots = slots
        self.place = np.full(n_experts, NEVER, np.int64)  # of the last touch: an index of the ids, below 0 an older one
        self.demanded = np.full(n_experts, -1, np.int64)  # step of the last demand, in steps of several tokens
        self.residents = np.zeros(max(1, min(slots, n_experts)), np.uint32)  # at places ..., -2, -1: oldest first
        self.state = np.zeros(2, np.int64)  # occupied, loads of the last step

    def replay(self, layer, first_step, starts, cells, experts, counts, told) -> None:
        """As `replay_block` of the general kernel, for this layer alone."""
        replay_lru(
            self.slots, layer, first_step, starts, cells, experts, counts,
            told, self.place, self.demanded, self.residents, self.state,
        )  # fmt: skip

    def finish(self, layer: int, counts) -> None:
        """Counts what is there after the last step; loads of the very last tick are still in flight."""
        flying = int(self.state[1]) if layer == counts.shape[1] - 1 else 0
        counts[0, layer, COUNTERS.index("residents")] += int(self.state[0]) - flying
        counts[0, layer, COUNTERS.index("in_flight")] += flying


@njit(nogil=True, cache=True)
def replay_lru(slots, layer, first_step, starts, cells, experts, counts, told, place, demanded, residents, state):
    """One layer's block. `experts` [layers, rows, top_k]; `counts` [cells, layers, counters]; `cells` [steps + 1];
    `told` like experts or empty, as the general kernel fills it."""
    ids = experts[layer, starts[0] : starts[-1]].ravel()  # places are counted from here
    top_k = experts.shape[2]
    tells = told.size > 0
    said, here = told.reshape(-1), (layer * experts.shape[1] + starts[0]) * top_k
    n_experts = np.uint64(place.size)
    occupied = state[0]
    tail = -occupied
    loads = np.int64(0)
    for i in range(starts.size - 1):
        low, high = (starts[i] - starts[0]) * top_k, (starts[i + 1] - starts[0]) * top_k
        demands = hits = compulsory = bypassed = routed = 0
        if high - low == top_k and top_k <= slots:
            if ids[np.uint64(low)] < n_experts:  # else no expert of this layer was asked for
                for at in range(low, high):
                    e = np.uint64(ids[np.uint64(at)])
                    before = place[e]
                    hits += before >= tail
                    compulsory += before == NEVER
                    place[e] = at
                    if tells:
                        said[np.uint64(here + at)] = HIT if before >= tail else LOADED
                demands = routed = top_k
        else:
            step = first_step + i
            for at in range(np.uint64(low), np.uint64(high)):
                e = np.uint64(ids[at])
                if e >= n_experts:
                    continue
                routed += 1
                if demanded[e] != step:
                    demanded[e] = step
                    demands += 1
                    hits += place[e] >= tail
                    if tells and place[e] >= tail:
                        said[np.uint64(here) + at] = HIT
            room = slots - hits
            for at in range(np.uint64(low), np.uint64(high)):
                e = np.uint64(ids[at])
                if e >= n_experts:
                    continue
                if place[e] >= tail:
                    place[e] = at
                elif demanded[e] == step:
                    demanded[e] = -1
                    compulsory += place[e] == NEVER
                    if room > 0:
                        room -= 1
                        place[e] = at
                    else:
                        place[e] = GONE
                        bypassed += 1
                    if tells:
                        said[np.uint64(here) + at] = LOADED if place[e] == at else BYPASSED
        loads = demands - hits - bypassed
        occupied += loads
        evictions = np.int64(0)
        if occupied > slots:
            evictions = occupied - slots
            occupied = slots
            left = evictions
            while tail < 0 and left > 0:
                left -= place[np.uint64(residents[np.uint64(residents.size + tail)])] == tail
                tail += 1
            while left > 0:
                e = np.uint64(ids[np.uint64(tail)])
                if e < n_experts:
                    left -= place[e] == tail
                tail += 1
        n = counts[np.uint64(cells[i + 1]), layer]
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
    settle(ids, tail, place, residents)


@njit(nogil=True, cache=True)
def settle(ids, tail, place, residents):
    """Writes the residents down by age, and their places as the next call counts them."""
    old = residents.copy()
    slot = residents.size
    for at in range(ids.size - 1, tail - 1, -1):
        e = ids[at] if at >= 0 else old[old.size + at]
        if e < place.size and place[e] == at:
            slot -= 1
            residents[slot] = e
    for e in range(place.size):
        if place[e] != NEVER:
            place[e] = GONE
    for at in range(slot, residents.size):
        place[residents[at]] = at - residents.size
