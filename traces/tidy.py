"""The tidy view: one line per (token, layer, rank), for people who think in data frames."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from .check import absent

if TYPE_CHECKING:
    import polars

    from .trace import Trace

LINES = 1_000_000  # of a part: about 40 MB


def to_polars(trace: Trace) -> polars.DataFrame:
    """See `Trace.to_polars`. Absent layers have no lines; `token` is the row, `step` the index of the step."""
    import polars as pl

    named = pl.col("phase").cast(pl.Enum(["prefill", "decode"]))
    return pl.concat([lines for lines, _ in parts(trace)]).with_columns(named)


def parts(trace: Trace) -> Iterator[tuple[polars.DataFrame, int]]:
    """The lines of a few rows after the other, and how many rows they are of; `phase` is text."""
    few = max(1, LINES // (trace.n_layers * trace.top_k))
    for block in trace.blocks(weights=trace.has_weights):
        step = np.repeat(np.arange(block.n_steps) + block.first_step, np.diff(block.starts))
        for a in range(0, block.n_rows, few):
            b = min(a + few, block.n_rows)
            weights = None if block.weights is None else block.weights[:, a:b]
            yield _lines(trace, block.first_row + a, step[a:b], block.experts[:, a:b], weights), b - a


def _lines(
    trace: Trace, first: int, step: np.ndarray, experts: np.ndarray, weights: np.ndarray | None
) -> polars.DataFrame:
    import polars as pl

    layers, n, k = experts.shape
    each = layers * k
    rows = trace.store.rows(first, first + n, ("request", "position", "phase"))
    per_token = {
        "token": np.arange(first, first + n),
        "request": rows["request"],
        "step": step,
        "position": rows["position"],
        "phase": rows["phase"],
    }
    lines = {name: np.repeat(column, each) for name, column in per_token.items()}
    lines["layer"] = np.tile(np.repeat(np.arange(layers, dtype=np.uint16), k), n)
    lines["rank"] = np.tile(np.arange(k, dtype=np.uint16), n * layers)
    lines["expert"] = experts.transpose(1, 0, 2).reshape(-1).astype(np.uint16)
    if weights is not None:
        lines["weight"] = weights.transpose(1, 0, 2).reshape(-1).astype(np.float32)
    there = experts.transpose(1, 0, 2).reshape(-1) != absent(experts.dtype)
    phase = pl.when(pl.col("phase") == 0).then(pl.lit("prefill")).otherwise(pl.lit("decode"))
    return pl.DataFrame(lines).filter(pl.Series(there)).with_columns(phase.alias("phase"))


def frame(columns: dict[str, list]) -> polars.DataFrame:
    """A polars frame of plain columns, for results that are not traces."""
    import polars as pl

    return pl.DataFrame(columns)
