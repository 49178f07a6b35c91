"""The calls of a live engine, one tick each: the ways into the kernel beside drive.py. Part of its template."""
# pyright: reportCallIssue=false, reportPrivateImportUsage=false

from __future__ import annotations

import numpy as np
from numba import njit

from .drive import all_ones, drop_doubtful
from .kernel_demand import demand
from .kernel_loads import begin, look_ahead
from .kernel_slots import internal, moment, shifted
from .layout import NONE
from .names import H, P
from .pointers import as_int64, as_uint8, data_of
from .views import live_counters, open_pool

# --- generated modules begin here ---


@internal
def distinct(ids, n_experts):
    """How many different experts an array names."""
    seen = np.zeros(n_experts, np.uint8)
    count = 0
    for i in range(ids.size):
        e = ids[i]
        if e < n_experts and not seen[e]:
            seen[e] = 1
            count += 1
    return count


@njit(cache=True)
def step(address, layer, ids, n_tokens):
    """One live tick: `ids` is one flat array of routed experts, tokens in order. Returns 0, or 1 + the bad position.

    Layers that were skipped are ticks with an empty demand: what exceeds its size is trimmed, what is due begins.
    """
    counts = live_counters(address)
    p = open_pool(address, 0)
    shared = p.shared
    absent = all_ones(ids)
    for i in range(ids.size):
        if ids[i] >= shared[H.n_experts] and ids[i] != absent:
            return 1 + i
    if shared[H.n_pools] > 1:
        p = open_pool(address, layer)
    if layer <= shared[H.last_layer]:
        if shared[H.begun]:
            skip(address, counts, shared[H.last_layer] + 1, shared[H.n_layers])
        shared[H.now] += 1
        shared[H.last_layer] = -1
    if not shared[H.begun]:
        begin_all(address, counts)
    shared[H.tokens] = n_tokens
    skip(address, counts, shared[H.last_layer] + 1, layer)
    shared[H.last_layer] = layer
    if shared[H.access_clock]:
        shared[H.clock] += distinct(ids, shared[H.n_experts])
    p.head[P.recording] = 1
    at = moment(p, shared[H.now], layer, shared[H.clock])
    shared[H.has_future] = shared[H.told] = shared[H.told_ahead] = 0
    demand(p, counts, at, data_of(ids), 0, ids.size, n_tokens, as_int64(address), as_uint8(address))
    return 0


@internal
def begin_all(address, counts):
    """Live pools begin together, whichever layer is called first: what is there from the start is there in all."""
    p = open_pool(address, 0)
    p.shared[H.begun] = 1
    for pool in range(p.shared[H.n_pools]):
        p = open_pool(address, pool)
        p.head[P.recording] = 0
        begin(p, counts, shifted(p, moment(p, p.shared[H.now], 0, p.shared[H.clock]), pool))


@njit(cache=True)
def begin_pools(address):
    """`begin_all`, for those who ask what is there before the first step."""
    begin_all(address, live_counters(address))


@internal
def skip(address, counts, first, last):
    """Layers without rows at the present step."""
    for layer in range(first, last):
        p = open_pool(address, 0)
        if p.shared[H.n_pools] > 1:
            p = open_pool(address, layer)
        p.head[P.recording] = 0
        at = moment(p, p.shared[H.now], layer, p.shared[H.clock])
        demand(p, counts, at, as_uint8(address), 0, 0, p.shared[H.tokens], as_int64(address), as_uint8(address))


@njit(cache=True)
def invalidate(address, layer, key):
    """Gives up the row of one key, in the pool of `layer`. Returns whether it had a slot."""
    counts = live_counters(address)
    p = open_pool(address, 0)
    if p.shared[H.n_pools] > 1:
        p = open_pool(address, layer)
    if p.slot[key] == NONE:
        return False
    drop_doubtful(p, counts, key, moment(p, p.shared[H.now], layer, p.shared[H.clock]))
    return True


@njit(cache=True)
def prefetch(address, layer, predicted, n_tokens, width):
    """Offers predictions for `layer` now. `predicted` is flat, `n_tokens` rows of equal length.

    Before the first step now is the tick before it, -1: what is loaded has landed when the first step begins.
    """
    counts = live_counters(address)
    p = open_pool(address, 0)
    shared = p.shared
    if shared[H.n_pools] > 1:
        p = open_pool(address, layer)
    if not shared[H.begun]:
        begin_all(address, counts)
    p.head[P.recording] = 1
    at = shifted(p, moment(p, shared[H.now], shared[H.last_layer], shared[H.clock]), layer)
    recorded = predicted.size // n_tokens if n_tokens else 0
    look_ahead(
        p, counts, at, data_of(predicted), 0, n_tokens, recorded, min(width, recorded), np.int64(all_ones(predicted)),
        as_uint8(address),
    )  # fmt: skip
    return 0
