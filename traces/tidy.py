"""The tidy view: one line per (token, layer, rank), for people who think in data frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .block import Block
from .check import absent

if TYPE_CHECKING:
    import polars

    from .trace import Trace


def to_polars(trace: Trace) -> polars.DataFrame:
    """See `Trace.to_polars`. Absent layers have no lines; `token` is the row, `step` the index of the step."""
    import polars as pl

    return pl.concat([_lines(trace, block) for block in trace.blocks(weights=trace.has_weights)])


def _lines(trace: Trace, block: Block) -> polars.DataFrame:
    import polars as pl

    layers, n, k = block.experts.shape
    each = layers * k
    rows = trace.store.rows(block.first_row, block.first_row + n, ("request", "position", "phase"))
    per_token = {
        "token": np.arange(block.first_row, block.first_row + n),
        "request": rows["request"],
        "step": np.repeat(np.arange(block.n_steps) + block.first_step, np.diff(block.starts)),
        "position": rows["position"],
        "phase": rows["phase"],
    }
    lines = {name: np.repeat(column, each) for name, column in per_token.items()}
    lines["layer"] = np.tile(np.repeat(np.arange(layers, dtype=np.uint16), k), n)
    lines["rank"] = np.tile(np.arange(k, dtype=np.uint16), n * layers)
    lines["expert"] = block.experts.transpose(1, 0, 2).reshape(-1).astype(np.uint16)
    if block.weights is not None:
        lines["weight"] = block.weights.transpose(1, 0, 2).reshape(-1).astype(np.float32)
    there = block.experts.transpose(1, 0, 2).reshape(-1) != absent(block.experts.dtype)
    phase = pl.when(pl.col("phase") == 0).then(pl.lit("prefill")).otherwise(pl.lit("decode"))
    named = phase.cast(pl.Enum(["prefill", "decode"])).alias("phase")
    return pl.DataFrame(lines).filter(pl.Series(there)).with_columns(named)


def frame(columns: dict[str, list]) -> polars.DataFrame:
    """A polars frame of plain columns, for results that are not traces."""
    import polars as pl

    return pl.DataFrame(columns)
