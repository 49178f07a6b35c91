"""The memory of a set of pools before anything happened: options, parameters, and what each pool starts with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .initial import fitting
from .layout import FOREVER, NEVER, SHARED, Buffer
from .spelling import PolicySpec


def open_buffer(
    spec: PolicySpec,
    words: Mapping[str, int],
    initial: Sequence[tuple[list[int], list[int]]],
    *,
    capacities: Sequence[int],
    in_bytes: bool,
    row_bytes: Sequence[int],
    n_experts: int,
    n_slots: int,
) -> Buffer:
    """`words`: of the shared head; `initial`: (pinned keys, keys to load first) of each pool; one row size a layer."""
    buffer = Buffer(n_layers=len(row_bytes), n_experts=n_experts, n_pools=len(capacities), n_slots=n_slots)
    buffer.set(**words)
    _set_policy(buffer, spec)
    buffer.row_bytes[:] = row_bytes
    wide = len(capacities) < len(row_bytes)

    def size_of(key: int) -> int:
        return row_bytes[key // n_experts if wide else 0] if in_bytes else 1

    ages = {"due": NEVER, "age_at": buffer.get("half_life"), "gate_age_at": buffer.get("gate_window")}
    buffer.set_pools(
        capacity=capacities, n_initial=[len(first) for _, first in initial],
        loads_tick=NEVER, refused_from=FOREVER, **ages,
    )  # fmt: skip
    for pool, ((pinned, first), capacity) in enumerate(zip(initial, capacities, strict=True)):
        if not first:
            continue
        there = fitting(first, capacity, size_of)
        pinned = [key for key in pinned if key in there]
        buffer.field(pool, "initial")[: len(first)] = first
        buffer.field(pool, "pinned")[pinned] = 1
        buffer.field(pool, "busy")[pinned] = FOREVER
    return buffer


def _set_policy(buffer: Buffer, spec: PolicySpec) -> None:
    """The parameters of the policy, by the position of the field, and of what was added to it."""
    guard, gate = spec.guard, spec.gate
    floats = buffer.head.view(np.float64)
    if guard:
        buffer.set(guard=True, guard_warm=guard.warm, guard_counts=guard.counts)
        floats[SHARED.index("guard_ratio")] = guard.ratio
    if gate:
        buffer.set(gate=True, gate_window=gate.window, gate_admit=gate.admit)
    for at, value in enumerate(vars(spec.policy).values(), SHARED.index("parameter0")):
        if isinstance(value, float):
            floats[at] = value
        elif isinstance(value, int):
            buffer.head[at] = np.uint64(value & 0xFFFFFFFFFFFFFFFF).astype(np.int64)
