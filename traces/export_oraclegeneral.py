"""libCacheSim's oracleGeneral: every demand a lookup, with the time of the next one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from .errors import BadTrace
from .trace import Trace

name, suffix = "oracleGeneral", ".oracleGeneral"
description = "libCacheSim's binary: time (the step), object (1 + layer x n_experts + expert), size, next lookup"
loses = "requests, phases, tokens, weights and predictions: a lookup is an expert demanded at a tick, once a tick"
imported_by = ""  # no token can be told from lookups

ROW = np.dtype([("time", "<u4"), ("object", "<u8"), ("size", "<u4"), ("next", "<i8")])  # next: counted from 1; -1: none


def write(trace: Trace, path: Path, advance: Callable[[int], None]) -> None:
    """Lookups in order of ticks, in a tick of first appearance. Sizes are bytes of the rows, 1 if not recorded.

    What follows a lookup may come blocks later; such ones, at most one per expert and block, are written at the end.
    """
    from .kernels_lookups import lookups

    sizes = np.array(trace.row_bytes or [1] * trace.n_layers)
    if sizes.max() >= 2**32 or trace.n_steps >= 2**32:
        raise BadTrace(
            f"{trace.name}: row_bytes up to {sizes.max()} and {trace.n_steps} steps; oracleGeneral holds numbers below "
            "2**32"
        )
    n_keys = trace.n_layers * trace.n_experts
    latest, first, notes = np.full(n_keys, -1, np.int64), 0, []
    with path.open("wb") as file:
        for block in trace.blocks():
            key, step, after = (np.empty(block.experts.size, np.int64) for _ in range(3))
            late = np.empty((2, n_keys), np.int64)
            n, n_late = lookups(
                block.experts, block.starts, trace.n_experts, first, latest, key, step, after, late[0], late[1]
            )
            table = np.empty(n, ROW)
            table["time"], table["object"] = step[:n] + block.first_step, key[:n] + 1
            table["size"] = sizes[key[:n] // trace.n_experts]
            table["next"] = np.where(after[:n] < 0, -1, after[:n] + 1)
            table.tofile(file)
            notes.append(late[:, :n_late].copy())
            first += n
            advance(block.n_rows)
    if first:
        at, to = np.concatenate(notes, axis=1)
        np.memmap(path, ROW, "r+")["next"][at] = to + 1
