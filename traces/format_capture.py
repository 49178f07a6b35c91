"""What `slotwise capture` leaves when it is broken off: T.parquet.part.

  line 1   slotwise.capture 1
  line 2   JSON: a trace's record (`slotwise formats slotwise`), with `widths`,
           horizon -> predictions a row, and `labels` of the requests
  rows     request int32, step int64, position int32, phase uint8,
           token_id int32, left uint32 (rows of the step that follow),
           experts [n_layers, top_k], weights float16 [n_layers, top_k],
           predicted.h<horizon> [n_layers, width]; ids are uint8 up to 255
           experts, else uint16; little endian, not aligned

Passes are written as they are; a step is complete if its last row, `left` 0, is
there. Whatever follows the last complete step is left out. `slotwise trace
import T.parquet.part -o T.parquet` makes a trace of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from .check import absent, check_ids, check_rows, check_weights, id_dtype
from .errors import BadTrace
from .importing import short
from .memory import ROWS, groups
from .meta import Meta, check_whole, parse
from .passes import one_path
from .trace import GROUP_ROWS, Trace

name = "capture"
description = "what `slotwise capture` leaves when it is broken off: rows as they came"
source = "slotwise capture"

MAGIC = b"slotwise.capture 1\n"
LONGEST = 1 << 26  # bytes of the JSON line


def sniff(path: Path, head: bytes) -> bool:
    return head.startswith(MAGIC)


def read(
    paths: Sequence[Path],
    *,
    n_experts: int | None = None,
    top_k: int | None = None,
    row_bytes: int | None = None,
    model: str | None = None,
) -> Trace:
    """One file. Nothing is left to be said but `model`."""
    path = one_path(paths, "a capture")
    if (n_experts, top_k, row_bytes) != (None, None, None):
        raise BadTrace(f"{path}: a capture says n_experts, top_k and row_bytes itself; leave the option out")
    trace = rows_of(path)
    return Trace(trace.store, replace(trace.meta, model=model), trace.name) if model else trace


def layout(meta: Meta, widths: dict[int, int]) -> np.dtype:
    """One row. Raises ValueError if it is too long for numpy."""
    ids = id_dtype(meta.n_experts)
    shape = (meta.n_layers, meta.top_k)
    ahead = [(f"predicted.h{h}", ids, (meta.n_layers, width)) for h, width in sorted(widths.items())]
    small = [(column, np.dtype(kind).newbyteorder("<")) for column, kind in ROWS.items()]
    return np.dtype([*small, ("left", "<u4"), ("experts", ids, shape), ("weights", "<f2", shape), *ahead])


def header(meta: Meta, widths: dict[int, int], labels: Sequence[str]) -> bytes:
    record = {**json.loads(meta.to_json()), "widths": widths, "labels": list(labels)}
    return MAGIC + json.dumps(record).encode() + b"\n"


def rows_of(path: Path) -> Trace:
    """The complete steps of the file, which stays where it is and is read when asked for."""
    where = str(path)
    with path.open("rb") as file:
        magic, line = file.readline(len(MAGIC)), file.readline(LONGEST)
        begin, end = file.tell(), file.seek(0, 2)
    if magic != MAGIC or not line.endswith(b"\n"):
        raise BadTrace(f"{where}: does not begin with the two lines of a capture; `slotwise formats capture`")
    meta = parse(line, where)
    record = json.loads(line)
    widths, labels = _widths(record.get("widths"), where), record.get("labels")
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise BadTrace(f"{where}: labels must be a list of texts, not {short(labels)}")
    cells = meta.n_layers * (meta.top_k + sum(widths.values()))
    if cells > end - begin:  # before a row of that size is laid out
        raise BadTrace(f"{where}: holds no complete step; the capture was broken off before its first one")
    row = layout(meta, widths)
    n = (end - begin) // row.itemsize
    rows = np.memmap(path, row, "r", begin, (n,)) if n else np.empty(0, row)
    whole = np.flatnonzero(rows["left"] == 0)
    if not whole.size:
        raise BadTrace(f"{where}: holds no complete step; the capture was broken off before its first one")
    rows = rows[: whole[-1] + 1]
    store = Rows(where, rows, meta.n_experts, widths, groups(np.array(rows["step"]), GROUP_ROWS))
    return Trace(store, replace(meta, requests=_requests(rows, labels)), path.name.partition(".")[0])


def _widths(given: object, where: str) -> dict[int, int]:
    if not isinstance(given, dict) or not all(re.fullmatch("[0-9]{1,6}", key) for key in given):
        raise BadTrace(f"{where}: widths must be an object, horizon -> width, not {short(given)}")
    return {int(h): check_whole(where, f"widths[{h}]", width, 1, 65_535) for h, width in given.items()}


def _requests(rows: np.ndarray, labels: list[str]) -> tuple[dict, ...]:
    """What a trace says of each request: its label, if there is one, and the tokens of its prompt."""
    ids, index = np.unique(rows["request"], return_inverse=True)
    prompt = np.bincount(index, rows["phase"] == 0)
    return tuple(
        {"id": int(i), "label": labels[i] if 0 <= i < len(labels) else None, "prompt_tokens": int(n)}
        for i, n in zip(ids, prompt, strict=True)
    )


@dataclass(frozen=True, eq=False)
class Rows:
    """The store of such a file: rows are read, laid out by layer and checked when asked for."""

    where: str
    _rows: np.ndarray
    _n_experts: int
    widths: dict[int, int]
    groups: np.ndarray

    has_weights = True
    has_token_id = True

    @property
    def n_rows(self) -> int:
        return len(self._rows)

    @property
    def dtype(self) -> np.dtype:
        return id_dtype(self._n_experts)

    def rows(self, start: int, stop: int, names: tuple[str, ...]) -> dict[str, np.ndarray]:
        rows = {column: np.array(self._rows[column][start:stop], ROWS[column]) for column in names}
        check_rows(rows, self.where, start)
        return rows

    def read(self, kind: str, layers: range, start: int, stop: int) -> np.ndarray:
        out = np.array(self._rows[kind][start:stop, layers.start : layers.stop].transpose(1, 0, 2), order="C")  # a copy
        for layer, rows in zip(layers, out, strict=True):
            if kind == "experts":
                check_ids(rows, self._n_experts, self.where, layer, start)
            elif kind == "weights":
                check_weights(rows, self.where, layer, start)
            elif layer < int(kind[11:]):
                rows[:] = absent(self.dtype)  # nothing comes before
        return out
