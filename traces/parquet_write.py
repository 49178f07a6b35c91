"""Writing our own file: what `Trace.save` does."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .block import Block
from .memory import groups
from .parquet import KEY, column_names
from .trace import Trace

if TYPE_CHECKING:
    import pyarrow


def write(trace: Trace, path: Path, group_rows: int, advance: Callable[[int], None]) -> None:
    """Streams the blocks into row groups; the file appears under its name when it is whole. The digest of the ids is
    made on the way, so the record goes last."""
    import pyarrow.parquet as pq

    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such folder", str(path.parent))
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    digests = [sha256() for _ in range(trace.n_layers)]
    try:
        with beside.open("wb") as file:
            writer = None
            for batch in _batches(trace, group_rows, digests):
                if writer is None:  # no dictionary: ids are dense, and a layer must be readable without copies
                    writer = pq.ParquetWriter(
                        file,
                        batch.schema,
                        compression="zstd",
                        use_dictionary=False,
                        write_statistics=False,
                        store_schema=False,
                        write_page_checksum=True,
                    )
                writer.write_batch(batch, row_group_size=batch.num_rows)
                advance(batch.num_rows)
            if writer is None:
                raise ValueError("a trace has at least one row")
            whole = sha256(b"".join(digest.digest() for digest in digests)).hexdigest()
            writer.add_key_value_metadata({KEY: trace.meta.with_sha256(whole).to_json().encode()})
            writer.close()
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _batches(trace: Trace, group_rows: int, digests: list) -> Iterator[pyarrow.RecordBatch]:
    """One batch per row group. Ids go from the block's arrays into Arrow without a copy."""
    names = column_names(trace.n_layers)
    ahead = trace.horizons
    for block in trace.blocks(weights=trace.has_weights):
        rows = block.first_row, block.first_row + block.n_rows
        kinds = [("experts", 0, block.experts)]
        kinds += [("weights", 0, block.weights)] if block.weights is not None else []
        kinds += [(f"predicted.h{h}", h, trace.read(f"predicted.h{h}", *rows)) for h in ahead]
        step = trace.store.rows(*rows, ("step",))["step"]
        cuts = groups(step, group_rows).tolist()
        for a, b in pairwise(cuts):
            columns = _small_columns(block, step, a, b)
            for kind, first, array in kinds:
                for layer in range(first, trace.n_layers):
                    columns[names[kind][layer]] = _binary(array[layer, a:b])
            for layer, digest in enumerate(digests):
                digest.update(block.experts[layer, a:b].data)
            yield _batch(columns)


def _small_columns(block: Block, step: np.ndarray, a: int, b: int) -> dict[str, pyarrow.Array]:
    import pyarrow as pa

    columns = {
        "request": pa.array(block.row_request[a:b]),
        "step": pa.array(step[a:b]),
        "position": pa.array(block.position[a:b]),
        "phase": pa.array(block.row_phase[a:b]),
    }
    if block.token_id is not None:
        columns["token_id"] = pa.array(block.token_id[a:b], mask=block.token_id[a:b] < 0)
    return columns


def _batch(columns: dict[str, pyarrow.Array]) -> pyarrow.RecordBatch:
    import pyarrow as pa

    fields = [pa.field(name, column.type, nullable=name == "token_id") for name, column in columns.items()]
    return pa.record_batch(list(columns.values()), schema=pa.schema(fields))


def _binary(rows: np.ndarray) -> pyarrow.Array:
    """`rows [n, width]` as one fixed-size binary array over the same memory."""
    import pyarrow as pa

    kind = pa.binary(rows.shape[1] * rows.dtype.itemsize)
    return pa.FixedSizeBinaryArray.from_buffers(kind, len(rows), [None, pa.py_buffer(rows)])
