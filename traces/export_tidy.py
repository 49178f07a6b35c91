"""Tidy Parquet: a line per token, layer and rank, for data frames."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .tidy import parts
from .trace import Trace

name, suffix = "tidy", ".parquet"
description = "Parquet, one line per token, layer and rank: token, request, step, position, phase, layer, rank, expert"
loses = "predictions, token ids, row sizes, labels and provenance; steps are numbered from 0"


def write(trace: Trace, path: Path, advance: Callable[[int], None]) -> None:
    import pyarrow.parquet as pq

    writer = None
    try:
        for frame, rows in parts(trace):
            table = frame.to_arrow()
            writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
            writer.write_table(table)
            advance(rows)
    finally:
        if writer:
            writer.close()
