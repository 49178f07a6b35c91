"""Our own file: Parquet, `slotwise.trace` version 1. Layers are columns, row groups hold whole steps."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .check import check_ids, check_rows, check_weights, id_dtype
from .errors import BadTrace
from .memory import ROWS
from .meta import FORMAT, Meta, parse
from .trace import Trace

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

KEY = FORMAT.encode()
BATCH = 4  # columns decoded at once; 48 were no faster and keep a second copy of the block in memory
EXPANSION = 2**15  # no zstd, gzip, lz4 or snappy stream grows by more


@contextmanager
def _decoding(where: str) -> Iterator[None]:
    """Arrow's complaints about a damaged file, as ours."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, OverflowError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise BadTrace(f"{where}: damaged or truncated Parquet ({reason})") from None


def read(path: Path) -> Trace:
    """The trace in the file, its structure checked; rows are read and checked when asked for."""
    import pyarrow.parquet as pq

    where = str(path)
    with path.open("rb"):  # a missing or forbidden file is not a damaged one
        pass
    with _decoding(where):
        file = pq.ParquetFile(path)
        record = (file.metadata.metadata or {}).get(KEY)
    if record is None:
        raise BadTrace(f"{where}: a Parquet file, but not a trace: its metadata has no {FORMAT!r} record")
    meta = parse(record, where)
    return Trace(ParquetStore(where, file, meta), meta, path.stem)


class ParquetStore:
    """Reads columns of row groups into arrays, and checks what it reads."""

    has_weights: bool

    def __init__(self, where: str, file: pyarrow.parquet.ParquetFile, meta: Meta) -> None:
        self.where, self._file, self._meta = where, file, meta
        self.dtype = id_dtype(meta.n_experts)
        self._names = column_names(meta.n_layers)
        self._lock = threading.Lock()
        self._weights_known_good: set[int] = set()
        sizes = _check_columns(where, file, meta, self._names)
        self.has_weights, self.has_token_id, self.widths = sizes
        self.groups = _check_sizes(where, file, self._names["experts"][0])
        self.n_rows = int(self.groups[-1])

    def rows(self, start: int, stop: int, names: tuple[str, ...]) -> dict[str, np.ndarray]:
        parts: dict[str, list[np.ndarray]] = {name: [] for name in names}
        for group, a, b in self._overlaps(start, stop):
            table = self._table(group, list(names))
            for name in names:
                parts[name].append(self._values(table.column(name), name, group)[a:b])
        rows = {name: np.concatenate(p) if len(p) > 1 else p[0] for name, p in parts.items()}
        check_rows(rows, self.where, start)
        return rows

    def read(self, kind: str, layers: range, start: int, stop: int, out: np.ndarray) -> None:
        filled = 0
        for group, a, b in self._overlaps(start, stop):
            first = int(self.groups[group]) + a
            for at in range(layers.start, layers.stop, BATCH):
                batch = range(at, min(at + BATCH, layers.stop))
                columns = [self._names[kind][layer] for layer in batch]
                table = self._table(group, columns)
                for layer, column in zip(batch, columns, strict=True):
                    target = out[layer - layers.start, filled : filled + b - a]
                    self._copy(table.column(column), a, b, target, group)
                    if kind == "experts":
                        check_ids(target, self._meta.n_experts, self.where, layer, first)
                    elif kind == "weights":
                        check_weights(target, self.where, layer, first)
            filled += b - a
        if kind == "experts" and self.has_weights:
            self._check_weights(layers, start, stop)

    def _check_weights(self, layers: range, start: int, stop: int) -> None:
        """Weights are checked with the ids they belong to, once, even when nobody reads them: a bad file is refused."""
        for group, _, _ in self._overlaps(start, stop):
            if group in self._weights_known_good:
                continue
            n = int(self.groups[group + 1] - self.groups[group])
            scratch = np.empty((n, self._meta.top_k), np.float16)
            for at in range(layers.start, layers.stop, BATCH):
                batch = range(at, min(at + BATCH, layers.stop))
                table = self._table(group, [self._names["weights"][layer] for layer in batch])
                for layer in batch:
                    self._copy(table.column(self._names["weights"][layer]), 0, n, scratch, group)
                    check_weights(scratch, self.where, layer, int(self.groups[group]))
            if len(layers) == self._meta.n_layers:
                self._weights_known_good.add(group)

    def _overlaps(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """(row group, first and last row inside it) of the rows start to stop."""
        group = int(np.searchsorted(self.groups, start, side="right")) - 1
        while group < len(self.groups) - 1 and self.groups[group] < stop:
            begin, end = int(self.groups[group]), int(self.groups[group + 1])
            yield group, max(start - begin, 0), min(stop, end) - begin
            group += 1

    def _table(self, group: int, columns: list[str]) -> pyarrow.Table:
        with self._lock, _decoding(self.where):
            table = self._file.read_row_group(group, columns=columns)
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

    def _copy(self, column: pyarrow.ChunkedArray, a: int, b: int, out: np.ndarray, group: int) -> None:
        """Rows a to b of a fixed-size binary column into `out [b - a, width]`, straight from Arrow's buffer."""
        if column.null_count:
            raise BadTrace(f"{self.where}: nulls among the ids of row group {group}; absent ids are all ones")
        at = done = 0
        for chunk in column.chunks:
            low, high = max(a - at, 0), min(b - at, len(chunk))
            if low < high:
                width = out.shape[1]
                whole = np.frombuffer(chunk.buffers()[1], out.dtype)
                begin = (chunk.offset + low) * width
                out[done : done + high - low] = whole[begin : begin + (high - low) * width].reshape(-1, width)
                done += high - low
            at += len(chunk)


def column_names(n_layers: int) -> dict[str, list[str]]:
    """The column names by kind. Layers are zero padded to three digits or more."""
    digits = max(3, len(str(n_layers - 1)))
    numbers = [f"{layer:0{digits}d}" for layer in range(n_layers)]
    names = {kind: [f"{kind}.{n}" for n in numbers] for kind in ("experts", "weights", "predicted")}
    ahead = {f"predicted.h{h}": [f"predicted.{n}.h{h}" for n in numbers] for h in range(2, n_layers)}
    return names | {"predicted.h1": names.pop("predicted")} | ahead


def _check_columns(where: str, file: Any, meta: Meta, names: dict) -> tuple[bool, bool, dict[int, int]]:
    """Every column that the record promises is there and typed; returns (weights?, token ids?, widths by horizon)."""
    import pyarrow as pa

    schema = file.schema_arrow
    types = dict(zip(schema.names, schema.types, strict=True))
    if len(types) != len(schema.names):
        raise BadTrace(f"{where}: two columns of one name")
    for name, dtype in ROWS.items():
        if (name in types or name != "token_id") and types.get(name) != pa.from_numpy_dtype(np.dtype(dtype)):
            raise BadTrace(f"{where}: column {name} must be {np.dtype(dtype)}, not {types.get(name, 'missing')}")

    def need(column: str, n_bytes: int, why: str) -> None:
        if types.get(column) != pa.binary(n_bytes):
            raise BadTrace(
                f"{where}: column {column} must be fixed_size_binary[{n_bytes}] ({why}), not "
                f"{types.get(column, 'missing')}"
            )

    size = id_dtype(meta.n_experts).itemsize
    if meta.n_layers > len(types):
        raise BadTrace(f"{where}: n_layers={meta.n_layers}, but the file has {len(types)} columns in all")
    for column in names["experts"]:
        need(column, meta.top_k * size, f"top_k={meta.top_k} ids of {size} bytes")
    weighted = any(c in types for c in names["weights"])
    for column in names["weights"] if weighted else ():
        need(column, 2 * meta.top_k, f"top_k={meta.top_k} float16")
    widths = {}
    for horizon in range(1, meta.n_layers):
        columns = names[f"predicted.h{horizon}"][horizon:]
        if not any(c in types for c in columns):
            continue
        n_bytes = getattr(types.get(columns[0]), "byte_width", 0) or size
        for column in columns:
            need(column, n_bytes, f"predictions of {size} bytes, as many for every layer from {horizon} on")
        if n_bytes % size:
            raise BadTrace(f"{where}: column {columns[0]}: {n_bytes} bytes are no whole number of {size}-byte ids")
        widths[horizon] = n_bytes // size
    return weighted, "token_id" in types, widths


def _check_sizes(where: str, file: Any, column: str) -> np.ndarray:
    """Row offsets of the groups, after holding what the headers promise against the bytes that are really there."""
    header = file.metadata
    n_bytes = Path(where).stat().st_size
    offsets, stored = [0], 0
    for g in range(header.num_row_groups):
        group = header.row_group(g)
        for c in range(group.num_columns):
            chunk = group.column(c)
            stored += chunk.total_compressed_size
            if chunk.num_values != group.num_rows or group.num_rows < 0 or chunk.total_compressed_size < 0:
                raise BadTrace(
                    f"{where}: row group {g}, column {chunk.path_in_schema}: {chunk.num_values} values for "
                    f"{group.num_rows} rows"
                )
            if group.num_rows > 2**20 + EXPANSION * chunk.total_compressed_size:
                raise BadTrace(
                    f"{where}: row group {g} promises {group.num_rows} rows, but column "
                    f"{chunk.path_in_schema} has only {chunk.total_compressed_size} bytes"
                )
        if group.num_rows:
            offsets.append(offsets[-1] + group.num_rows)
        else:
            raise BadTrace(f"{where}: row group {g} is empty")
    if stored > n_bytes:
        raise BadTrace(
            f"{where}: its headers promise {stored} bytes of columns, but the file has {n_bytes}; truncated?"
        )
    if header.num_rows != offsets[-1]:
        raise BadTrace(f"{where}: its header says {header.num_rows} rows, but its row groups hold {offsets[-1]}")
    if not offsets[-1]:
        raise BadTrace(f"{where}: no tokens; a trace needs at least one row")
    return np.array(offsets)
