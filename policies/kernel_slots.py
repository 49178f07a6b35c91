"""What a pool can do with a key: hold it, put it into a slot, take it out, choose a victim, make room.

The kernel_*.py and drive*.py files are one template: `compiled.py` copies them into a module of its own for each
policy, with the policy's functions in place of the defaults imported here, numbers in place of H, P, C and V, and
True or False in place of the features: FULL (everything that the plain event contract does not need), LOOK
(look-ahead), RECORD (plans are kept), TELL (what became of each demand and prediction is told), NUMBERS (touches and
fills are numbered), FUTURE, and the two kinds of policy, KEEPS_ORDER and PLANS_TICKS.

Every function takes `p`, one pool; `n`, a pointer to the present cell's counters [layer, counter]; and `at`, the
moment. Keys are expert ids in a layer pool and layer * n_experts + expert in the global pool.
"""
# pyright: reportCallIssue=false, reportPrivateImportUsage=false

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from .layout import FOREVER, NEVER, NONE
from .names import C, H, P, V
from .pointers import whole_priority
from .policy import FULL, KEEPS_ORDER, NUMBERS, RECORD, filled, left, oldest, priority, then, touched

# --- generated modules begin here ---

inlined = njit(forceinline=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
internal = njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
TAKEN = (
    1 << 63
) - 2  # score of a slot without a candidate; the largest int64 itself keeps min() from becoming vector code


class Moment(NamedTuple):
    """When something happens: step, tick, clock of the ages, layer, its first key, and what makes a key unique."""

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
    """The victim: lowest priority of the keys that are not held, then lowest `then`, then lowest id; or NONE."""
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
                p.score[slot] = min(np.int64(whole_priority(priority(p, p.owner[slot], at))), TAKEN - 1)
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


ROOM, NO_VICTIM, GUARDED, REFUSED = 0, 1, 2, 3


@inlined
def copies_refused(p):
    """Whether this phase of the tick has come to the load from which on its copies were refused: nothing moves then."""
    return FULL and p.head[P.started] >= p.head[P.refused_from]


@inlined
def make_room(p, n, key, at, layer, speculative):
    """Frees what the key needs, or nothing. The one place where a victim is chosen, for both paths."""
    head = p.head
    if not FULL or p.shared[H.in_bytes] == 0:
        if head[P.occupied] < head[P.capacity]:
            return REFUSED if copies_refused(p) else ROOM
        victim = pick(p, at)
        if victim == NONE:
            return NO_VICTIM
        if speculative and p.shared[H.guard] and protects(p, victim, key, at):
            return GUARDED
        if copies_refused(p):
            return REFUSED
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
        p.gathered[count] = victim
        count += 1
        hold(p, victim, at.tick)
        p.score[p.slot[victim]] = TAKEN
        need -= p.row_bytes[layer_of(p, at, victim)]
    if verdict == ROOM and speculative and p.shared[H.guard]:
        for i in range(count):
            if protects(p, p.gathered[i], key, at):
                verdict = GUARDED
    if verdict == ROOM and copies_refused(p):
        verdict = REFUSED
    for i in range(count):
        victim = p.gathered[i]
        p.busy[victim] = NEVER  # held only while we gathered; a sequential tick may load it again
        if verdict == ROOM:
            evict(p, n, victim, at, C.evicted_by_prefetch if speculative else C.evicted_by_demand)
        else:
            p.hold[p.slot[victim]] = NEVER
            head[P.scored] = 0
    return verdict
