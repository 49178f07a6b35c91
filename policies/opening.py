"""The memory of cold pools: options, parameters and what is resident from the start, as the kernels read them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .layout import FOREVER, NEVER, SHARED, Buffer
from .spelling import PolicySpec


def opened(
    spec: PolicySpec,
    words: dict[str, int],
    initial: Sequence[tuple[list[int], list[int]]],
    *,
    n_layers: int,
    n_experts: int,
    n_slots: int,
    slots: Sequence[int],
    capacity_bytes: int | None,
    row_bytes: Sequence[int],
) -> Buffer:
    """One pool for each entry of `initial`: (pinned keys, keys loaded from the start)."""
    buffer = Buffer(n_layers=n_layers, n_experts=n_experts, n_pools=len(initial), n_slots=n_slots)
    guard, gate = spec.guard, spec.gate
    buffer.set(**words)
    if guard:
        buffer.set(guard=True, guard_warm=guard.warm, guard_counts=guard.counts)
        buffer.head.view(np.float64)[SHARED.index("guard_ratio")] = guard.ratio
    if gate:
        buffer.set(gate=True, gate_window=gate.window, gate_admit=gate.admit)
    for at, value in enumerate(vars(spec.policy).values(), SHARED.index("parameter0")):
        if isinstance(value, float):
            buffer.head.view(np.float64)[at] = value
        elif isinstance(value, int):
            buffer.head[at] = np.uint64(value & 0xFFFFFFFFFFFFFFFF).astype(np.int64)
    buffer.row_bytes[:] = row_bytes
    wide = len(initial) < n_layers
    for pool, (pinned, keys) in enumerate(initial):
        capacity = slots[pool] if capacity_bytes is None else capacity_bytes
        sizes = [1 if capacity_bytes is None else row_bytes[key // n_experts if wide else 0] for key in keys]
        fitting = _fitting(keys, sizes, capacity)
        held = [key for key in pinned if key in fitting]
        ages = {"due": NEVER, "age_at": buffer.get("half_life"), "gate_age_at": buffer.get("gate_window")}
        buffer.set_pool(pool, capacity=capacity, loads_tick=-1, n_initial=len(keys), **ages)
        buffer.field(pool, "initial")[: len(keys)] = keys
        buffer.field(pool, "pinned")[held] = 1
        buffer.field(pool, "busy")[held] = FOREVER
    return buffer


def _fitting(keys: Sequence[int], sizes: Sequence[int], room: int) -> set[int]:
    """Those of the keys for which there is room, taken in order."""
    fitting = set()
    for key, size in zip(keys, sizes, strict=True):
        if size <= room:
            room -= size
            fitting.add(key)
    return fitting
