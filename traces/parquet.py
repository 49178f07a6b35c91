"""our own file, Parquet: layers are columns, row groups hold whole steps.

`slotwise trace import` writes it. A row is a token, in the order of the steps:

  request        int32   which request the token belongs to, from 0
  step           int64   forward pass that the token was part of; never falls
  position       int32   place of the token in its request
  phase          uint8   0 prefill, 1 decode
  token_id       int32   optional
  experts.NNN    bytes   MoE layer NNN (000, 001, ...): k expert ids, best first,
                         uint8 up to 255 experts, else uint16, little endian; all
                         ones where the layer did not see the token
  weights.NNN    bytes   optional: k router weights, float16
  predicted.NNN  bytes   optional: ids predicted for layer NNN one layer before,
                         best first, all ones for none; predicted.NNN.h2 were
                         predicted two layers before

The file's metadata has a JSON record `slotwise.trace`: format, version, model,
n_layers, model_layers (the model's own layer numbers), n_experts, top_k,
row_bytes (of one expert, by layer), router, predictor, requests (id, label,
prompt_tokens), captured_by, captured_at, source, licence, SHA-256 of the ids.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .check import absent, check_ids, check_rows, check_weights, id_dtype
from .errors import BadTrace
from .memory import ROWS
from .meta import FORMAT, Meta, parse
from .reading import hold_size
from .trace import Trace

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

description = "Parquet, one row per token, layers as columns (written by every command)"
source = "slotwise.trace version 1"

KEY = FORMAT.encode()
EXPANSION = 2**15  # no zstd, gzip, lz4 or snappy stream grows by more


@contextmanager
def decoding(where: str) -> Iterator[None]:
    """Arrow's complaints about a damaged file, as ours."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, OverflowError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise BadTrace(f"{where}: damaged or truncated Parquet ({reason})") from None


def footer(path: Path) -> bytes:
    """The end of a Parquet file, where it names its columns: 1 MiB at most."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - (1 << 20)))
        end = file.read()
    return end[-8 - int.from_bytes(end[-8:-4], "little") :] if len(end) > 8 else b""


def read(path: Path) -> Trace:
    """The trace in the file, its structure checked; rows are read and checked when asked for."""
    import pyarrow.parquet as pq

    where = str(path)
    with path.open("rb"):  # a missing or forbidden file is not a damaged one
        pass
    with decoding(where):
        file = pq.ParquetFile(path)
        record = (file.metadata.metadata or {}).get(KEY)
    if record is None:
        raise BadTrace(f"{where}: a Parquet file, but not a trace: its metadata has no {FORMAT!r} record")
    meta = parse(record, where)
    with decoding(where):
        return Trace(ParquetStore(where, file, meta), meta, path.stem)


class ParquetStore:
    """Reads columns of row groups into arrays, and checks what it reads."""

    def __init__(self, where: str, file: pyarrow.parquet.ParquetFile, meta: Meta) -> None:
        self.where, self._meta = where, meta
        self.dtype = id_dtype(meta.n_experts)
        self.widths, self.has_weights, self.has_token_id = _check_columns(where, file.schema_arrow, meta)
        self.groups = _check_sizes(where, file, meta.top_k * self.dtype.itemsize)
        self.n_rows = int(self.groups[-1])
        self._file, self._lock = file, threading.Lock()
        self._weights_known_good: set[int] = set()

    def rows(self, start: int, stop: int, names: tuple[str, ...]) -> dict[str, np.ndarray]:
        parts: dict[str, list[np.ndarray]] = {name: [] for name in names}
        for group, a, b in self._overlaps(start, stop):
            table = self._table(group, list(names))
            for name in names:
                parts[name].append(self._values(table.column(name), name, group)[a:b])
        rows = {name: np.concatenate(p) if len(p) > 1 else p[0] for name, p in parts.items()}
        check_rows(rows, self.where, start)
        return rows

    def read(self, kind: str, layers: range, start: int, stop: int) -> np.ndarray:
        horizon = int(kind[11:]) if kind.startswith("predicted") else 0
        there = range(max(layers.start, horizon), layers.stop)
        if not there:  # no prediction can be made for these layers
            return np.full((len(layers), stop - start, self.widths[horizon]), absent(self.dtype), self.dtype)
        out = None
        for layer, row, piece in self._pieces(kind, there, start, stop):
            if out is None:  # only now: a column that could be decoded proves the number of rows promised
                out = np.empty((len(layers), stop - start, piece.shape[1]), piece.dtype)
                if there.start > layers.start:
                    out[: there.start - layers.start] = absent(self.dtype)
            out[layer - layers.start, row - start : row - start + len(piece)] = piece
        assert out is not None
        if kind == "experts" and self.has_weights:
            self._check_weights(layers, start, stop)
        return out

    def _check_weights(self, layers: range, start: int, stop: int) -> None:
        """Weights are checked with the ids they belong to, once, even if nobody reads them: a bad file is refused."""
        groups = {group for group, _, _ in self._overlaps(start, stop)} - self._weights_known_good
        for group in sorted(groups):
            for _ in self._pieces("weights", layers, int(self.groups[group]), int(self.groups[group + 1])):
                pass
        if len(layers) == self._meta.n_layers:
            self._weights_known_good |= groups

    def _pieces(self, kind: str, layers: range, start: int, stop: int) -> Iterator[tuple[int, int, np.ndarray]]:
        """(layer, first row, rows `[n, width]`), checked, group by group and in a group layer by layer.

        A thread decodes the next column while the caller checks and keeps this one: two are in memory, and the file has
        one reader. Two threads that did both were as fast and took 2 MB more. The rows lie in Arrow's memory.
        """
        jobs = [(layer, *part) for part in self._overlaps(start, stop) for layer in layers]
        with ThreadPoolExecutor(1) as decoder:
            ahead = decoder.submit(self._column, kind, *jobs[0])
            for i, (layer, group, a, _) in enumerate(jobs):
                piece = ahead.result()
                if i + 1 < len(jobs):
                    ahead = decoder.submit(self._column, kind, *jobs[i + 1])
                row = int(self.groups[group]) + a
                if kind == "experts":
                    check_ids(piece, self._meta.n_experts, self.where, layer, row)
                elif kind == "weights":
                    check_weights(piece, self.where, layer, row)
                yield layer, row, piece

    def _column(self, kind: str, layer: int, group: int, a: int, b: int) -> np.ndarray:
        """Rows a to b of a group, of one layer, decoded and not yet checked."""
        name = column_name(kind, layer, self._meta.n_layers)
        dtype = np.dtype(np.float16) if kind == "weights" else self.dtype
        return self._binary(self._table(group, [name]).column(0), name, dtype)[a:b]

    def _overlaps(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """(row group, first and last row inside it) of the rows start to stop."""
        group = int(np.searchsorted(self.groups, start, side="right")) - 1
        while group < len(self.groups) - 1 and self.groups[group] < stop:
            begin, end = int(self.groups[group]), int(self.groups[group + 1])
            yield group, max(start - begin, 0), min(stop, end) - begin
            group += 1

    def _table(self, group: int, columns: list[str]) -> pyarrow.Table:
        with self._lock, decoding(self.where):
            table = self._file.read_row_group(group, columns=columns, use_threads=False)
        n = int(self.groups[group + 1] - self.groups[group])
        if table.num_rows != n:
            raise BadTrace(f"{self.where}: row group {group} holds {table.num_rows} rows, but its header says {n}")
        return table

    def _values(self, column: pyarrow.ChunkedArray, name: str, group: int) -> np.ndarray:
        """A small column, -1 where a token id is null. By hand, since Arrow's own way here imports pandas."""
        parts = []
        for chunk in column.chunks:
            valid, data = chunk.buffers()
            values = np.frombuffer(data, ROWS[name])[chunk.offset : chunk.offset + len(chunk)]
            if chunk.null_count:
                if name != "token_id":
                    raise BadTrace(f"{self.where}: column {name} has nulls in row group {group}; only token_id may")
                bits = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")
                values = np.where(bits[chunk.offset : chunk.offset + len(chunk)], values, -1).astype(np.int32)
            parts.append(values)
        return np.concatenate(parts) if len(parts) != 1 else parts[0]

    def _binary(self, column: pyarrow.ChunkedArray, name: str, dtype: np.dtype) -> np.ndarray:
        """A fixed-size binary column as `[n, width]`, over Arrow's own buffer if it is in one piece."""
        if column.null_count:
            raise BadTrace(f"{self.where}: column {name} has nulls; absent ids are all ones")
        width = column.type.byte_width // dtype.itemsize
        parts = [
            np.frombuffer(chunk.buffers()[1], dtype)[chunk.offset * width : (chunk.offset + len(chunk)) * width]
            for chunk in column.chunks
        ]
        return (np.concatenate(parts) if len(parts) != 1 else parts[0]).reshape(-1, width)


def column_name(kind: str, layer: int, n_layers: int) -> str:
    """The column of one layer; numbers are zero padded to three digits or more, horizon 1 goes without a suffix."""
    name, _, horizon = kind.partition(".")
    return f"{name}.{layer:0{max(3, len(str(n_layers - 1)))}d}" + (f".{horizon}" if horizon not in ("", "h1") else "")


def _check_columns(where: str, schema: pyarrow.Schema, meta: Meta) -> tuple[dict[int, int], bool, bool]:
    """Every column that the record promises is there and typed. Returns (widths by horizon, weights?, token ids?)."""
    import pyarrow as pa

    types = dict(zip(schema.names, schema.types, strict=True))
    if len(types) != len(schema.names):
        raise BadTrace(f"{where}: two columns of one name")
    if meta.n_layers > len(types):
        raise BadTrace(f"{where}: n_layers={meta.n_layers}, but the file has {len(types)} columns in all")
    for name, dtype in ROWS.items():
        if (name in types or name != "token_id") and types.get(name) != pa.from_numpy_dtype(np.dtype(dtype)):
            raise BadTrace(f"{where}: column {name} must be {np.dtype(dtype)}, not {types.get(name, 'missing')}")

    def need(kind: str, first: int, n_bytes: int, why: str) -> None:
        for layer in range(first, meta.n_layers):
            column = column_name(kind, layer, meta.n_layers)
            if types.get(column) != pa.binary(n_bytes):
                there = types.get(column, "missing")
                raise BadTrace(f"{where}: column {column} must be fixed_size_binary[{n_bytes}] ({why}), not {there}")

    size = id_dtype(meta.n_experts).itemsize
    need("experts", 0, meta.top_k * size, f"top_k={meta.top_k} ids of {size} bytes")
    weighted = any(name.startswith("weights.") for name in types)
    if weighted:
        need("weights", 0, 2 * meta.top_k, f"top_k={meta.top_k} float16")
    widths = {}
    ahead = [re.fullmatch(r"predicted\.\d+(?:\.h(\d{1,6}))?", name) for name in types]
    for horizon in sorted({int(found[1] or 1) for found in ahead if found}):
        kind, first = f"predicted.h{horizon}", column_name(f"predicted.h{horizon}", horizon, meta.n_layers)
        n_bytes = types[first].byte_width if pa.types.is_fixed_size_binary(types.get(first, pa.null())) else size
        if n_bytes == 0 or n_bytes % size:
            raise BadTrace(f"{where}: column {first}: {n_bytes} bytes are no whole number of {size}-byte ids")
        need(kind, horizon, n_bytes, f"{size}-byte ids, as many for every layer from {horizon} on")
        if horizon < meta.n_layers:
            widths[horizon] = n_bytes // size
    return widths, weighted, "token_id" in types


def _check_sizes(where: str, file: pyarrow.parquet.ParquetFile, id_bytes: int) -> np.ndarray:
    """Row offsets of the groups, after holding what the headers promise against the bytes that are really there."""
    header = file.metadata
    n_bytes = Path(where).stat().st_size
    offsets, stored = [0], 0
    for g in range(header.num_row_groups):
        group = header.row_group(g)
        rows = group.num_rows
        if rows <= 0:
            raise BadTrace(f"{where}: row group {g} has {rows} rows")
        hold_size(where, group.total_byte_size)
        if group.num_columns != header.num_columns:
            raise BadTrace(f"{where}: row group {g} has {group.num_columns} columns of {header.num_columns}")
        for c in range(group.num_columns):
            chunk = group.column(c)
            name, there = chunk.path_in_schema, chunk.total_compressed_size
            stored += there
            if chunk.num_values != rows or there < 0:
                raise BadTrace(f"{where}: row group {g}, column {name}: {chunk.num_values} values for {rows} rows")
            promised = rows * (id_bytes if name.startswith("experts.") else 1)
            if promised > 2**20 + EXPANSION * there:
                raise BadTrace(
                    f"{where}: row group {g} promises {rows} rows, {promised} bytes of column {name}, but has only "
                    f"{there} bytes of it"
                )
        offsets.append(offsets[-1] + rows)
    if stored > n_bytes:
        raise BadTrace(f"{where}: its headers promise {stored} bytes of columns, but it has {n_bytes}; truncated?")
    if header.num_rows != offsets[-1]:
        raise BadTrace(f"{where}: its header says {header.num_rows} rows, but its row groups hold {offsets[-1]}")
    if not offsets[-1]:
        raise BadTrace(f"{where}: no tokens; a trace needs at least one row")
    return np.array(offsets)
