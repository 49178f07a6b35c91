"""What a pool decided at one tick, as a view into the pool: valid until the next call, unless copied."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .layout import VERBS
from .names import P

_CODES = {name: code for code, name in enumerate(VERBS)}


class Load(NamedTuple):
    """One row to copy: into which slot, and whether the prediction path asked for it."""

    layer: int
    expert: int
    slot: int
    speculative: bool


class Plan:
    """The decisions of one `Pool.step` or `Pool.prefetch`, in order.

    Each decision is (verb, expert, slot): hit, load_demand, load_speculative, evict, drop, bypassed, gated,
    throttled, late, streamed, invalid, redundant, load_initial. `slot` is -1 where there is none; for a drop it is
    the refusal's code.
    """

    __slots__ = ("_head", "_key", "_n_experts", "_place", "_verb", "_wide", "layer")

    def __init__(self, head, verb, key, place, layer: int, n_experts: int, wide: bool):
        self._head, self._verb, self._key, self._place = head, verb, key, place
        self.layer, self._n_experts, self._wide = layer, n_experts, wide

    def __len__(self) -> int:
        return int(self._head[P.n_records])

    @property
    def memory(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(head, verbs, keys, slots), whole, for compiled code: the first head[P.n_records] of them are the plan."""
        return self._head, self._verb, self._key, self._place

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(verbs, keys, slots) as int32 views: no copy. In the global pool key = layer * n_experts + expert."""
        count = len(self)
        return self._verb[:count], self._key[:count], self._place[:count]

    def copy(self) -> Plan:
        """The same plan, kept after the pool's next call."""
        head = np.zeros_like(self._head)
        head[P.n_records] = len(self)
        verb, key, place = (a.copy() for a in self.arrays())
        return Plan(head, verb, key, place, self.layer, self._n_experts, self._wide)

    def decisions(self) -> list[tuple[str, int, int, int]]:
        """(verb, layer, expert, slot) of every decision, in order."""
        rows = []
        for verb, key, place in zip(*(a.tolist() for a in self.arrays()), strict=True):
            layer = key // self._n_experts if self._wide else self.layer
            rows.append((VERBS[verb], layer, key % self._n_experts, place))
        return rows

    def verbs(self) -> list[tuple[int, int, int]]:
        """(code of the verb, expert, slot) of every decision, in order; `layout.VERBS` names the codes."""
        return [(v, k % self._n_experts, s) for v, k, s in zip(*(a.tolist() for a in self.arrays()), strict=True)]

    def _experts(self, *verbs: str) -> np.ndarray:
        codes, keys, _ = self.arrays()
        return keys[np.isin(codes, [_CODES[v] for v in verbs])] % self._n_experts

    @property
    def hits(self) -> np.ndarray:
        """Experts of the demand that were resident when the tick began, in order of demand."""
        return self._experts("hit")

    @property
    def misses(self) -> np.ndarray:
        """Experts of the demand that were not, in order of demand, whatever became of them."""
        return self._experts("load_demand", "bypassed", "gated", "throttled", "late", "streamed")

    @property
    def loads(self) -> list[Load]:
        """Rows to copy, in order; initial loads (pins, static profiles) come first."""
        wanted = ("load_initial", "load_demand", "load_speculative")
        return [Load(la, e, s, v == "load_speculative") for v, la, e, s in self.decisions() if v in wanted]

    @property
    def evictions(self) -> list[tuple[int, int, int]]:
        """(layer, expert, slot) of every row that leaves, in order."""
        return [(layer, expert, slot) for verb, layer, expert, slot in self.decisions() if verb == "evict"]

    @property
    def drops(self) -> np.ndarray:
        """Predicted experts that were refused a slot."""
        return self._experts("drop")

    def __repr__(self) -> str:
        what = ", ".join(f"{v} {e}" + (f"@{s}" if s >= 0 and v != "drop" else "") for v, _, e, s in self.decisions())
        return f"Plan(layer {self.layer}: {what or 'nothing'})"
