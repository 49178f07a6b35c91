"""Prices the ticks of a replay one after the other: what the host, the GPU, the worker and the link do, and when.

A tick, as the executor carries it out: the ids reach the host; it decides; the cold chain gets the misses and the hot
chain the hits; demand loads go to the link as one batch, then the speculative ones of layer + horizon; once both chains
are done the device merges and goes on to the next layer's ids. Steps of more tokens than the batch gate, and all of
them without overlap, run one chain after the other. Nothing here decides anything: the plan is the replay's.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
from numba import njit

from slotwise.policies.pointers import data_of

from .price_link import (
    AHEAD_BATCH, BATCH_GATE, BATCHES, CHUNK, COLD, COLD_END, DEMAND_BATCH, DENSE, DENSE_S, DIVERTED, DONE, DRIVER_TAIL,
    GPU, GPU_BUSY, HEAD, HITS, HOST, HOST_BUSY, HOST_S, IDS, IDS_S, JITTER_S, LATE_COLD, LATE_HITS, LATE_TICKS, LATENESS,
    LINK, MAX_QUEUED, MERGE, MERGE_PAIR, MERGE_S, OUTSIDE, OVERLAP, PLACED, POLICY, POLICY_AHEAD, POLICY_S, QUEUED,
    SCRATCH, SHARE, STAGING, STEP, STEP_S, SUBMIT_COLD, SUBMIT_HOT, SUBMIT_MERGE, TAIL, WAITS, WORST_LATENESS, enqueue,
    expected_max, fits, inlined, internal, pass_time, work, work_apart,
)  # fmt: skip
from .price_tables import chain_s

# What `told` says of a demand at its first mention: one more than the code of the verb in `policies.layout.VERBS`.
HIT, LOADED, AHEAD, LATE, STREAMED = 1, 2, 3, 9, 10
DEMANDS, MISSES, BYTES, SECONDS, N_OUT = range(5)


@inlined
def wake_s(wake, gap):
    """How much later the cold chain begins after so long without work."""
    n = wake.shape[0]
    if n == 0:
        return 0.0
    if gap <= wake[0, 0]:
        return wake[0, 1]
    for i in range(1, n):
        if gap <= wake[i, 0]:
            share = (gap - wake[i - 1, 0]) / (wake[i, 0] - wake[i - 1, 0])
            return wake[i - 1, 1] + share * (wake[i, 1] - wake[i - 1, 1])
    return wake[n - 1, 1]


@inlined
def put(hot, job, at, seconds, gate, which):
    """One more job of the hot chain."""
    hot[4 * job], hot[4 * job + 1], hot[4 * job + 2], hot[4 * job + 3] = at, seconds, gate, which


@inlined
def busy(s, cause, seconds):
    """The host alone, at work that nothing else can hide."""
    s[HOST] += seconds
    s[HOST_BUSY] += seconds
    s[cause] += seconds


@inlined
def spend(s, seconds):
    """The host, while chains and link go on."""
    s[HOST] += seconds
    s[HOST_BUSY] += seconds


@internal
def pump(s, f, q, driver, waiting, land, row_s, row_bytes, events, n_events, position):
    """Hands the link batches that wait, in order, while they fit."""
    size, n_experts = waiting.shape[0], land.shape[1]
    while q[HEAD] < q[TAIL]:
        batch = waiting[q[HEAD] % size, 1]
        end, rows, seconds, n_bytes = q[HEAD], 0, 0.0, 0.0
        while end < q[TAIL] and waiting[end % size, 1] == batch:
            key = waiting[end % size, 0]
            if key >= 0:
                rows += 1
                seconds += row_s[key // n_experts, 1]
                n_bytes += row_bytes[key // n_experts]
            end += 1
        if rows and not fits(s, f, q, driver, n_bytes):
            break
        if rows:
            n_events, position = enqueue(s, f, events, n_events, f[AHEAD_BATCH], rows, seconds, position)
            driver[q[DRIVER_TAIL] % driver.shape[0], 0] = position
            driver[q[DRIVER_TAIL] % driver.shape[0], 1] = n_bytes
            q[DRIVER_TAIL] += 1
            for at in range(q[HEAD], end):
                key = waiting[at % size, 0]
                if key >= 0:
                    land[key // n_experts, key % n_experts] = position
        q[HEAD] = end
    return n_events, position


@internal
def forget(q, waiting, key):
    """Takes a row out of what waits."""
    size = waiting.shape[0]
    for at in range(q[HEAD], q[TAIL]):
        if waiting[at % size, 0] == key:
            waiting[at % size, 0] = -1


@internal
def tighten(q, waiting):
    """Closes the gaps in what waits, when the ring is full."""
    size = waiting.shape[0]
    to = q[HEAD]
    for at in range(q[HEAD], q[TAIL]):
        if waiting[at % size, 0] >= 0:
            waiting[to % size, 0] = waiting[at % size, 0]
            waiting[to % size, 1] = waiting[at % size, 1]
            to += 1
    q[TAIL] = to


@internal
def in_batches(s, f, q, driver, waiting, layer, n_loads, land, row_s, row_bytes, events, n_events, position, loads):
    """Speculative loads where batches are small, or where the link is handed only so much: what does not fit waits."""
    n_experts = land.shape[1]
    first = 0
    chunk = int(f[CHUNK]) if f[CHUNK] > 0 else n_loads
    while first < n_loads:
        rows = min(chunk, n_loads - first)
        n_bytes = rows * row_bytes[layer]
        goes = f[MAX_QUEUED] == np.inf
        if not goes:
            for i in range(first, first + rows):
                if land[layer, loads[i]] == WAITS:
                    forget(q, waiting, layer * n_experts + loads[i])
            goes = q[HEAD] == q[TAIL] and fits(s, f, q, driver, n_bytes)
        if goes:
            n_events, position = enqueue(
                s, f, events, n_events, f[AHEAD_BATCH], rows, rows * row_s[layer, 1], position
            )
            for i in range(first, first + rows):
                land[layer, loads[i]] = position
            if f[MAX_QUEUED] < np.inf:
                driver[q[DRIVER_TAIL] % driver.shape[0], 0] = position
                driver[q[DRIVER_TAIL] % driver.shape[0], 1] = n_bytes
                q[DRIVER_TAIL] += 1
        else:
            if q[TAIL] - q[HEAD] + rows > waiting.shape[0]:
                tighten(q, waiting)
            q[BATCHES] += 1
            for i in range(first, first + rows):
                waiting[q[TAIL] % waiting.shape[0], 0] = layer * n_experts + loads[i]
                waiting[q[TAIL] % waiting.shape[0], 1] = q[BATCHES]
                q[TAIL] += 1
                land[layer, loads[i]] = WAITS
        first += rows
    return n_events, position


@internal
def _walk(starts, resets, phases, experts, told, ids, ahead, width, horizon, figures, state, totals, one, sheets, shape, kinds,
         wake, row_s, row_bytes, land, q, driver, waiting, out):  # fmt: skip
    """Prices the steps of one piece. `state`, `land` and the queues go on from piece to piece.

    experts, told [layers, rows, top_k]; ids, ahead [layers, rows, recorded] or empty; starts [steps + 1] rows; resets,
    phases [steps]; totals [2 phases, N_STATE] receives what each step added to `state`;
    kinds [layers]: whose sheets price a layer; row_s [layers, 2]: link seconds of a row, demand and speculative;
    out [steps, N_OUT] receives demands, misses, bytes moved and seconds of each step.
    """
    n_layers, n_experts = land.shape
    top_k = experts.shape[2]
    kind = np.zeros(n_experts, np.uint8)  # the job of an expert of the present tick
    loads = np.zeros(n_experts, np.int64)
    hurried = np.zeros(n_experts, np.int64)
    rows, pairs = np.zeros(4, np.int64), np.zeros(4, np.int64)
    hot_jobs, chain_ends = np.zeros(3 * 4), np.zeros(3)
    handed = np.zeros(2 * (waiting.shape[0] + n_experts + 8))
    s, f, events = data_of(state), data_of(figures), data_of(handed)
    hot, ends = data_of(hot_jobs), data_of(chain_ends)
    limited = f[MAX_QUEUED] < np.inf
    before = np.zeros(state.size)
    for i in range(starts.size - 1):
        lo, hi = starts[i], starts[i + 1]
        n = hi - lo
        small = n <= f[BATCH_GATE]
        if resets[i]:  # the pools are emptied, and what is under way is waited for between two steps
            s[DONE] = s[QUEUED]
            q[HEAD] = q[TAIL]
            land[:] = -1.0
        before[:] = state
        demands = misses = moved = 0
        for layer in range(n_layers):
            s[HOST] = max(s[HOST], s[GPU]) + f[IDS]
            s[IDS_S] += f[IDS]
            busy(s, POLICY_S, f[POLICY])
            pass_time(s, s[HOST])
            position, n_events, n_hot = s[QUEUED], 0, 0
            if limited and q[HEAD] < q[TAIL]:
                n_events, position = pump(
                    s, f, q, driver, waiting, land, row_s, row_bytes, events, n_events, position
                )
            # --- which chain computes what ---
            n_hits = n_placed = n_outside = n_cold = n_fetched = n_pairs = 0
            if n > 1:
                pairs[:] = 0
            if f[SHARE] > 0:
                n_missed = 0
                for row in range(lo, hi):
                    for r in range(top_k):
                        n_missed += told[layer, row, r] > HIT
                n_fetched = int(np.round(f[SHARE] * n_missed))
            backlog = position > s[DONE] or (limited and q[HEAD] < q[TAIL])
            hits_gate = placed_gate = 0.0
            n_loads = n_hurried = missed = late = 0
            waits_for_demand = False
            for row in range(lo, hi):
                for r in range(top_k):
                    expert = experts[layer, row, r]
                    if expert >= n_experts:
                        continue
                    what = told[layer, row, r]
                    n_pairs += 1
                    if what == 0:
                        pairs[kind[expert]] += 1
                        continue
                    job = HITS
                    if what == HIT:
                        if backlog and land[layer, expert] > s[DONE]:
                            late += 1
                            if f[LATE_COLD]:
                                job = COLD
                                s[DIVERTED] += 1
                            elif land[layer, expert] == WAITS:
                                hurried[n_hurried] = expert
                                n_hurried += 1
                            else:
                                hits_gate = max(hits_gate, land[layer, expert])
                    else:
                        missed += 1
                        job = COLD
                        if missed <= n_fetched:
                            job = PLACED if what in (LOADED, LATE) else OUTSIDE
                            if what == LATE:
                                if land[layer, expert] == WAITS:
                                    job = OUTSIDE
                                else:
                                    placed_gate = max(placed_gate, land[layer, expert])
                        if what == LOADED:
                            loads[n_loads] = expert
                            n_loads += 1
                            waits_for_demand |= job == PLACED
                    n_hits += job == HITS
                    n_placed += job == PLACED
                    n_outside += job == OUTSIDE
                    n_cold += job == COLD
                    if n > 1:
                        kind[expert] = job
                        pairs[job] += 1
            rows[HITS], rows[PLACED], rows[OUTSIDE], rows[COLD] = n_hits, n_placed, n_outside, n_cold
            if n == 1:
                pairs[:] = rows
            demands += n_hits + n_placed + n_outside + n_cold
            misses += missed
            moved += (n_loads + rows[OUTSIDE]) * row_bytes[layer]
            if n_hurried:
                n_events, position = enqueue(
                    s, f, events, n_events, f[AHEAD_BATCH], n_hurried, n_hurried * row_s[layer, 1], position
                )
                hits_gate = position
                for at in range(n_hurried):
                    land[layer, hurried[at]] = position
                    forget(q, waiting, layer * n_experts + hurried[at])
            # --- the chains begin ---
            overlap = f[OVERLAP] > 0 and small
            cold_s = cold_spread = hot_spread = 0.0
            cold_at = np.inf
            ends[2] = 0.0
            hit_s = 0.0
            if rows[HITS]:
                hit_s, hot_spread = chain_s(one, sheets, shape, kinds[layer], 0, n, rows[HITS], pairs[HITS])
            if rows[COLD]:
                cold_s, cold_spread = chain_s(one, sheets, shape, kinds[layer], 1, n, rows[COLD], pairs[COLD])
                if overlap:
                    spend(s, f[SUBMIT_COLD])
                    cold_at = s[HOST] + wake_s(wake, s[HOST] - s[COLD_END])
            if rows[HITS]:
                spend(s, f[SUBMIT_HOT])
                put(hot, 0, s[HOST], hit_s, hits_gate, HITS)
                n_hot = 1
            if not overlap:
                if n_hot or n_events:
                    work_apart(s, f, cold_at, 0.0, hot, n_hot, events, n_events, ends)
                    n_hot = n_events = 0
                    s[HOST] = max(s[HOST], s[LINK])
                if rows[COLD]:
                    spend(s, f[SUBMIT_COLD])
                    cold_at = s[HOST] + wake_s(wake, s[HOST] - s[COLD_END])
                    work_apart(s, f, cold_at, cold_s, hot, 0, events, 0, ends)
                    s[COLD_END] = s[HOST] = s[LINK]
            # --- copies ---
            if n_loads:
                n_events, position = enqueue(
                    s, f, events, n_events, f[DEMAND_BATCH], n_loads, n_loads * row_s[layer, 0], position
                )
                for at in range(n_loads):
                    if limited and land[layer, loads[at]] == WAITS:
                        forget(q, waiting, layer * n_experts + loads[at])
                    land[layer, loads[at]] = position
                if waits_for_demand:
                    placed_gate = max(placed_gate, position)
            if rows[PLACED]:
                spend(s, f[SUBMIT_HOT])
                seconds, _ = chain_s(one, sheets, shape, kinds[layer], 0, n, rows[PLACED], pairs[PLACED])
                put(hot, n_hot, s[HOST], seconds, placed_gate, PLACED)
                n_hot += 1
            outside = rows[OUTSIDE]
            wave = 0
            wave_pairs = 0.0
            if outside:
                wave = min(outside, int(f[SCRATCH] if small or f[STAGING] == 0 else f[STAGING]))
                wave_pairs = pairs[OUTSIDE] * wave / outside
                n_events, position = enqueue(
                    s, f, events, n_events, f[DEMAND_BATCH], wave, wave * row_s[layer, 0], position
                )
                spend(s, f[SUBMIT_HOT])
                seconds, _ = chain_s(one, sheets, shape, kinds[layer], 0, n, wave, wave_pairs)
                put(hot, n_hot, s[HOST], seconds, position, OUTSIDE)
                n_hot += 1
                outside -= wave
            if width and small and layer + horizon < n_layers:
                spend(s, f[POLICY_AHEAD])
                target = layer + horizon
                n_loads = 0
                for rank in range(width):
                    for row in range(lo, hi):
                        if ahead[target, row, rank] == AHEAD:
                            loads[n_loads] = ids[target, row, rank]
                            n_loads += 1
                moved += n_loads * row_bytes[target]
                if n_loads and (limited or f[CHUNK] > 0):
                    n_events, position = in_batches(
                        s, f, q, driver, waiting, target, n_loads, land, row_s, row_bytes, events, n_events, position,
                        loads,
                    )  # fmt: skip
                elif n_loads:
                    n_events, position = enqueue(
                        s, f, events, n_events, f[AHEAD_BATCH], n_loads, n_loads * row_s[target, 1], position
                    )
                    for at in range(n_loads):
                        land[target, loads[at]] = position
            # --- until both chains are done ---
            cold_now = cold_s if overlap and rows[COLD] else 0.0
            work(s, f, cold_at, cold_now, hot, n_hot, events, n_events, ends)
            if cold_now > 0:
                s[COLD_END] = ends[0]
            extra = 0.0
            spread = np.sqrt(cold_spread * cold_spread + hot_spread * hot_spread)
            if cold_now > 0 and rows[HITS] and spread > 0:
                extra = expected_max(ends[0], ends[1], spread)
            while outside:
                wave_pairs *= min(outside, wave) / wave
                wave = min(outside, wave)
                s[HOST] = max(s[HOST], s[LINK])
                n_events, position = enqueue(
                    s, f, events, 0, f[DEMAND_BATCH], wave, wave * row_s[layer, 0], position
                )
                spend(s, f[SUBMIT_HOT])
                seconds, _ = chain_s(one, sheets, shape, kinds[layer], 0, n, wave, wave_pairs)
                put(hot, 0, s[HOST], seconds, position, OUTSIDE)
                work_apart(s, f, np.inf, 0.0, hot, 1, events, n_events, ends)
                outside -= wave
            if late:
                s[LATE_HITS] += late
                s[LATE_TICKS] += 1
                s[LATENESS] += ends[2]
                s[WORST_LATENESS] = max(s[WORST_LATENESS], ends[2])
            # --- merge, and on to the next layer ---
            spend(s, f[SUBMIT_MERGE])
            done = s[LINK] + extra
            s[JITTER_S] += extra
            s[HOST_S] += max(0.0, s[HOST] - done)
            merge = f[MERGE] + n_pairs * f[MERGE_PAIR]
            s[MERGE_S] += merge
            s[DENSE_S] += f[DENSE]
            s[GPU_BUSY] += merge + f[DENSE]
            s[GPU] = max(s[HOST], done) + merge + f[DENSE]
        s[HOST] = max(s[HOST], s[GPU])
        busy(s, STEP_S, f[STEP])
        pass_time(s, s[HOST])
        out[i, DEMANDS], out[i, MISSES], out[i, BYTES], out[i, SECONDS] = demands, misses, moved, s[HOST] - before[HOST]
        for at in range(state.size):
            totals[phases[i], at] += s[at] - before[at]


def _made(sources):
    """`_walk` for Python. numba keeps what it compiled by the file and the closure of the outermost function alone, so
    the sources of all that is compiled into it are part of the closure: an edit of any of them is never answered with
    older code."""

    @njit(nogil=True, cache=True)
    def priced(*arguments):
        if sources:
            _walk(*arguments)

    return priced


_FILES = ("price_walk.py", "price_link.py", "price_tables.py")
walk = _made(1 + zlib.crc32(b"".join(Path(__file__).with_name(name).read_bytes() for name in _FILES)))
