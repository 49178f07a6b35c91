"""Writing our own file: what `Trace.save` does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .files import beside
from .memory import ROWS, groups
from .parquet import KEY, column_name
from .trace import Trace

if TYPE_CHECKING:
    import pyarrow


def write(pieces: Iterable[Trace], path: Path, group_rows: int, advance: Callable[[int], None]) -> None:
    """Streams the blocks of a trace, or of pieces of one, into row groups; the file gets its name when it is whole.

    The digest of the ids is made on the way, so the record goes last: that of the last piece. No dictionaries: ids are
    dense, and plain values are what can be read without a copy.
    """
    import pyarrow.parquet as pq

    pieces = iter(pieces)
    first = record = next(pieces)
    digests = [sha256() for _ in range(first.n_layers)]
    schema = _schema(first)
    options = {"compression": "zstd", "use_dictionary": False, "write_statistics": False, "write_page_checksum": True}
    with (
        beside(path) as temporary,
        temporary.open("wb") as file,
        pq.ParquetWriter(file, schema, store_schema=False, **options) as writer,
    ):
        for piece in chain([first], pieces):
            for batch in _batches(piece, group_rows, digests, schema):
                writer.write_batch(batch, row_group_size=batch.num_rows)
                advance(batch.num_rows)
            record = piece
        whole = sha256(b"".join(digest.digest() for digest in digests)).hexdigest()
        writer.add_key_value_metadata({KEY: record.meta.with_sha256(whole).to_json().encode()})


def _schema(trace: Trace) -> pyarrow.Schema:
    """The columns in the order of the file: rows, then experts, weights and predictions by layer."""
    import pyarrow as pa

    small = [name for name in ROWS if name != "token_id" or trace.store.has_token_id]
    fields = [pa.field(name, pa.from_numpy_dtype(ROWS[name]), nullable=name == "token_id") for name in small]
    for kind, first, n_bytes in _kinds(trace):
        names = [column_name(kind, layer, trace.n_layers) for layer in range(first, trace.n_layers)]
        fields += [pa.field(name, pa.binary(n_bytes), nullable=False) for name in names]
    return pa.schema(fields)


def _kinds(trace: Trace) -> list[tuple[str, int, int]]:
    """(kind, first layer that has a column, bytes of a row of it) of what the trace records per layer."""
    size = trace.dtype.itemsize
    weights = [("weights", 0, 2 * trace.top_k)] if trace.has_weights else []
    ahead = [(f"predicted.h{h}", h, width * size) for h, width in sorted(trace.store.widths.items())]
    return [("experts", 0, trace.top_k * size), *weights, *ahead]


def _batches(trace: Trace, group_rows: int, digests: list, schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
    """One batch per row group. Ids go from the block's arrays into Arrow without a copy."""
    import pyarrow as pa

    small = [name for name in ROWS if name in schema.names]
    for block in trace.blocks():
        start, stop = block.first_row, block.first_row + block.n_rows
        rows = trace.store.rows(start, stop, tuple(small))
        arrays = [
            (first, block.experts if kind == "experts" else trace.read(kind, start, stop))
            for kind, first, _ in _kinds(trace)
        ]
        for a, b in pairwise(groups(rows["step"], group_rows).tolist()):
            columns = [pa.array(rows[name][a:b], mask=_unknown(name, rows[name][a:b])) for name in small]
            for first, array in arrays:
                columns += [_binary(array[layer, a:b]) for layer in range(first, trace.n_layers)]
            for layer, digest in enumerate(digests):
                digest.update(block.experts[layer, a:b].data)
            yield pa.record_batch(columns, schema=schema)


def _unknown(name: str, values: np.ndarray) -> np.ndarray | None:
    return values < 0 if name == "token_id" else None


def _binary(rows: np.ndarray) -> pyarrow.Array:
    """`rows [n, width]` as one fixed-size binary array over the same memory."""
    import pyarrow as pa

    kind = pa.binary(rows.shape[1] * rows.dtype.itemsize)
    return pa.FixedSizeBinaryArray.from_buffers(kind, len(rows), [None, pa.py_buffer(rows)])
