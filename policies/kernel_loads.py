"""What comes and goes: rows loaded from the start, by demand and by prediction, and what is due before."""
# pyright: reportCallIssue=false, reportPrivateImportUsage=false

from __future__ import annotations

import numpy as np

from .kernel_slots import (
    GUARDED,
    NO_VICTIM,
    REFUSED,
    ROOM,
    copies_refused,
    evict,
    hold,
    inlined,
    internal,
    layer_of,
    make_room,
    pick,
    put,
    record,
    touch,
)
from .layout import FOREVER, NEVER, NONE
from .names import C, H, P, V
from .policy import FULL, PLANS_TICKS, RECORD, TELL, met, refused

# --- generated modules begin here ---


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
    if live(p) and not head[P.recording]:
        head[P.unlisted] = 1
    record(p, V.load_initial, key, slot)


@inlined
def live(p):
    """Whether live calls drive these pools: then a plan must name every row that somebody has to copy."""
    return RECORD and p.shared[H.begun] != 0


@internal
def list_initial(p):
    """Names the initial rows of a pool that began, or ended its warm-up, while another layer was called."""
    p.head[P.unlisted] = 0
    for slot in range(p.owner.shape[0]):
        if p.owner[slot] != NONE:
            record(p, V.load_initial, p.owner[slot], slot)


@internal
def begin(p, n, at):
    """What is due at the start of a step, before anything else touches the pool: opening, ageing, a warm-up's end."""
    head = p.head
    shared = p.shared
    if head[P.unlisted] and head[P.recording]:
        list_initial(p)
    if not head[P.opened]:
        head[P.opened] = 1
        head[P.origin] = max(np.int64(0), at.now)
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
    head[P.due] = NEVER if head[P.unlisted] else due


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
    """Whether this tick and pool may start another load."""
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
def refuse(p, n, key, layer, reason, verb, place):
    """A miss or a prediction that gets no slot: counted under its reason, and out of the policy's order again."""
    n[layer * C.n + reason] += 1
    refused(p, key)
    record(p, verb, key, place)
    return verb


@inlined
def serve_miss(p, n, key, at, index):
    """Late, gate, throttle, slot: the first refusal is the one counted. Returns what became of it."""
    layer = at.layer
    head = p.head
    shared = p.shared
    if FULL and p.slot[key] != NONE:
        n[layer * C.n + C.late] += 1
        if p.unused[key]:
            p.unused[key] = 0
            n[layer * C.n + C.used_late] += 1
        record(p, V.late, key, p.slot[key])
        return V.late
    if shared[H.gate]:
        if p.gated[key] != 0xFFFFFFFF:
            p.gated[key] += np.uint32(1)
        if p.gated[key] < shared[H.gate_admit]:
            return refuse(p, n, key, layer, C.gated, V.gated, NONE)
    if not may_load(p, at):
        return refuse(p, n, key, layer, C.throttled, V.throttled, NONE)
    if warming(p) or (PLANS_TICKS and not p.kept[index]):
        verdict = NO_VICTIM
    elif FULL and shared[H.exceed]:
        verdict = REFUSED if copies_refused(p) else ROOM
    else:
        verdict = make_room(p, n, key, at, layer, False)
    if verdict == REFUSED:
        n[layer * C.n + C.failed] += 1
        return refuse(p, n, key, layer, C.failed_demand, V.failed, NONE)
    if verdict != ROOM:
        return refuse(p, n, key, layer, C.bypassed, V.bypassed, NONE)
    head[P.loads] += 1
    if FULL:
        head[P.started] += 1
    at_once = FULL and shared[H.sequential] != 0 and shared[H.lag_demand] == 0
    slot = put(p, key, at, layer, shared[H.lag_demand], at_once)
    n[layer * C.n + C.loads_demand] += 1
    n[layer * C.n + C.fills] += 1
    record(p, V.load_demand, key, slot)
    return V.load_demand


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
def look_ahead(p, n, at, predicted, lo, n_tokens, recorded, width, absent, told):
    """Phase 5: predictions for `at.layer`, rank by rank, every token's best first; `lo`: the first of them."""
    head = p.head
    head[P.n_records] = 0
    if FULL:
        head[P.started] = 0
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
                continue
            key = at.base + expert
            if p.mark[key] == mark:
                n[layer * C.n + C.invalid] += 1
                continue
            p.mark[key] = mark
            hold(p, key, tick)
            p.considered[count] = key
            if TELL:
                p.asked[count] = token * recorded + rank
            count += 1
    n[layer * C.n + C.predictions] += offered
    head[P.scored] = 0
    for i in range(count):
        if offer(p, n, p.considered[i], at) and TELL and p.shared[H.told_ahead]:
            told[lo + p.asked[i]] = 1 + V.load_speculative


@inlined
def offer(p, n, key, at):
    """Redundant, throttle, slot, guard: the first refusal is the one counted. Returns whether a load started."""
    layer = at.layer
    head = p.head
    touch(p, key)
    if p.slot[key] != NONE:
        n[layer * C.n + C.redundant] += 1
        record(p, V.redundant, key, p.slot[key])
        return False
    reason = C.dropped_no_victim
    if not may_load(p, at):
        reason = C.dropped_throttle
    elif not warming(p):
        verdict = make_room(p, n, key, at, layer, True)
        if verdict == ROOM:
            head[P.loads] += 1
            if FULL:
                head[P.started] += 1
            slot = put(p, key, at, layer, p.shared[H.lag_prefetch], False)
            p.unused[key] = 1
            n[layer * C.n + C.loads_speculative] += 1
            n[layer * C.n + C.fills] += 1
            record(p, V.load_speculative, key, slot)
            return True
        if verdict == REFUSED:
            n[layer * C.n + C.failed] += 1
            refuse(p, n, key, layer, C.failed_prediction, V.failed, NONE)
            return False
        if verdict == GUARDED:
            reason = C.dropped_guard
    refuse(p, n, key, layer, reason, V.drop, reason)
    return False
