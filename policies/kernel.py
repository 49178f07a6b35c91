"""What a pool does at one tick: the law of the semantics page, compiled once per policy.

This text is a template: `compiled.py` copies it into a module of its own for each policy, with the policy's functions
in place of the defaults imported here, numbers in place of H, P, C and V, and True or False in place of the features:
FULL (everything that the plain event contract does not need), LOOK (look-ahead), RECORD (plans are kept), FUTURE. Every function takes `p`, the views of
one pool, `n`, a pointer to the present cell's counters [layer, counter], and `at`, the moment. Keys are expert ids in a
layer pool and layer * n_experts + expert in the global pool.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from .policy import (
    FULL,
    FUTURE,
    KEEPS_ORDER,
    LOOK,
    NUMBERS,
    PLANS_TICKS,
    RECORD,
    choose,
    filled,
    left,
    met,
    oldest,
    priority,
    refused,
    then,
    touched,
)
from .layout import FOREVER, NEVER, NONE
from .names import C, H, P, V

# --- generated modules begin here ---

inlined = njit(forceinline=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
internal = njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
TAKEN = (1 << 63) - 2  # score of a slot without a candidate; the largest int64 itself keeps min() from becoming vector code


class Moment(NamedTuple):
    """When something happens: step, tick, clock of the ages, layer, its first key, and the random policies' key offset."""

    now: int
    tick: int
    clock: int
    layer: int
    base: int
    key_offset: int


@inlined
def moment(p, now, layer, clock):
    """The moment of tick (now, layer); without a clock of its own a policy counts age in steps."""
    shared = p.shared
    wide = shared[H.n_pools] == 1 and shared[H.n_layers] > 1
    base = layer * shared[H.n_experts] if wide else 0
    offset = 0 if wide else layer * shared[H.n_experts]
    age = clock if shared[H.access_clock] else now
    return Moment(now, now * shared[H.n_layers] + layer, age, layer, base, offset)


@inlined
def shifted(p, at, layer):
    """The same moment, seen from another layer's keys: where a look-ahead lands."""
    shared = p.shared
    wide = shared[H.n_pools] == 1 and shared[H.n_layers] > 1
    base = layer * shared[H.n_experts] if wide else 0
    offset = 0 if wide else layer * shared[H.n_experts]
    return Moment(at.now, at.tick, at.clock, layer, base, offset)


@inlined
def record(p, verb, key, place):
    head = p.head
    if RECORD and head[P.recording]:
        i = head[P.n_records]
        p.verb[i] = verb
        p.key[i] = key
        p.place[i] = place
        head[P.n_records] = i + 1


@inlined
def touch(p, key):
    """Every touch takes the next number, whoever asks for it later."""
    if NUMBERS:
        head = p.head
        head[P.touches] += 1
        p.touch[key] = head[P.touches]
    touched(p, key)


@inlined
def pick(p, at):
    """The victim: lowest priority among the keys in slots that are not busy, then `then`, then the lowest id; or NONE."""
    if KEEPS_ORDER:
        return oldest(p, at)
    head = p.head
    tick = at.tick
    slots = min(p.owner.shape[0], head[P.high])
    if not head[P.scored]:
        head[P.scored] = 1
        for slot in range(slots):
            p.score[slot] = TAKEN
            if p.hold[slot] < tick:
                p.score[slot] = min(priority(p, p.owner[slot], at), TAKEN - 1)
    best = np.int64(TAKEN)
    for slot in range(slots):
        best = min(best, p.score[slot])
    if best == TAKEN:
        return np.int64(NONE)
    victim = np.int64(NONE)
    for slot in range(slots):
        if p.score[slot] == best:
            key = np.int64(p.owner[slot])
            if victim == NONE:
                victim = key
            else:
                one, other = then(p, key, at), then(p, victim, at)
                if one < other or (one == other and key < victim):
                    victim = key
    return victim


@inlined
def hold(p, key, tick):
    """The key cannot be a victim up to and including this tick."""
    if p.busy[key] < tick:
        p.busy[key] = tick
        slot = p.slot[key]
        if slot != NONE:
            p.hold[slot] = tick


@inlined
def layer_of(p, at, key):
    """The layer that an event of this key counts under."""
    if p.shared[H.n_pools] == 1:
        return key // p.shared[H.n_experts]
    return at.layer


@inlined
def put(p, key, at, layer, lag, at_once):
    """Gives the key the free slot with the lowest index; the row lands after its lag."""
    head = p.head
    slot = head[P.hint]
    while p.owner[slot] != NONE:
        slot += 1
    head[P.hint] = slot + 1
    head[P.high] = max(head[P.high], slot + 1)
    head[P.occupied] += 1
    if FULL:
        head[P.used] += p.row_bytes[layer]
    if NUMBERS:
        head[P.fills] += 1
        p.fill[key] = head[P.fills]
    p.owner[slot] = key
    p.slot[key] = slot
    if not KEEPS_ORDER:
        p.score[slot] = TAKEN
    land = at.tick if at_once else at.tick + lag + 1
    p.land[key] = land
    p.busy[key] = max(p.busy[key], land - 1)
    p.hold[slot] = p.busy[key]
    p.unused[key] = 0
    filled(p, key)
    return slot


@inlined
def remove(p, key, layer):
    """Takes the key out of its slot."""
    head = p.head
    slot = p.slot[key]
    p.owner[slot] = NONE
    p.hold[slot] = FOREVER
    p.slot[key] = NONE
    if not KEEPS_ORDER:
        p.score[slot] = TAKEN
    head[P.occupied] -= 1
    if FULL:
        head[P.used] -= p.row_bytes[layer]
    if slot < head[P.hint]:
        head[P.hint] = slot
    left(p, key)
    return slot


@inlined
def evict(p, n, key, at, by):
    layer = layer_of(p, at, key)
    n[layer * C.n + C.evictions] += 1
    n[layer * C.n + by] += 1
    if p.unused[key]:
        p.unused[key] = 0
        n[layer * C.n + C.wasted] += 1
    slot = remove(p, key, layer)
    record(p, V.evict, key, slot)


@inlined
def score(p, key, clock):
    """The tier score that the guard compares: frequency above, recency below, 0 if never demanded."""
    if p.last[key] == NEVER:
        return np.int64(0)
    return np.int64(p.heat[key]) * 256 + max(np.int64(0), 255 - (clock - p.last[key]))


@inlined
def protects(p, victim, prediction, at):
    """The guard's verdict: the victim is warm and clearly above the prediction."""
    shared = p.shared
    if p.heat[victim] < shared[H.guard_warm]:
        return False
    warm = score(p, victim, at.clock)
    margin = np.int64(np.floor(warm * p.ratio[0]))
    return warm + margin + shared[H.guard_counts] * 256 > score(p, prediction, at.clock)


ROOM, NO_VICTIM, GUARDED = 0, 1, 2


@inlined
def make_room(p, n, key, at, layer, speculative):
    """Frees what the key needs, or nothing. The one place where a victim is chosen, for both paths."""
    head = p.head
    if not FULL or p.shared[H.in_bytes] == 0:
        if head[P.occupied] < head[P.capacity]:
            return ROOM
        victim = pick(p, at)
        if victim == NONE:
            return NO_VICTIM
        if speculative and p.shared[H.guard] and protects(p, victim, key, at):
            return GUARDED
        evict(p, n, victim, at, C.evicted_by_prefetch if speculative else C.evicted_by_demand)
        return ROOM
    need = head[P.used] + p.row_bytes[layer] - head[P.capacity]
    count = 0
    verdict = ROOM
    while need > 0:
        victim = pick(p, at)
        if victim == NONE:
            verdict = NO_VICTIM
            break
        if speculative and p.shared[H.guard] and protects(p, victim, key, at):
            verdict = GUARDED
            break
        p.gathered[count] = victim
        count += 1
        hold(p, victim, at.tick)
        p.score[p.slot[victim]] = TAKEN
        need -= p.row_bytes[layer_of(p, at, victim)]
    for i in range(count):
        victim = p.gathered[i]
        if verdict == ROOM:
            evict(p, n, victim, at, C.evicted_by_prefetch if speculative else C.evicted_by_demand)
        else:
            p.busy[victim] = NEVER
            p.hold[p.slot[victim]] = NEVER
            head[P.scored] = 0
    return verdict


@internal
def load_initial(p, n, key, at):
    """A row that is there from the start (pins, a static profile): resident at once."""
    layer = layer_of(p, at, key)
    head = p.head
    if FULL and p.shared[H.in_bytes]:
        if head[P.used] + p.row_bytes[layer] > head[P.capacity]:
            return
    elif head[P.occupied] >= head[P.capacity]:
        return
    if p.slot[key] != NONE:
        return
    slot = put(p, key, at, layer, 0, True)
    n[layer * C.n + C.loads_initial] += 1
    n[layer * C.n + C.fills] += 1
    record(p, V.load_initial, key, slot)


@internal
def begin(p, n, at):
    """What is due at the start of a step, before anything else touches the pool: opening, ageing, a warm-up's end."""
    head = p.head
    shared = p.shared
    if not head[P.opened]:
        head[P.opened] = 1
        head[P.origin] = at.now
        for i in range(head[P.n_initial]):
            load_initial(p, n, p.initial[i], at)
    due = np.int64(FOREVER)
    if shared[H.half_life] > 0:
        while at.now >= head[P.age_at]:
            head[P.age_at] += shared[H.half_life]
            for key in range(shared[H.n_keys]):
                p.heat[key] >>= 1
                met(p, key)
        due = min(due, head[P.age_at])
    if shared[H.gate_window] > 0:
        while at.now >= head[P.gate_age_at]:
            head[P.gate_age_at] += shared[H.gate_window]
            for key in range(shared[H.n_keys]):
                p.gated[key] >>= 1
        due = min(due, head[P.gate_age_at])
    if warming(p):
        if at.now >= head[P.origin] + shared[H.warmup]:
            head[P.warmed] = 1
            load_hottest(p, n, at)
        else:
            due = min(due, head[P.origin] + shared[H.warmup])
    head[P.due] = due


@internal
def load_hottest(p, n, at):
    """Fills the pool with the most demanded keys (count descending, id ascending): the end of a static warm-up."""
    keys = p.shared[H.n_keys]
    for _ in range(keys):
        best = NONE
        for key in range(keys):
            if p.heat[key] > 0 and p.gathered[key] == 0 and (best == NONE or p.heat[key] > p.heat[best]):
                best = key
        if best == NONE:
            break
        p.gathered[best] = 1
        load_initial(p, n, best, at)
    p.gathered[:] = 0


@inlined
def may_load(p, at):
    """Counts a load against the cap of this tick and pool; False once the cap is reached."""
    head = p.head
    cap = p.shared[H.max_loads]
    if not FULL or cap < 0:
        return True
    if head[P.loads_tick] != at.tick:
        head[P.loads_tick] = at.tick
        head[P.loads] = 0
    return head[P.loads] < cap


@inlined
def warming(p):
    return FULL and p.shared[H.warmup] > 0 and not p.head[P.warmed]


@inlined
def meet(p, at, key):
    """History of one demanded expert."""
    if p.heat[key] != 0xFFFFFFFF:
        p.heat[key] += np.uint32(1)
    p.last[key] = at.clock
    met(p, key)


@inlined
def serve_miss(p, n, key, at, index):
    """Late, gate, throttle, slot: the first refusal is the one counted."""
    layer = at.layer
    head = p.head
    shared = p.shared
    if FULL and p.slot[key] != NONE:
        n[layer * C.n + C.late] += 1
        if p.unused[key]:
            p.unused[key] = 0
            n[layer * C.n + C.used_late] += 1
        record(p, V.late, key, p.slot[key])
        return
    if shared[H.gate]:
        if p.gated[key] != 0xFFFFFFFF:
            p.gated[key] += np.uint32(1)
        if p.gated[key] < shared[H.gate_admit]:
            n[layer * C.n + C.gated] += 1
            refused(p, key)
            record(p, V.gated, key, NONE)
            return
    if not may_load(p, at):
        n[layer * C.n + C.throttled] += 1
        refused(p, key)
        record(p, V.throttled, key, NONE)
        return
    if warming(p) or (PLANS_TICKS and not p.kept[index]):
        verdict = NO_VICTIM
    elif FULL and shared[H.exceed]:
        verdict = ROOM
    else:
        verdict = make_room(p, n, key, at, layer, False)
    if verdict != ROOM:
        n[layer * C.n + C.bypassed] += 1
        refused(p, key)
        record(p, V.bypassed, key, NONE)
        return
    head[P.loads] += 1
    at_once = FULL and shared[H.sequential] != 0 and shared[H.lag_demand] == 0
    slot = put(p, key, at, layer, shared[H.lag_demand], at_once)
    n[layer * C.n + C.loads_demand] += 1
    n[layer * C.n + C.fills] += 1
    record(p, V.load_demand, key, slot)


@internal
def trim(p, n, at):
    """`exceed`: back to size at the end of the tick, never a member of its demand."""
    head = p.head
    head[P.scored] = 0
    while (head[P.used] if p.shared[H.in_bytes] else head[P.occupied]) > head[P.capacity]:
        victim = pick(p, at)
        if victim == NONE:
            break
        evict(p, n, victim, at, C.evicted_by_demand)


@internal
def demand_event(p, n, at, ids, lo, hi, future, bits):
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
        else:
            if not p.known[key]:
                compulsory += 1
            p.missed[misses] = key
            misses += 1
        p.known[key] = 1
        if FULL and p.shared[H.has_bits]:
            bits[i] = 1 if hit else 2
    head[P.n_demand] = count
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
            serve_miss(p, n, p.missed[i], at, i)
    if FULL and p.shared[H.exceed]:
        trim(p, n, at)


@internal
def demand_sequential(p, n, at, ids, lo, hi, future, bits):
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
    head[P.n_demand] = count
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
        hit = p.slot[key] != NONE and (not FULL or p.land[key] <= tick)
        if FULL and p.shared[H.has_bits]:
            bits[i] = 1 if hit else 2
        if hit:
            n[layer * C.n + C.hits] += 1
            if p.unused[key]:
                p.unused[key] = 0
                n[layer * C.n + C.prefetch_hits] += 1
            else:
                n[layer * C.n + C.hits_demand] += 1
            record(p, V.hit, key, p.slot[key])
        else:
            n[layer * C.n + C.misses] += 1
            if not p.known[key]:
                n[layer * C.n + C.compulsory] += 1
            head[P.scored] = 0
            serve_miss(p, n, key, at, j)
        p.known[key] = 1
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
def stream_demand(p, n, at, ids, lo, hi, future, bits):
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
        if FULL and p.shared[H.has_bits]:
            bits[i] = 1 if hit else 2
        if hit:
            n[layer * C.n + C.hits] += 1
            if p.unused[key]:
                p.unused[key] = 0
                n[layer * C.n + C.prefetch_hits] += 1
            else:
                n[layer * C.n + C.hits_demand] += 1
            record(p, V.hit, key, p.slot[key])
        else:
            n[layer * C.n + C.misses] += 1
            n[layer * C.n + C.streamed] += 1
            record(p, V.streamed, key, NONE)
    p.head[P.n_demand] = count


@internal
def demand(p, n, at, ids, lo, hi, n_tokens, future, bits):
    """One tick of demand: `ids[row, lo:hi]` are the routed experts of the step's tokens at this layer, in order."""
    p.head[P.n_records] = 0
    if at.now >= p.head[P.due]:
        begin(p, n, at)
    if FULL and p.shared[H.stream] and n_tokens > p.shared[H.batch_gate]:
        stream_demand(p, n, at, ids, lo, hi, future, bits)
    elif FULL and p.shared[H.sequential]:
        demand_sequential(p, n, at, ids, lo, hi, future, bits)
    else:
        demand_event(p, n, at, ids, lo, hi, future, bits)


@internal
def look_ahead(p, n, at, predicted, lo, n_tokens, recorded, width, absent):
    """Phase 5: predictions for layer `at.layer`, rank by rank, every token's best first; `lo` is the first token's row."""
    head = p.head
    head[P.n_records] = 0
    if at.now >= head[P.due]:
        begin(p, n, at)
    tick = at.tick
    layer = at.layer
    mark = 2 * tick + 3
    count = 0
    offered = 0
    for rank in range(width):
        for token in range(n_tokens):
            expert = np.int64(predicted[lo + token * recorded + rank])
            if expert == absent:
                continue
            offered += 1
            if expert >= p.shared[H.n_experts]:
                n[layer * C.n + C.invalid] += 1
                record(p, V.invalid, at.base + expert, NONE)
                continue
            key = at.base + expert
            if p.mark[key] == mark:
                n[layer * C.n + C.invalid] += 1
                record(p, V.invalid, key, NONE)
                continue
            p.mark[key] = mark
            hold(p, key, tick)
            p.considered[count] = key
            count += 1
    head[P.n_considered] = count
    n[layer * C.n + C.predictions] += offered
    head[P.scored] = 0
    for i in range(count):
        offer(p, n, p.considered[i], at)


@inlined
def offer(p, n, key, at):
    """Redundant, throttle, slot, guard: the first refusal is the one counted."""
    layer = at.layer
    head = p.head
    touch(p, key)
    if p.slot[key] != NONE:
        n[layer * C.n + C.redundant] += 1
        record(p, V.redundant, key, p.slot[key])
        return
    reason = C.dropped_no_victim
    if not may_load(p, at):
        reason = C.dropped_throttle
    elif not warming(p):
        verdict = make_room(p, n, key, at, layer, True)
        if verdict == ROOM:
            head[P.loads] += 1
            slot = put(p, key, at, layer, p.shared[H.lag_prefetch], False)
            p.unused[key] = 1
            n[layer * C.n + C.loads_speculative] += 1
            n[layer * C.n + C.fills] += 1
            record(p, V.load_speculative, key, slot)
            return
        if verdict == GUARDED:
            reason = C.dropped_guard
    n[layer * C.n + reason] += 1
    refused(p, key)
    record(p, V.drop, key, reason)
