"""The link of a priced run: a first-in, first-out queue of copies, speculation that waits before it, and both chains.

Compiled functions over pointers, since arrays that are passed have their references counted, which took as long as all
the rest: `f` figures, `s` state in seconds. Copies are counted in seconds of work at the
link's full speed: `s[QUEUED]` were handed to it so far, `s[DONE]` are done, and a row has landed once `s[DONE]` has
reached the end of its batch, which is kept in `land`. So whatever slows the link down moves no row in the queue.
"""

# pyright: reportCallIssue=false

from __future__ import annotations

from math import erfc

import numpy as np
from numba import njit

from .price_tables import chain_s

(
    IDS, POLICY, POLICY_AHEAD, SUBMIT_COLD, SUBMIT_HOT, SUBMIT_BATCH, SUBMIT_LOAD, SUBMIT_MERGE, SUBMIT_NEXT,
    LINK_HOST, LINK_IDS, LINK_COLD, MERGE, MERGE_PAIR, DENSE, STEP, DEMAND_BATCH, AHEAD_BATCH, COLD_WITH_LINK,
    COLD_WITH_OWN, LINK_WITH_COLD, HOT_WITH_LINK, SHARE, MAX_QUEUED, OVERLAP, LATE_COLD, BATCH_GATE, CHUNK, SCRATCH,
    STAGING, OWN_CACHES, HOT_BY_MOST, COLD_BY_MOST, HOT_WITH_COLD, COLD_WITH_HOT, OVERLAP_COST, N_FIGURES,
) = range(37)  # fmt: skip
FIGURES = (  # what they hold: figures and shares of a machine file, then how the run was asked to be priced
    "ids_s policy_s policy_ahead_s submit_cold_s submit_hot_s submit_batch_s submit_load_s submit_merge_s "
    "submit_next_s link_host_s link_ids_s link_cold_s merge_s merge_pair_s dense_s step_s "
    "copy_demand_batch_s copy_ahead_batch_s cold_with_link cold_with_own link_with_cold hot_with_link share max_queued "
    "overlap late_cold batch_gate chunk scratch staging own_caches_bytes hot_by_most cold_by_most "
    "hot_with_cold cold_with_hot overlap_s"
).split()
# Clocks; then seconds by cause, which add up to the run; then what each resource worked, and what came late.
(
    HOST, GPU, COLD_END, LINK, DONE, QUEUED,
    BOTH_S, HOT_ALONE_S, COLD_ALONE_S, LATE_S, HOST_S, JITTER_S, POLICY_S, MERGE_S, DENSE_S, IDS_S, STEP_S,
    LINK_BUSY, GPU_BUSY, COLD_BUSY, HOST_BUSY, LATE_HITS, LATE_TICKS, LATENESS, WORST_LATENESS, DIVERTED,
    OVERLAPPED, SERIAL, N_STATE,
) = range(29)  # fmt: skip
FIRST_CAUSE, LAST_CAUSE = BOTH_S, STEP_S
ROUNDING = 1 + 1e-12  # what is left after so much was done is nothing
WAITS = np.inf  # in `land`: a row whose copy has not been handed to the link
NEVER, ALWAYS, BY_TABLE = 0, 1, 2  # chains at once
# Rows that the CPU has just read lie in its cores' own caches: of a batch as many as these hold, if the link comes to
# them before the cold chain, going on as it does, has read so many times what they hold.
WARM_FOR = 2.0
HITS, PLACED, OUTSIDE, COLD = 0, 1, 2, 3  # jobs of a tick: three of the hot chain, one of the cold chain

inlined = njit(forceinline=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
internal = njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)


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
def takes(tables, f, kind, tokens, job, rows, pairs, most):
    """Seconds and spread of a job's rows. tables: what `chain_s` looks them up in; most [jobs]: as it takes it."""
    by_most = f[COLD_BY_MOST] if job == COLD else f[HOT_BY_MOST]
    return chain_s(*tables, kind, int(job == COLD), tokens, rows, pairs, most[job], by_most)


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


@inlined
def arrive(s, f):
    """The ids of a layer reach the host, which decides: later, and for longer, while the link works."""
    s[HOST] = max(s[HOST], s[GPU])
    crossed = s[QUEUED] - s[DONE] > max(0.0, s[HOST] - s[LINK])  # once the link has worked up to now
    ids_s = f[IDS] + (f[LINK_IDS] if crossed else 0.0)
    s[HOST] += ids_s
    s[IDS_S] += ids_s
    busy(s, POLICY_S, f[POLICY] + (f[LINK_HOST] if crossed else 0.0))
    pass_time(s, s[HOST])


def _work(s, f, cold_at, cold_left, hot, n_hot, events, n_events, ends):
    """Both chains and the link from `s[LINK]` on, until the jobs are done and the events have happened.

    cold_at, cold_left: when the cold chain begins, and its seconds. hot, four numbers each: jobs of the hot chain in
    order: not before, seconds, what the link must have done, which job. events, two each: when the host hands over a
    batch, and its work. ends: receives when the cold chain and the last hot job ended, and how long the hits waited for
    their copies. Adds seconds by cause.
    """
    t, done, queued = s[LINK], s[DONE], s[QUEUED]  # in registers: what lies in arrays is read again after every store
    beside_cold, beside_link, hot_beside_link = f[LINK_WITH_COLD], f[COLD_WITH_LINK], f[HOT_WITH_LINK]
    hot_beside_cold, cold_beside_hot = f[HOT_WITH_COLD], f[COLD_WITH_HOT]
    job = event = 0
    waited = both = hot_alone = cold_alone = late_alone = neither = link_busy = cold_busy = hot_busy = 0.0
    hot_at, hot_left, gate = np.inf, 0.0, 0.0
    if n_hot:
        hot_at, hot_left, gate = hot[0], hot[1], hot[2]
    event_at = events[0] if n_events else np.inf
    first = min(event_at, hot_at)
    if cold_left > 0:
        first = min(first, cold_at)
    if t < first < np.inf:  # neither chain has begun: the link alone
        neither, left = first - t, queued - done
        if left > 0:
            link_busy = min(left, neither)
            done = queued if left <= neither else done + neither
        t = first
        if t >= event_at:
            queued += events[1]
            event = 1
            event_at = events[2] if event < n_events else np.inf
    while cold_left > 0 or job < n_hot or event < n_events:
        left = queued - done
        busy = left > 0
        waiting = hot_left > 0 and t >= hot_at
        gated = hot_left > 0 and done < gate
        late = waiting and gated
        hot_on = waiting and not gated
        cold_on = cold_left > 0 and t >= cold_at
        until = event_at  # what happens at a given time
        if cold_left > 0 and not cold_on:
            until = min(until, cold_at)
        if hot_left > 0 and not waiting:
            until = min(until, hot_at)
        span = max(0.0, until - t)
        timed = True
        link_rate = beside_cold if cold_on else 1.0
        target = need = 0.0
        if busy:
            target = gate if gated and gate < queued else queued  # a gate may lie beyond what was handed over so far
            need = target - done
            if need < span * link_rate:
                span, timed = need / link_rate, False
        cold_rate = (beside_link if busy else 1.0) * (cold_beside_hot if hot_on else 1.0)
        if cold_on and cold_left < span * cold_rate:
            span, timed = cold_left / cold_rate, False
        hot_rate = (hot_beside_link if busy else 1.0) * (hot_beside_cold if cold_on else 1.0)
        if hot_on and hot_left < span * hot_rate:
            span, timed = hot_left / hot_rate, False
        then = max(t, until) if timed else t + span
        if busy:
            if need <= span * link_rate * ROUNDING:
                done = target
            else:
                done += span * link_rate
            link_busy += span
        if cold_on:
            cold_busy += span
            if cold_left <= span * cold_rate * ROUNDING:
                cold_left = 0.0
                ends[0] = then
            else:
                cold_left -= span * cold_rate
        if hot_on:
            hot_busy += span
            both += span if cold_on else 0.0
            hot_alone += 0.0 if cold_on else span
        elif cold_on:
            cold_alone += span
        elif late:
            late_alone += span
        else:
            neither += span
        if late and hot[4 * job + 3] == HITS:
            waited += span
        t = then
        if hot_on:
            if hot_left <= span * hot_rate * ROUNDING:
                ends[1] = t
                job += 1
                hot_left = 0.0
                if job < n_hot:
                    hot_at, hot_left, gate = hot[4 * job], hot[4 * job + 1], hot[4 * job + 2]
            else:
                hot_left -= span * hot_rate
        if t >= event_at:
            queued += events[2 * event + 1]
            event += 1
            event_at = events[2 * event] if event < n_events else np.inf
    s[LINK], s[DONE], s[QUEUED] = t, done, queued
    s[BOTH_S] += both
    s[HOT_ALONE_S] += hot_alone
    s[COLD_ALONE_S] += cold_alone
    s[LATE_S] += late_alone
    s[HOST_S] += neither
    s[LINK_BUSY] += link_busy
    s[COLD_BUSY] += cold_busy
    s[GPU_BUSY] += hot_busy
    ends[2] += waited


work, work_apart = inlined(_work), internal(_work)  # the first where it is called for every tick


@inlined
def expected_max(a, b, spread):
    """E[max] of two normal times whose difference has this standard deviation, less the larger of the two."""
    gap = abs(a - b) / spread
    if gap > 5:
        return 0.0
    density = np.exp(-0.5 * gap * gap) / np.sqrt(2 * np.pi)
    above = 0.5 * erfc(gap / np.sqrt(2.0))
    return spread * (density - gap * above)


@inlined
def enqueue(s, f, events, n_events, batch_s, rows, rows_s, position):
    """The host hands over a batch. Returns the number of events and the position at which the batch ends."""
    s[HOST] += f[SUBMIT_BATCH] + rows * f[SUBMIT_LOAD]
    s[HOST_BUSY] += f[SUBMIT_BATCH] + rows * f[SUBMIT_LOAD]
    seconds = batch_s + rows_s
    events[2 * n_events] = s[HOST]
    events[2 * n_events + 1] = seconds
    return n_events + 1, position + seconds
