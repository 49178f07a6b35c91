"""The rows of a capture become its trace while more of them come, so that little is left to do at the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import numpy as np

from .format_capture import Rows
from .memory import groups
from .meta import Meta
from .parquet_write import write
from .trace import GROUP_ROWS, Trace


class Saver:
    """A thread that writes row groups of the trace `path` as soon as the file of rows `part` has enough for one.

    It compresses and copies, which Python lets it do beside the model. What it has not read is in `part`, not in
    memory. The thread starts with the first row group that is full: a short capture has none.
    """

    def __init__(self, part: Path, path: Path, begin: int, kind: np.dtype, meta: Meta, widths: dict[int, int]) -> None:
        self._part, self._path, self._begin, self._kind = part, path, begin, kind
        self._meta, self._widths = meta, widths
        self._news: SimpleQueue[tuple[int, Meta | None]] = (
            SimpleQueue()
        )  # rows that are there; the record with the last
        self._thread: threading.Thread | None = None
        self._told = 0
        self._error: BaseException | None = None

    def tell(self, n_rows: int) -> None:
        """`part` has `n_rows` of complete steps, and they stay as they are."""
        if n_rows - self._told <= GROUP_ROWS:
            return
        self._told = n_rows
        self._news.put((n_rows, None))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="slotwise capture", daemon=True)
            self._thread.start()

    def finish(self, n_rows: int, meta: Meta) -> None:
        """There are no more rows than these; `meta` is the record. Raises what went wrong in the thread."""
        self._news.put((n_rows, meta))
        if self._thread is None or self._thread.ident is None:  # it was not needed, or an interrupt came before it ran
            self._run()
        else:
            try:
                self._thread.join()
            finally:  # an interrupt does not leave it half way
                self._thread.join()
        if self._error:
            raise self._error

    def _run(self) -> None:
        try:
            write(self._pieces(), self._path, GROUP_ROWS, lambda rows: None)
        except BaseException as error:  # noqa: BLE001  # raised by `finish`, in the thread of the caller
            self._error = error

    def _pieces(self) -> Iterator[Trace]:
        """Whole row groups as they get there. All but the last have a record that lacks the requests."""
        done, last = 0, None
        while not last:
            n_rows, last = self._news.get()
            at = self._begin + done * self._kind.itemsize
            rows = np.memmap(self._part, self._kind, "r", at, (n_rows - done,))
            cuts = groups(np.array(rows["step"]), GROUP_ROWS)
            cuts = cuts if last else cuts[:-1]  # what comes may still belong to the last group
            if len(cuts) < 2:
                continue
            rows = rows[: cuts[-1]]
            store = Rows(str(self._part), rows, self._meta.n_experts, self._widths, cuts)
            yield Trace(store, last or self._meta, self._path.name)
            done += len(rows)
