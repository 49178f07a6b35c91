"""The link of a priced run: a first-in, first-out queue of copies, speculation that waits before it, and both chains.

Compiled functions over flat arrays: `f` figures, `s` state in seconds. Copies are counted in seconds of work at the
link's full speed: `s[QUEUED]` were handed to it so far, `s[DONE]` are done, and a row has landed once `s[DONE]` has
reached the end of its batch, which is kept in `land`. So whatever slows the link down moves no row in the queue.
"""

from __future__ import annotations

from math import erfc

import numpy as np
from numba import njit

(
    IDS, POLICY, POLICY_AHEAD, SUBMIT_COLD, SUBMIT_HOT, SUBMIT_BATCH, SUBMIT_LOAD, SUBMIT_MERGE, MERGE, MERGE_PAIR, DENSE,
    STEP, DEMAND_BATCH, AHEAD_BATCH, COLD_WITH_LINK, LINK_WITH_COLD, HOT_WITH_LINK, SHARE, MAX_QUEUED, OVERLAP,
    LATE_COLD, BATCH_GATE, CHUNK, SCRATCH, STAGING, N_FIGURES,
) = range(26)  # fmt: skip
FIGURES = (  # what they hold: figures and shares of a machine file, then how the run was asked to be priced
    "ids_s policy_s policy_ahead_s submit_cold_s submit_hot_s submit_batch_s submit_load_s submit_merge_s "
    "merge_s merge_pair_s dense_s step_s copy_demand_batch_s copy_ahead_batch_s cold_with_link link_with_cold "
    "hot_with_link share max_queued overlap late_cold batch_gate chunk scratch staging"
).split()
# Clocks; then seconds by cause, which add up to the run; then what each resource worked, and what came late.
(
    HOST, GPU, COLD_END, LINK, DONE, QUEUED,
    BOTH_S, HOT_ALONE_S, COLD_ALONE_S, LATE_S, HOST_S, JITTER_S, POLICY_S, MERGE_S, DENSE_S, IDS_S, STEP_S,
    LINK_BUSY, GPU_BUSY, COLD_BUSY, HOST_BUSY, LATE_HITS, LATE_TICKS, LATENESS, WORST_LATENESS, DIVERTED, N_STATE,
) = range(27)  # fmt: skip
FIRST_CAUSE, LAST_CAUSE = BOTH_S, STEP_S
WAITS = np.inf  # in `land`: a row whose copy has not been handed to the link
HITS, PLACED, OUTSIDE, COLD = 0, 1, 2, 3  # jobs of a tick: three of the hot chain, one of the cold chain

inlined = njit(forceinline=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
internal = njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)


@inlined
def pass_time(s, until):
    """The link works on while neither chain does."""
    span = until - s[LINK]
    if span > 0:
        left = s[QUEUED] - s[DONE]
        if left > 0:
            if left <= span:
                s[DONE] = s[QUEUED]
                s[LINK_BUSY] += left
            else:
                s[DONE] += span
                s[LINK_BUSY] += span
        s[LINK] = until


@internal
def work(s, f, cold_at, cold_left, hot, n_hot, events, n_events, ends):
    """Both chains and the link from `s[LINK]` on, until the jobs are done and the events have happened.

    cold_at, cold_left: when the cold chain begins, and its seconds. hot [n, 4]: jobs of the hot chain in order: not
    before, seconds, what the link must have done, which job. events [n, 2]: when the host hands over a batch, and its
    work. ends: receives when the cold chain and the last hot job ended, and how long the hits waited for their copies.
    Adds seconds by cause.
    """
    t = s[LINK]
    job = event = 0
    waited = 0.0
    hot_left = hot[0, 1] if n_hot else 0.0
    while cold_left > 0 or job < n_hot or event < n_events:
        left = s[QUEUED] - s[DONE]
        busy = left > 0
        cold_on = cold_left > 0 and t >= cold_at
        gated = job < n_hot and s[DONE] < hot[job, 2]
        hot_on = job < n_hot and not gated and t >= hot[job, 0]
        link_rate = f[LINK_WITH_COLD] if cold_on else 1.0
        cold_rate = f[COLD_WITH_LINK] if busy else 1.0
        hot_rate = f[HOT_WITH_LINK] if busy else 1.0
        drained = left / link_rate if busy else np.inf
        opened = (hot[job, 2] - s[DONE]) / link_rate if gated and busy else np.inf
        cold_done = cold_left / cold_rate if cold_on else np.inf
        hot_done = hot_left / hot_rate if hot_on else np.inf
        until = np.inf  # what happens at a given time
        if cold_left > 0 and not cold_on:
            until = cold_at
        if job < n_hot and t < hot[job, 0]:
            until = min(until, hot[job, 0])
        if event < n_events:
            until = min(until, max(t, events[event, 0]))
        span = min(min(drained, opened), min(cold_done, hot_done))
        if until - t <= span:
            span = until - t
            then = until
        else:
            then = t + span
        if busy:
            s[DONE] = s[QUEUED] if span == drained else s[DONE] + span * link_rate
            s[LINK_BUSY] += span
            if span == opened:
                s[DONE] = max(s[DONE], hot[job, 2])
        if cold_on:
            cold_left = 0.0 if span == cold_done else cold_left - span * cold_rate
            s[COLD_BUSY] += span
            s[BOTH_S if hot_on else COLD_ALONE_S] += span
            if cold_left <= 0:
                cold_left = 0.0
                ends[0] = then
        if hot_on:
            s[GPU_BUSY] += span
            if not cold_on:
                s[HOT_ALONE_S] += span
            hot_left = 0.0 if span == hot_done else hot_left - span * hot_rate
        late = gated and t >= hot[job, 0]
        if late and hot[job, 3] == HITS:
            waited += span
        if not cold_on and not hot_on:
            s[LATE_S if late else HOST_S] += span
        t = then
        if hot_on and hot_left <= 0:
            ends[1] = t
            job += 1
            hot_left = hot[job, 1] if job < n_hot else 0.0
        if event < n_events and t >= events[event, 0]:
            s[QUEUED] += events[event, 1]
            event += 1
    s[LINK] = t
    ends[2] += waited


@inlined
def expected_max(a, b, spread):
    """E[max] of two normal times whose difference has this standard deviation, less the larger of the two."""
    gap = abs(a - b) / spread
    if gap > 5:
        return 0.0
    density = np.exp(-0.5 * gap * gap) / np.sqrt(2 * np.pi)
    above = 0.5 * erfc(gap / np.sqrt(2.0))
    return spread * (density - gap * above)


# --- speculation that waits on the host ---

HEAD, TAIL, BATCHES, DRIVER_HEAD, DRIVER_TAIL, N_COUNTS = range(6)


@inlined
def fits(s, f, q, driver, n_bytes):
    """Whether the link may be handed so many speculative bytes more; a batch alone always may."""
    size = driver.shape[0]
    while q[DRIVER_HEAD] < q[DRIVER_TAIL] and driver[q[DRIVER_HEAD] % size, 0] <= s[DONE]:
        q[DRIVER_HEAD] += 1
    there = 0.0
    for i in range(q[DRIVER_HEAD], q[DRIVER_TAIL]):
        there += driver[i % size, 1]
    return there == 0 or there + n_bytes <= f[MAX_QUEUED]


@inlined
def enqueue(s, f, events, n_events, batch_s, rows, rows_s, position):
    """The host hands over a batch. Returns the number of events and the position at which the batch ends."""
    s[HOST] += f[SUBMIT_BATCH] + rows * f[SUBMIT_LOAD]
    s[HOST_BUSY] += f[SUBMIT_BATCH] + rows * f[SUBMIT_LOAD]
    seconds = batch_s + rows_s
    events[n_events, 0] = s[HOST]
    events[n_events, 1] = seconds
    return n_events + 1, position + seconds
