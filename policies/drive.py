"""Whole blocks of a trace through the kernel, and how pools are emptied and closed. Part of its template."""
# pyright: reportCallIssue=false, reportPrivateImportUsage=false

from __future__ import annotations

import numpy as np
from numba import njit

from .kernel_demand import demand
from .kernel_loads import look_ahead
from .kernel_slots import inlined, internal, layer_of, moment, remove, shifted
from .layout import FOREVER, NEVER, NONE
from .names import C, H, P, V
from .pointers import address_of, as_int64, data_of
from .policy import FULL, LOOK, RECORD
from .views import open_pool

# --- generated modules begin here ---


@internal
def clear(p, n, at):
    """Empties the pool and forgets its history; step indices and knowledge of the future stay."""
    head = p.head
    shared = p.shared
    for key in range(p.shared[H.n_keys]):
        if p.slot[key] != NONE:
            layer = key // shared[H.n_experts] if shared[H.n_pools] == 1 else at.layer
            n[layer * C.n + C.discarded] += 1
            if p.unused[key]:
                n[layer * C.n + C.unresolved] += 1
            remove(p, key, layer)
        p.busy[key] = FOREVER if p.pinned[key] else NEVER
        p.last[key] = NEVER
        p.newer[key] = NONE
        p.heat[key] = 0
        p.touch[key] = 0
        p.gated[key] = 0
        p.mark[key] = 0
        p.unused[key] = 0
        p.known[key] = 0
    p.demanded[:] = 0
    p.fill[:] = 0
    end = shared[H.n_keys]
    p.newer[end] = end
    p.older[end] = end
    head[P.occupied] = head[P.used] = head[P.hint] = head[P.high] = 0
    head[P.touches] = head[P.fills] = head[P.opened] = head[P.warmed] = head[P.scored] = 0
    head[P.loads_tick] = head[P.due] = NEVER
    head[P.unlisted] = 0


@internal
def close(p, n, at):
    """The end of a run: what is there, what is still under way, what was fetched for nothing yet."""
    for key in range(p.shared[H.n_keys]):
        if p.slot[key] != NONE:
            layer = key // p.shared[H.n_experts] if p.shared[H.n_pools] == 1 else at.layer
            n[layer * C.n + (C.residents if p.land[key] <= at.tick else C.in_flight)] += 1
            if p.unused[key]:
                n[layer * C.n + C.unresolved] += 1


@njit(nogil=True, cache=True)
def finish(address, pool, step, cell, counts):
    """Counts the state after the last step. `counts` [cells, layers, counters]."""
    p = open_pool(address, pool)
    at = moment(p, step, p.shared[H.n_layers] - 1, 0)
    close(p, cell_of(counts, cell), shifted(p, at, pool) if p.shared[H.n_pools] > 1 else at)


@njit(nogil=True, cache=True)
def reset(address, pool, step, cell, counts):
    """Starts a pool anew; what it discards counts in `cell`."""
    p = open_pool(address, pool)
    clear(p, cell_of(counts, cell), moment(p, step, pool, 0))


@internal
def write_log(p, now, layer, log, written):
    """Appends the records that the plan hash covers: (step, layer, expert, verb)."""
    n_experts = p.shared[H.n_experts]
    for i in range(p.head[P.n_records]):
        if p.verb[i] <= LAST_HASHED:
            log[written, 0] = now
            log[written, 1] = p.key[i] // n_experts if p.shared[H.n_pools] == 1 else layer
            log[written, 2] = p.key[i] % n_experts
            log[written, 3] = p.verb[i]
            written += 1
    return written


LAST_HASHED = V.drop


@internal
def drop_doubtful(p, n, key, at):
    """A load that may have failed half-way: its slot is free again, whatever left for it stays away."""
    layer = layer_of(p, at, key)
    n[layer * C.n + C.invalidated] += 1
    if p.unused[key]:
        p.unused[key] = 0
        n[layer * C.n + C.wasted] += 1
    remove(p, key, layer)
    p.head[P.scored] = 0


@internal
def arm(p, failures, f, now, layer, ahead):
    """The failure recorded for this phase, searched from `f` on, or NONE; copies that it refuses are refused."""
    while f < failures.shape[0] and failures[f, 0] <= now:
        if failures[f, 0] == now and failures[f, 1] == layer and failures[f, 2] == ahead:
            if not failures[f, 4]:
                p.head[P.refused_from] = failures[f, 3]
            return f
        f += 1
    return NONE


@internal
def disarm(p, n, failures, f, at):
    """The end of a phase with a failure: doubtful loads go, if they are still there."""
    p.head[P.refused_from] = FOREVER
    started = 0
    for i in range(p.head[P.n_records]):
        if p.verb[i] == V.load_demand or p.verb[i] == V.load_speculative:
            if failures[f, 4] and started >= failures[f, 3] and p.slot[p.key[i]] == p.place[i]:
                drop_doubtful(p, n, p.key[i], at)
            started += 1


@njit(nogil=True, cache=True)
def replay_block(
    address, pool, first_step, rows, starts, cells, resets, experts, predicted, recorded, width, horizon, clocks,
    future, counts, told, ahead, log, failures
):  # fmt: skip
    """Replays the steps of one block against one pool: a layer's own, or the global one with all layers in turn.

    `experts` [layers, rows, top_k], `predicted` [layers, rows, recorded] or empty, `future` like experts or empty,
    `starts` [steps + 1] rows, `cells` [steps + 1] of `counts` [cells, layers, counters] (the first is that of the
    step before the block), `resets` [steps], `clocks` [steps, layers] or empty. `told` like experts and `ahead` like
    predicted, or empty, receive one more than the code of what became of a demand, or of a prediction that was loaded,
    where it was mentioned first. `log` [n, 4] or empty, `failures` [n, 5] or empty: (step, layer, 1 if look-ahead,
    first load, 1 if doubtful) of this pool in the order of its phases. Returns the number of log rows written.
    """
    p = open_pool(address, pool)
    shared = p.shared
    n_layers = shared[H.n_layers]
    wide = shared[H.n_pools] == 1
    first_layer = 0 if wide else pool
    last_layer = n_layers if wide else pool + 1
    top_k = experts.shape[2]
    absent = np.int64(all_ones(predicted))
    ids, offers, nexts = data_of(experts), data_of(predicted), data_of(future)
    said, granted = data_of(told), data_of(ahead)
    shared[H.has_future] = future.size
    shared[H.told], shared[H.told_ahead] = told.size, ahead.size
    logs = RECORD and log.size > 0
    fails = FULL and failures.size > 0
    next_failure = 0
    p.head[P.recording] = 1 if logs or fails else 0
    written = 0
    for i in range(starts.size - 1):
        now = first_step + i
        lo, hi = starts[i], starts[i + 1]
        n = cell_of(counts, cells[i + 1])
        while fails and next_failure < failures.shape[0] and failures[next_failure, 0] < now:
            next_failure += 1
        if resets[i]:
            clear(p, cell_of(counts, cells[i]), moment(p, now, first_layer, 0))
        looks = LOOK and width > 0 and hi - lo <= shared[H.batch_gate]
        for layer in range(first_layer, last_layer):
            if looks and not wide and layer >= horizon:
                clock = clocks[i, layer - horizon] if clocks.size else 0
                at = shifted(p, moment(p, now, layer - horizon, clock), layer)
                f = arm(p, failures, next_failure, now, layer, 1) if fails else NONE
                look_ahead(p, n, at, offers, (layer * rows + lo) * recorded, hi - lo, recorded, width, absent, granted)
                if f != NONE:
                    disarm(p, n, failures, f, at)
                if logs:
                    written = write_log(p, now, layer, log, written)
            clock = clocks[i, layer] if clocks.size else 0
            at = moment(p, now, layer, clock)
            first = layer * rows * top_k
            f = arm(p, failures, next_failure, now, layer, 0) if fails else NONE
            demand(p, n, at, ids, first + lo * top_k, first + hi * top_k, hi - lo, nexts, said)
            if f != NONE:
                disarm(p, n, failures, f, at)
            if logs:
                written = write_log(p, now, layer, log, written)
            if looks and wide and layer + horizon < n_layers:
                at = shifted(p, at, layer + horizon)
                f = arm(p, failures, next_failure, now, at.layer, 1) if fails else NONE
                look_ahead(
                    p, n, at, offers, (at.layer * rows + lo) * recorded, hi - lo, recorded, width, absent, granted
                )
                if f != NONE:
                    disarm(p, n, failures, f, at)
                if logs:
                    written = write_log(p, now, layer, log, written)
    return written


@inlined
def cell_of(counts, cell):
    """Pointer to the counters [layer, counter] of one cell."""
    return as_int64(address_of(counts) + cell * counts.shape[1] * C.n * 8)


@inlined
def all_ones(ids):
    """What stands for an absent id: 255 or 65535."""
    return 255 if ids.itemsize == 1 else 65535
