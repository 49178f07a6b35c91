"""One tick of demand, in the three ways there are: judged at once, one expert after the other, or streamed past."""
# pyright: reportCallIssue=false, reportPrivateImportUsage=false

from __future__ import annotations

import numpy as np

from .kernel_loads import begin, meet, serve_miss, trim
from .kernel_slots import hold, inlined, internal, record, touch
from .layout import NONE
from .names import C, H, P, V
from .policy import FULL, FUTURE, NUMBERS, PLANS_TICKS, RECORD, TELL, choose

# --- generated modules begin here ---


@internal
def demand_event(p, n, at, ids, lo, hi, future, told):
    """Phases 2 to 4, the whole demand judged against residency at the start of the tick."""
    head = p.head
    tick = at.tick
    mark = 2 * tick + 2
    n_experts = np.uint32(p.shared[H.n_experts])
    base = np.uint32(at.base)
    recording = RECORD and head[P.recording] != 0
    count = 0
    misses = 0
    routed = 0
    prefetched = 0
    compulsory = 0
    for i in range(lo, hi):
        expert = np.uint32(ids[i])
        if expert >= n_experts:
            continue
        key = np.uint32(base + expert)
        routed += 1
        touch(p, key)
        if NUMBERS:
            p.demanded[key] = head[P.touches]
        if p.mark[key] == mark:
            continue
        p.mark[key] = mark
        hold(p, key, tick)
        p.demand[count] = key
        count += 1
        meet(p, at, key)
        if FUTURE and p.shared[H.has_future]:
            p.next[key] = future[i]
        hit = p.slot[key] != NONE and (not FULL or p.land[key] <= tick)
        if hit:
            if p.unused[key]:
                p.unused[key] = 0
                prefetched += 1
            if recording:
                record(p, V.hit, key, p.slot[key])
            if TELL and p.shared[H.told]:
                told[i] = 1 + V.hit
        else:
            if not p.known[key]:
                compulsory += 1
            p.missed[misses] = key
            if TELL:
                p.asked[misses] = i - lo
            misses += 1
        p.known[key] = 1
    layer = at.layer
    hits = count - misses
    n[layer * C.n + C.demands] += count
    n[layer * C.n + C.routed] += routed
    n[layer * C.n + C.hits] += hits
    n[layer * C.n + C.hits_demand] += hits - prefetched
    n[layer * C.n + C.prefetch_hits] += prefetched
    if misses:
        n[layer * C.n + C.misses] += misses
        n[layer * C.n + C.compulsory] += compulsory
        head[P.scored] = 0
        if PLANS_TICKS:
            choose(p, at, misses)
        for i in range(misses):
            verb = serve_miss(p, n, p.missed[i], at, i)
            if TELL and p.shared[H.told]:
                told[lo + p.asked[i]] = 1 + verb
    if FULL and p.shared[H.exceed]:
        trim(p, n, at)


@inlined
def count_hit(p, n, layer, key):
    """One hit, and whether look-ahead brought it. (The event loop sums up per tick instead: it is the fast one.)"""
    n[layer * C.n + C.hits] += 1
    if p.unused[key]:
        p.unused[key] = 0
        n[layer * C.n + C.prefetch_hits] += 1
    else:
        n[layer * C.n + C.hits_demand] += 1
    record(p, V.hit, key, p.slot[key])


@internal
def demand_sequential(p, n, at, ids, lo, hi, future, told):
    """Phases 2 to 4 one expert at a time: later members can be the victims of earlier ones."""
    head = p.head
    tick = at.tick
    layer = at.layer
    mark = 2 * tick + 2
    count = 0
    for i in range(lo, hi):
        if ids[i] >= p.shared[H.n_experts]:
            continue
        n[layer * C.n + C.routed] += 1
        key = at.base + np.int64(ids[i])
        if p.mark[key] == mark:
            continue
        p.mark[key] = mark
        p.demand[count] = key
        p.missed[count] = i
        count += 1
    n[layer * C.n + C.demands] += count
    start = head[P.n_records]
    for j in range(count):
        key = p.demand[j]
        i = p.missed[j]
        meet(p, at, key)
        touch(p, key)
        if NUMBERS:
            p.demanded[key] = head[P.touches]
        if FUTURE and p.shared[H.has_future]:
            p.next[key] = future[i]
        verb = V.hit
        if p.slot[key] != NONE and (not FULL or p.land[key] <= tick):
            count_hit(p, n, layer, key)
        else:
            n[layer * C.n + C.misses] += 1
            if not p.known[key]:
                n[layer * C.n + C.compulsory] += 1
            head[P.scored] = 0
            verb = serve_miss(p, n, key, at, j)
        p.known[key] = 1
        if TELL and p.shared[H.told]:
            told[i] = 1 + verb
    if head[P.recording]:
        hits_first(p, start)
    for j in range(count):
        hold(p, p.demand[j], tick)
    if FULL and p.shared[H.exceed]:
        trim(p, n, at)


@internal
def hits_first(p, start):
    """A plan lists the hits of a tick before its loads, in both contracts: a stable sort on that."""
    end = p.head[P.n_records]
    free = start
    for i in range(start, end):
        if p.verb[i] == V.hit:
            verb, key, place = p.verb[i], p.key[i], p.place[i]
            for j in range(i, free, -1):
                p.verb[j] = p.verb[j - 1]
                p.key[j] = p.key[j - 1]
                p.place[j] = p.place[j - 1]
            p.verb[free] = verb
            p.key[free] = key
            p.place[free] = place
            free += 1


@internal
def stream_demand(p, n, at, ids, lo, hi, future, told):
    """A streamed step: residents are read, the rest passes by, and nothing remembers it."""
    mark = 2 * at.tick + 2
    layer = at.layer
    count = 0
    for i in range(lo, hi):
        if ids[i] >= p.shared[H.n_experts]:
            continue
        n[layer * C.n + C.routed] += 1
        key = at.base + np.int64(ids[i])
        if p.mark[key] == mark:
            continue
        p.mark[key] = mark
        p.demand[count] = key
        count += 1
        if FUTURE and p.shared[H.has_future]:
            p.next[key] = future[i]
        n[layer * C.n + C.demands] += 1
        hit = p.slot[key] != NONE and p.land[key] <= at.tick
        if hit:
            count_hit(p, n, layer, key)
        else:
            n[layer * C.n + C.misses] += 1
            n[layer * C.n + C.streamed] += 1
            record(p, V.streamed, key, NONE)
        if TELL and p.shared[H.told]:
            told[i] = 1 + (V.hit if hit else V.streamed)


@internal
def demand(p, n, at, ids, lo, hi, n_tokens, future, told):
    """One tick of demand: `ids[lo:hi]` are the routed experts of the step's tokens at this layer, in order."""
    p.head[P.n_records] = 0
    if FULL:
        p.head[P.started] = 0
    if at.now >= p.head[P.due]:
        begin(p, n, at)
    if FULL and p.shared[H.stream] and n_tokens > p.shared[H.batch_gate]:
        stream_demand(p, n, at, ids, lo, hi, future, told)
    elif FULL and p.shared[H.sequential]:
        demand_sequential(p, n, at, ids, lo, hi, future, told)
    else:
        demand_event(p, n, at, ids, lo, hi, future, told)
