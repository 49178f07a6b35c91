"""Prices the ticks of a replay one after the other: what the host, the GPU, the worker and the link do, and when.

A tick, as the executor carries it out: the ids reach the host; it decides; the cold chain gets the misses and the hot
chain the hits; demand loads go to the link as one batch, then the speculative ones of layer + horizon; once both chains
are done the device merges and goes on to the next layer's ids. Steps of more tokens than the batch gate, and all of
them without overlap, run one chain after the other. Nothing here decides anything: the plan is the replay's.
"""

# pyright: reportCallIssue=false

from __future__ import annotations

import numpy as np

from slotwise.policies.pointers import data_of

from . import price_link as link
from .price_link import arrive, busy, enqueue, expected_max, internal, pass_time, put, spend, takes, wake_s, work
from .price_queue import HEAD, TAIL, forget, in_batches, pump

# What `told` says of a demand at its first mention: one more than the code of the verb in `policies.layout.VERBS`.
HIT, LOADED, AHEAD, LATE, STREAMED = 1, 2, 3, 9, 10
DEMANDS, MISSES, BYTES, SECONDS, N_OUT = range(5)


@internal
def walk_steps(starts, resets, phases, experts, told, ids, ahead, width, horizon, figures, state, totals, one, sheets,
               shape, kinds, wake, row_s, row_bytes, land, q, driver, waiting,
               jobs, chain_ends, handed, gates, out):  # fmt: skip
    """Prices the steps of one piece. `state`, `land` and the queues go on from piece to piece.

    experts, told [layers, rows, top_k]; ids, ahead [layers, rows, recorded] or empty; starts [steps + 1] rows; resets,
    phases [steps]; totals [2 phases, N_STATE] receives what each step added to `state`;
    jobs, chain_ends, handed: scratch of the caller, who keeps it alive: a pointer to an array of our own would not.
    gates [kinds, tokens + 1, hot rows + 1, cold rows + 1]: where chains overlap, if a table says it (`gate.gates_of`);
    kinds [layers]: whose sheets price a layer; row_s [layers, 3]: link seconds of a row, see `Pricer`;
    out [steps, N_OUT] receives demands, misses, bytes moved and seconds of each step.
    """
    (n_layers, n_experts), top_k = land.shape, experts.shape[2]
    kind = np.zeros(n_experts, np.uint8)  # the job of an expert of the present tick
    loads, hurried = np.zeros(n_experts, np.int64), np.zeros(n_experts, np.int64)
    rows, pairs, most = np.zeros(4, np.int64), np.zeros(4, np.int64), np.ones(4, np.int64)
    served = np.zeros(n_experts, np.int64)  # tokens that an expert of the present tick serves
    s, f = data_of(state), data_of(figures)
    hot, ends, events = data_of(jobs), data_of(chain_ends), data_of(handed)
    tables = (
        data_of(one), one.shape[2] - 1, data_of(sheets), data_of(shape), sheets.shape[2], sheets.shape[4],
        sheets.shape[5],
    )  # fmt: skip
    limited = f[link.MAX_QUEUED] < np.inf
    plain = not limited and f[link.SHARE] == 0 and f[link.LATE_COLD] == 0 and top_k < n_experts
    before = np.zeros(state.size)
    for i in range(starts.size - 1):
        lo, hi = starts[i], starts[i + 1]
        n = hi - lo
        small = n <= f[link.BATCH_GATE]
        if resets[i]:  # the pools are emptied, and what is under way is waited for between two steps
            s[link.DONE] = s[link.QUEUED]
            q[HEAD] = q[TAIL]
            land[:] = -1.0
        for at in range(state.size):
            before[at] = s[at]
        demands, misses, moved, began = 0, 0, 0, s[link.HOST]
        for layer in range(n_layers):
            sheet = kinds[layer]
            arrive(s, f)
            position, n_events, n_hot = s[link.QUEUED], 0, 0
            if limited and q[HEAD] < q[TAIL]:
                n_events, position = pump(s, f, q, driver, waiting, land, row_s, row_bytes, events, n_events, position)
            # --- which chain computes what ---
            n_hits = n_placed = n_outside = n_cold = n_fetched = n_pairs = 0
            if n > 1:
                pairs[:], most[:] = 0, 1
            if f[link.SHARE] > 0:
                n_missed = 0
                for row in range(lo, hi):
                    for r in range(top_k):
                        n_missed += told[layer, row, r] > HIT
                n_fetched = int(np.round(f[link.SHARE] * n_missed))
            backlog = position > s[link.DONE] or (limited and q[HEAD] < q[TAIL])
            hits_gate = placed_gate = 0.0
            n_loads = n_hurried = n_computed = n_warm = missed = late = 0
            waits_for_demand = False
            counted = plain and n == 1
            if counted:  # by far the usual tick: no branch hangs on what became of a demand
                done = s[link.DONE] if backlog else np.inf
                for r in range(top_k):
                    expert, what = experts[layer, lo, r], told[layer, lo, r]
                    known = expert < n_experts
                    hit = what == HIT
                    lands = land[layer, expert if known else 0]
                    waits = hit & (lands > done)
                    n_pairs += known
                    n_hits += hit
                    missed += what > HIT
                    loads[n_loads] = expert
                    n_loads += what == LOADED
                    late += waits
                    hits_gate = max(hits_gate, lands if waits else 0.0)
                n_cold = missed
                n_computed = n_loads
            for row in range(lo, lo if counted else hi):
                for r in range(top_k):
                    expert = experts[layer, row, r]
                    if expert >= n_experts:
                        continue
                    what = told[layer, row, r]
                    n_pairs += 1
                    if what == 0:
                        pairs[kind[expert]] += 1
                        served[expert] += 1
                        most[kind[expert]] = max(most[kind[expert]], served[expert])
                        continue
                    job = link.HITS
                    if what == HIT:
                        if backlog and land[layer, expert] > s[link.DONE]:
                            late += 1
                            if f[link.LATE_COLD]:
                                job = link.COLD
                                s[link.DIVERTED] += 1
                            elif land[layer, expert] == link.WAITS:
                                hurried[n_hurried] = expert
                                n_hurried += 1
                            else:
                                hits_gate = max(hits_gate, land[layer, expert])
                    else:
                        missed += 1
                        job = link.COLD
                        if missed <= n_fetched:
                            job = link.PLACED if what in (LOADED, LATE) else link.OUTSIDE
                            if what == LATE:
                                if land[layer, expert] == link.WAITS:
                                    job = link.OUTSIDE
                                else:
                                    placed_gate = max(placed_gate, land[layer, expert])
                        if what == LOADED:
                            loads[n_loads] = expert
                            n_loads += 1
                            n_computed += job == link.COLD
                            waits_for_demand |= job == link.PLACED
                    n_hits += job == link.HITS
                    n_placed += job == link.PLACED
                    n_outside += job == link.OUTSIDE
                    n_cold += job == link.COLD
                    if n > 1:
                        kind[expert] = job
                        served[expert] = 1
                        pairs[job] += 1
            rows[link.HITS], rows[link.PLACED] = n_hits, n_placed
            rows[link.OUTSIDE], rows[link.COLD] = n_outside, n_cold
            if n == 1:
                for job in range(4):  # an assignment of one array to another would take memory for a copy
                    pairs[job] = rows[job]
            demands += n_hits + n_placed + n_outside + n_cold
            misses += missed
            moved += (n_loads + rows[link.OUTSIDE]) * row_bytes[layer]
            if n_hurried:
                n_events, position = enqueue(
                    s, f, events, n_events, f[link.AHEAD_BATCH], n_hurried, n_hurried * row_s[layer, 1], position
                )
                hits_gate = position
                for at in range(n_hurried):
                    land[layer, hurried[at]] = position
                    forget(q, waiting, layer * n_experts + hurried[at])
            # --- the chains begin ---
            overlap = f[link.OVERLAP] > link.NEVER and small
            if overlap and f[link.OVERLAP] == link.BY_TABLE:
                overlap = n_loads >= gates[
                    sheet, min(n, gates.shape[1] - 1), min(rows[link.HITS], gates.shape[2] - 1),
                    min(rows[link.COLD], gates.shape[3] - 1),
                ]  # fmt: skip
            if rows[link.HITS] and rows[link.COLD]:
                s[link.OVERLAPPED if overlap else link.SERIAL] += 1
            hit_s = cold_s = cold_spread = hot_spread = 0.0
            cold_at = np.inf
            ends[2] = 0.0
            if rows[link.HITS]:
                hit_s, hot_spread = takes(tables, f, sheet, n, link.HITS, rows[link.HITS], pairs[link.HITS], most)
            if rows[link.COLD]:
                cold_s, cold_spread = takes(tables, f, sheet, n, link.COLD, rows[link.COLD], pairs[link.COLD], most)
                own = f[link.OWN_CACHES] / row_bytes[layer]
                if n_computed and (position - s[link.DONE]) * rows[link.COLD] < link.WARM_FOR * own * cold_s:
                    n_warm = min(n_computed, int(own + 0.5))
                    if overlap:
                        cold_s *= f[link.COLD_WITH_LINK] / f[link.COLD_WITH_OWN]
                if overlap:
                    spend(s, f[link.SUBMIT_COLD])
                    cold_at = s[link.HOST] + wake_s(wake, s[link.HOST] - s[link.COLD_END])
            if rows[link.HITS]:
                spend(s, f[link.SUBMIT_HOT])
                put(hot, 0, s[link.HOST], hit_s, hits_gate, link.HITS)
                n_hot = 1
            if not overlap:
                if n_hot or n_events:
                    link.work_apart(s, f, cold_at, 0.0, hot, n_hot, events, n_events, ends)
                    n_hot = n_events = 0
                    s[link.HOST] = max(s[link.HOST], s[link.LINK])
                if rows[link.COLD]:
                    spend(s, f[link.SUBMIT_COLD])
                    cold_at = s[link.HOST] + wake_s(wake, s[link.HOST] - s[link.COLD_END])
                    link.work_apart(s, f, cold_at, cold_s, hot, 0, events, 0, ends)
                    s[link.COLD_END] = s[link.HOST] = s[link.LINK]
            # --- copies ---
            if n_loads:
                rows_s = (n_loads - n_warm) * row_s[layer, 0] + n_warm * row_s[layer, 2]
                n_events, position = enqueue(s, f, events, n_events, f[link.DEMAND_BATCH], n_loads, rows_s, position)
                for at in range(n_loads):
                    if limited and land[layer, loads[at]] == link.WAITS:
                        forget(q, waiting, layer * n_experts + loads[at])
                    land[layer, loads[at]] = position
                if waits_for_demand:
                    placed_gate = max(placed_gate, position)
            if rows[link.PLACED]:
                spend(s, f[link.SUBMIT_HOT])
                seconds, _ = takes(tables, f, sheet, n, link.PLACED, rows[link.PLACED], pairs[link.PLACED], most)
                put(hot, n_hot, s[link.HOST], seconds, placed_gate, link.PLACED)
                n_hot += 1
            outside = rows[link.OUTSIDE]
            wave, wave_pairs = 0, 0.0
            if outside:
                wave = min(outside, int(f[link.SCRATCH] if small or f[link.STAGING] == 0 else f[link.STAGING]))
                wave_pairs = pairs[link.OUTSIDE] * wave / outside
                n_events, position = enqueue(
                    s, f, events, n_events, f[link.DEMAND_BATCH], wave, wave * row_s[layer, 0], position
                )
                spend(s, f[link.SUBMIT_HOT])
                seconds, _ = takes(tables, f, sheet, n, link.OUTSIDE, wave, wave_pairs, most)
                put(hot, n_hot, s[link.HOST], seconds, position, link.OUTSIDE)
                n_hot += 1
                outside -= wave
            if width and small and layer + horizon < n_layers:
                spend(s, f[link.POLICY_AHEAD])
                target = layer + horizon
                n_loads = 0
                for rank in range(width):
                    for row in range(lo, hi):
                        if ahead[target, row, rank] == AHEAD:
                            loads[n_loads] = ids[target, row, rank]
                            n_loads += 1
                moved += n_loads * row_bytes[target]
                if n_loads and (limited or f[link.CHUNK] > 0):
                    n_events, position = in_batches(
                        s, f, q, driver, waiting, target, n_loads, land, row_s, row_bytes, events, n_events, position,
                        loads,
                    )  # fmt: skip
                elif n_loads:
                    n_events, position = enqueue(
                        s, f, events, n_events, f[link.AHEAD_BATCH], n_loads, n_loads * row_s[target, 1], position
                    )
                    for at in range(n_loads):
                        land[target, loads[at]] = position
            # --- until both chains are done ---
            cold_now = cold_s if overlap and rows[link.COLD] else 0.0
            work(s, f, cold_at, cold_now, hot, n_hot, events, n_events, ends)
            if cold_now > 0:
                s[link.COLD_END] = ends[0]
            extra = 0.0
            spread = np.sqrt(cold_spread * cold_spread + hot_spread * hot_spread)
            if cold_now > 0 and rows[link.HITS]:
                extra = f[link.OVERLAP_COST]
                if spread > 0:
                    extra += expected_max(ends[0], ends[1], spread)
            while outside:
                wave_pairs *= min(outside, wave) / wave
                wave = min(outside, wave)
                s[link.HOST] = max(s[link.HOST], s[link.LINK])
                n_events, position = enqueue(
                    s, f, events, 0, f[link.DEMAND_BATCH], wave, wave * row_s[layer, 0], position
                )
                spend(s, f[link.SUBMIT_HOT])
                seconds, _ = takes(tables, f, sheet, n, link.OUTSIDE, wave, wave_pairs, most)
                put(hot, 0, s[link.HOST], seconds, position, link.OUTSIDE)
                link.work_apart(s, f, np.inf, 0.0, hot, 1, events, n_events, ends)
                outside -= wave
            if late:
                s[link.LATE_HITS] += late
                s[link.LATE_TICKS] += 1
                s[link.LATENESS] += ends[2]
                s[link.WORST_LATENESS] = max(s[link.WORST_LATENESS], ends[2])
            # --- merge, and on to the next layer ---
            spend(s, f[link.SUBMIT_MERGE])
            done = s[link.LINK] + extra
            s[link.JITTER_S] += extra
            s[link.HOST_S] += max(0.0, s[link.HOST] - done)
            merge = f[link.MERGE] + n_pairs * f[link.MERGE_PAIR]
            if rows[link.COLD] and s[link.QUEUED] > s[link.DONE]:
                merge += f[link.LINK_COLD]
            s[link.MERGE_S] += merge
            s[link.DENSE_S] += f[link.DENSE]
            s[link.GPU_BUSY] += merge + f[link.DENSE]
            s[link.GPU] = max(s[link.HOST], done) + merge + f[link.DENSE]
            spend(s, f[link.SUBMIT_NEXT])
            s[link.HOST_S] += max(0.0, s[link.HOST] - s[link.GPU])
        s[link.HOST] = max(s[link.HOST], s[link.GPU])
        busy(s, link.STEP_S, f[link.STEP])
        pass_time(s, s[link.HOST])
        out[i, DEMANDS], out[i, MISSES], out[i, BYTES], out[i, SECONDS] = demands, misses, moved, s[link.HOST] - began
        for at in range(state.size):
            totals[phases[i], at] += s[at] - before[at]
