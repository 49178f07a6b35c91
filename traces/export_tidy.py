"""Tidy Parquet: a line per token, layer and rank, for data frames."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from .exporting import tidy_parts
from .format_tidy import KEY
from .trace import Trace

name, suffix = "tidy", ".parquet"
description = "Parquet, one line per token, layer and rank: token, request, step, position, phase, layer, rank, expert"
loses = "predictions and token ids; steps are numbered from 0"
imported_by = "tidy"


def write(trace: Trace, path: Path, advance: Callable[[int], None]) -> None:
    import pyarrow.parquet as pq

    writer, record = None, {KEY: replace(trace.meta, predictor=None).to_json()}
    try:
        for frame, rows in tidy_parts(trace, name):
            table = frame.to_arrow().replace_schema_metadata(record)
            writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
            writer.write_table(table)
            advance(rows)
    finally:
        if writer:
            writer.close()
