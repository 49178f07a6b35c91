"""Opens a result file with its header checked, and says what kind of result it is before anything else is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import BadResult

MAX_ROWS, MAX_BYTES = 1_000_000, 8 << 30  # more than any sweep writes; a header that promises it is wrong
RUN = b"slotwise.run"


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The file as pyarrow's ParquetFile. What turns out to be damaged while it is read is a BadResult, too.

    Raises:
        BadResult: a file that is empty, cut off, or of another kind.
        FileNotFoundError, IsADirectoryError, PermissionError: as from `open`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.exists() and not (path.is_file() or path.is_dir()):
        raise BadResult(f"{path}: is a pipe, a socket or a device; a report is made from files of `slotwise sweep`")
    with path.open("rb") as file:
        if not (head := file.read(4)):
            raise BadResult(f"{path}: the file is empty; run the sweep again")
        if head != b"PAR1":
            raise BadResult(
                f"{path}: no Parquet file; a report is made from what `slotwise sweep -o` or `slotwise run -o` writes"
            )
        file.seek(0)
        try:
            parquet = pq.ParquetFile(file)
            groups = [parquet.metadata.row_group(i) for i in range(parquet.metadata.num_row_groups)]
            if parquet.metadata.num_rows > MAX_ROWS or sum(g.total_byte_size for g in groups) > MAX_BYTES:
                raise BadResult(
                    f"{path}: its header promises more than any sweep writes ({parquet.metadata.num_rows} rows)"
                )
            yield parquet
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            reason = str(error).splitlines()[0]
            raise BadResult(f"{path}: truncated or damaged ({reason}); run the sweep again") from error


def holds_runs(path: Path | str) -> bool:
    """Whether a result file holds runs of the executor; else it is a sweep's, or none at all."""
    with opened(Path(path)) as parquet:
        return (parquet.schema_arrow.metadata or {}).get(b"format") == RUN
