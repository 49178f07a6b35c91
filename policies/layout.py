"""Where everything lives: a pool is one flat buffer, so that a live call passes one address and nothing else.

Buffer = shared head (int64 words), row bytes of each layer, counters [n_layers, n_counters], then one region a pool.
The table FIELDS is the only description of a region: the Python views and the compiled views are both made from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import ArrayLike

from .errors import BadPolicy
from .room import available_bytes

NONE = -1  # no key, no slot
NEVER = -(1 << 62)  # "last" of an expert that was never demanded
FOREVER = 1 << 62  # "busy" of a pinned key; "next" of a key that is never demanded again

COUNTERS: Sequence[str] = (
    "demands hits hits_demand prefetch_hits misses compulsory loads_demand bypassed gated throttled late streamed "
    "predictions invalid redundant dropped_guard dropped_no_victim dropped_throttle loads_speculative used_late wasted "
    "unresolved loads_initial evictions evicted_by_demand evicted_by_prefetch fills discarded invalidated failed "
    "failed_demand failed_prediction routed residents in_flight"
).split()

# What a record of a plan says. 0 to 4 enter the plan hash; the others are refusals that move nothing. Invalid
# predictions are counted, not listed: a wide step may have thousands, and a plan has room for what a tick can decide.
VERBS: Sequence[str] = (
    "hit load_demand load_speculative evict drop bypassed gated throttled late streamed invalid redundant load_initial "
    "failed"
).split()

# Words of the head that all pools share: sizes and options, fixed when the pool opens, and the clock of live calls.
SHARED: Sequence[str] = (
    "n_layers n_experts n_pools n_keys n_slots padded_keys padded_slots padded_experts "
    "region_bytes regions_at counters_at row_bytes_at "
    "sequential exceed stream batch_gate lag_demand lag_prefetch max_loads in_bytes "
    "guard guard_warm guard_counts gate gate_window gate_admit half_life access_clock warmup has_future told "
    "told_ahead now last_layer clock begun tokens guard_ratio "
    "parameter0 parameter1 parameter2 parameter3 parameter4 parameter5 parameter6 parameter7"
).split()

# Words of one pool's own head.
POOL: Sequence[str] = (
    "capacity occupied hint high due touches fills loads_tick loads age_at gate_age_at opened warmed origin used "
    "n_gathered n_taken n_records recording n_initial scored "
    "refused_from started unlisted"
).split()

# (name, dtype, length). R is the record of a key: what one tick reads of it shares one cache line (arrays of their
# own were tried: twice the instructions, for lack of registers for the pointers). The others are plain arrays: K
# keys, L keys and a list's sentinel, S slots, E experts of a layer, T records of one tick.
FIELDS = (
    ("slot", "int32", "R"),  # slot of a key, NONE if it has none
    ("heat", "uint32", "R"),  # demands so far, halved by ageing
    ("newer", "int32", "R"),  # doubly linked list of keys, sentinel n_keys
    ("older", "int32", "R"),
    ("busy", "int64", "R"),  # last tick at which the key cannot be a victim (demanded, considered, in flight, pinned)
    ("mark", "int64", "R"),  # 2 tick + 2: demanded at that tick; 2 tick + 3: considered at that tick
    ("land", "int64", "R"),  # first tick at which the row is there
    ("last", "int64", "R"),  # clock of the last demand
    ("touch", "int64", "R"),  # number of the last touch (routed rows and considered predictions)
    ("gated", "uint32", "R"),  # misses counted by the gate
    ("unused", "uint8", "R"),  # a speculative fill that nobody has demanded yet
    ("known", "uint8", "R"),  # demanded since the last reset
    ("pinned", "uint8", "R"),
    ("head", "int64", "H"),
    ("demanded", "int64", "K"),  # number of the last touch by a routed row
    ("fill", "int64", "K"),  # number of the last fill
    ("next", "int64", "K"),  # when the next demand comes (belady, opt)
    ("initial", "int32", "K"),  # keys loaded when the pool opens, in order
    ("gathered", "int32", "K"),  # victims found, not yet evicted
    ("owner", "int32", "S"),  # key in a slot, NONE if free
    ("hold", "int64", "S"),  # `busy` of the key in a slot, FOREVER if free: what scans read
    ("score", "int64", "S"),  # scratch of the victim scan
    ("low", "int64", "S"),  # a policy's own words per slot
    ("high", "int64", "S"),
    ("demand", "int32", "E"),  # D of the present tick, as keys in order of first appearance
    ("missed", "int32", "E"),  # the misses among them
    ("considered", "int32", "E"),  # valid predictions of the present tick
    ("asked", "int32", "E"),  # where they, or the misses, were mentioned first: places from the first id of the tick
    ("kept", "uint8", "E"),  # misses that a policy which plans whole ticks keeps
    ("verb", "int32", "T"),  # the plan of the present tick
    ("key", "int32", "T"),
    ("place", "int32", "T"),
)
RECORD_BYTES = 64
HEAD_WORDS = -(-len(POOL) // 8) * 8


@cache
def field_terms(name: str) -> tuple[int, int, int, int]:
    """Byte offset of a field in its region as (constant, per key, per slot, per expert); the empty name gives the end.

    Lengths are padded to multiples of 64, so that every array is aligned.
    """
    constant, keys, slots, experts = RECORD_BYTES, RECORD_BYTES, 0, 0
    inside = 0
    for field, dtype, length in FIELDS:
        size = np.dtype(dtype).itemsize
        if field == name:
            return (inside, 0, 0, 0) if length == "R" else (constant, keys, slots, experts)
        inside += size if length == "R" else 0
        constant += HEAD_WORDS * size if length == "H" else 0
        keys += size if length in "KT" else 0
        slots += size if length in "ST" else 0
        experts += {"E": size, "T": 4 * size}.get(length, 0)
    return constant, keys, slots, experts


def _rounded(length: int) -> int:
    return -(-length // 64) * 64


def _zeros(n_bytes: int, what: str) -> np.ndarray:
    """Memory, or BadPolicy: an operating system that promises more than it has kills whoever believes it."""
    there = available_bytes()
    try:
        if n_bytes <= there:
            return np.zeros(n_bytes, np.uint8)
    except MemoryError:
        pass
    raise BadPolicy(
        f"{what} need {n_bytes / 2**30:,.1f} GiB of memory to keep their history, but "
        f"{there / 2**30:,.1f} GiB can be had now; replay fewer layers or experts at a time"
    )


class Buffer:
    """Owns the memory of one set of pools and gives numpy views of it."""

    def __init__(self, *, n_layers: int, n_experts: int, n_pools: int, n_slots: int):
        n_keys = n_experts if n_pools == n_layers else n_layers * n_experts
        self.n_keys, self.n_slots, self.n_experts = n_keys, n_slots, n_experts
        self._padded = (_rounded(n_keys), _rounded(n_slots), _rounded(n_experts))
        region = _rounded(self._offset(""))
        row_bytes_at = _rounded(len(SHARED) * 8)
        counters_at = row_bytes_at + _rounded(n_layers * 8)
        regions_at = counters_at + _rounded(n_layers * len(COUNTERS) * 8)
        raw = _zeros(regions_at + n_pools * region + 64, f"pools of {n_layers} layers x {n_experts} experts")
        start = -raw.ctypes.data % 64
        self.bytes = raw[start : start + regions_at + n_pools * region]
        self.address = self.bytes.ctypes.data
        self.head = self.bytes[: len(SHARED) * 8].view(np.int64)
        self.row_bytes = self.bytes[row_bytes_at : row_bytes_at + n_layers * 8].view(np.int64)
        counters = self.bytes[counters_at : counters_at + n_layers * len(COUNTERS) * 8].view(np.int64)
        self.counters = counters.reshape(n_layers, len(COUNTERS))
        self._regions_at, self._region = regions_at, region
        self.set(n_layers=n_layers, n_experts=n_experts, n_pools=n_pools, n_keys=n_keys, n_slots=n_slots)
        self.set(**dict(zip(("padded_keys", "padded_slots", "padded_experts"), self._padded, strict=True)))
        self.set(region_bytes=region, regions_at=regions_at, counters_at=counters_at, row_bytes_at=row_bytes_at)
        for name, value in (
            ("slot", NONE),
            ("mark", 0),
            ("owner", NONE),
            ("hold", FOREVER),
            ("last", NEVER),
            ("busy", NEVER),
            ("next", FOREVER),
            ("newer", NONE),
            ("older", NONE),
        ):
            self.field(0, name)[:] = value
        self.field(0, "newer")[-1] = self.field(0, "older")[-1] = n_keys
        regions = self.bytes[regions_at:].reshape(n_pools, region)
        regions[1:] = regions[0]

    def _offset(self, name: str) -> int:
        constant, *terms = field_terms(name)
        return constant + sum(size * length for size, length in zip(terms, self._padded, strict=True))

    def set(self, **words: int) -> None:
        """Writes words of the shared head."""
        for name, value in words.items():
            self.head[SHARED.index(name)] = value

    def get(self, name: str) -> int:
        """Reads one word of the shared head."""
        return int(self.head[SHARED.index(name)])

    def field(self, pool: int, name: str) -> np.ndarray:
        """The view of one field of one pool's region."""
        _, dtype, length = next(f for f in FIELDS if f[0] == name)
        keys, slots, experts = self.n_keys, self.n_slots, self.n_experts
        size = np.dtype(dtype).itemsize
        count = {"H": len(POOL), "K": keys, "S": slots, "E": experts, "T": 4 * experts + slots + keys}.get(length, 0)
        at = self._regions_at + pool * self._region + self._offset(name)
        if length == "R":
            span = self.bytes[at : at + (keys + 1) * RECORD_BYTES - field_terms(name)[0]]
            return np.lib.stride_tricks.as_strided(span[:size].view(dtype), (keys + 1,), (RECORD_BYTES,))
        return self.bytes[at : at + count * size].view(dtype)

    def pool_word(self, pool: int, name: str) -> int:
        """Reads one word of a pool's own head."""
        return int(self.field(pool, "head")[POOL.index(name)])

    def set_pool(self, pool: int, **words: int) -> None:
        """Writes words of a pool's own head."""
        head = self.field(pool, "head")
        for name, value in words.items():
            head[POOL.index(name)] = value

    def set_pools(self, **words: ArrayLike) -> None:
        """Writes words of all pools' own heads, each a number or one a pool."""
        words_at = self._regions_at + self._offset("head")
        heads = self.bytes[words_at:].view(np.int64)
        for name, value in words.items():
            heads[POOL.index(name) :: self._region // 8] = value
