"""CSV: the tidy lines as text, for whatever reads text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .exporting import tidy_parts
from .trace import Trace

name, suffix = "csv", ".csv"
description = "text, a header and one line per token, layer and rank, in the columns of tidy"
loses = "predictions, token ids, the number of experts, row sizes, labels and provenance; steps are numbered from 0"
imported_by = "tidy"


def write(trace: Trace, path: Path, advance: Callable[[int], None]) -> None:
    with path.open("wb") as file:
        for frame, rows in tidy_parts(trace, name):
            frame.write_csv(file, include_header=not file.tell())
            advance(rows)
