"""Steps of a running model become rows: which tokens count, whose they are, and the file that grows with them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fcntl import LOCK_EX, LOCK_NB, flock
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from .capture_save import Saver
from .errors import BadTrace
from .files import check_target
from .format_capture import header, layout, rows_of
from .meta import Meta


def check_free(path: Path, force: bool) -> Path:
    """The file that rows go to until `path` can be made of them. BadTrace if one of them exists, unless `force`."""
    part = path.with_name(path.name + ".part")
    check_target(path)
    check_target(part)
    if path.exists() and not force:
        raise BadTrace(f"{path} exists; choose another name, or replace it (--force, force=True)")
    if part.exists() and not force:
        raise BadTrace(
            f"{part} is what a capture left that was broken off; keep it with `slotwise trace import {part} -o {path}` "
            "and remove it, or replace it (--force, force=True)"
        )
    return part


class RowWriter:
    """Appends steps to `path` + ".part", and makes the trace `path` of them at the end.

    Only the passes at hand are in memory. `ends` are the tokens after which a sequence of a batch has ended.
    """

    def __init__(
        self,
        path: Path,
        meta: Meta,
        widths: dict[int, int],
        labels: Sequence[str],
        ends: Sequence[int],
        force: bool,
    ) -> None:
        self.path, self.part = path, check_free(path, force)
        self._dtype = layout(meta, widths)
        if not all(isinstance(label, str) for label in labels):
            raise BadTrace(f"labels={list(labels)}: each is the name of a request, text")
        self._header = header(meta, widths, labels)
        self._saver = Saver(self.part, path, len(self._header), self._dtype, meta, widths)
        self._ends = np.array(ends, np.int64)
        self._file: BinaryIO | None = None
        self._state = _State(-1, len(self._header), 0, 0, 0, np.zeros(0, np.int32), np.zeros(0, bool))

    @property
    def n_steps(self) -> int:
        return self._state.n_steps

    @property
    def n_rows(self) -> int:
        return self._state.n_rows

    def open(self) -> None:
        file = os.fdopen(os.open(self.part, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0)
        try:
            flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            file.close()
            raise BadTrace(f"{self.part}: another capture is writing it; choose another name") from None
        self._file = file
        file.truncate(0)
        file.write(self._header)

    def write(
        self,
        number: int,
        shape: tuple[int, int, int],
        past: np.ndarray,
        table: np.ndarray,
        tokens: np.ndarray | None,
        position: np.ndarray | None,
        mask: np.ndarray | None,
    ) -> int:
        """Forward passes of one `shape` (passes, sequences, tokens of each); returns how many rows count.

        `past [passes]` tokens were cached before each. `table [all tokens, bytes]` uint8 has ids, weights and
        predictions by horizon as they lie in the file. `tokens`, `position` and `mask` have that shape; without, tokens
        are unknown, positions count on, and none is padding. `number`, that of the last pass, rises from call to call;
        passes that are there already are not written again, and what an interrupted call has left is overwritten.
        """
        state = self._state
        if number <= state.number:
            return 0
        passes, batch, n = shape
        decode = (past > 0) & (n == 1)
        ends = np.zeros((passes, batch), bool)
        if n == 1 and batch > 1 and tokens is not None and self._ends.size:
            ends = np.isin(tokens[..., 0], self._ends) & decode[:, None]
        opens = past == 0
        opens[0] |= not state.n_requests
        requests, ended = np.empty((passes, batch), np.int32), np.empty((passes, batch), bool)
        for begin, end in pairwise([0, *(np.flatnonzero(opens[1:]) + 1).tolist(), passes]):
            state = _whose(state, batch, int(past[begin]), opens[begin])
            requests[begin:end] = state.requests
            ended[begin:end] = np.logical_or.accumulate(ends[begin:end], 0) | state.ended
            state = state._replace(ended=ended[end - 1])
        kept = np.broadcast_to(~(ended & decode[:, None])[..., None], shape)
        if mask is not None:
            kept = kept & mask.astype(bool)
        counts = kept.sum((1, 2))
        at = np.flatnonzero(kept)
        rows = np.empty(at.size, self._dtype)
        rows["request"] = requests.ravel()[at // n]
        rows["step"] = np.repeat(state.n_steps + np.cumsum(counts > 0) - 1, counts)
        if position is None:
            position = np.broadcast_to(past[:, None, None] + np.arange(n), shape)
        rows["position"] = position.ravel()[at]
        rows["phase"] = np.repeat(decode, counts)
        rows["token_id"] = -1 if tokens is None else tokens.ravel()[at]
        rows["left"] = np.repeat(np.cumsum(counts), counts) - np.arange(at.size) - 1
        rows.view(np.uint8).reshape(-1, self._dtype.itemsize)[:, -table.shape[1] :] = (
            table if at.size == kept.size else table[at]
        )
        if ((rows["weights"].view(np.uint16) & 0x7C00) == 0x7C00).any():  # the exponent of NaN and the infinities
            raise BadTrace(f"step {state.n_steps} or later: weights of a router are not finite; is the model whole?")
        self._append(rows, state.n_bytes)
        self._state = state._replace(  # at once, so that an interrupt finds all or nothing done
            number=number,
            n_bytes=state.n_bytes + rows.nbytes,
            n_steps=state.n_steps + int(np.count_nonzero(counts)),
            n_rows=state.n_rows + at.size,
        )
        self._saver.tell(self.n_rows)
        return at.size

    def _append(self, rows: np.ndarray, at: int) -> None:
        """All of it, or an error: a write to a file may take less than it was given."""
        assert self._file
        self._file.seek(at)
        left = rows.view(np.uint8).data
        while left:
            left = left[self._file.write(left) :]

    def close(self, *, complete: bool) -> None:
        """Turns the steps into the trace. Without any, BadTrace if the work was `complete`, and no file in any case."""
        if self._file is None:
            return
        self._file.truncate(self._state.n_bytes)
        self._file.close()
        self._file = None
        if self.n_steps:
            try:
                self._saver.finish(self.n_rows, rows_of(self.part).meta)
            except OSError as error:
                raise OSError(
                    error.errno,
                    f"{error.strerror}; the {self.n_steps} steps captured are kept: "
                    f"`slotwise trace import {self.part} -o {self.path}` once that is mended",
                ) from error
        self.part.unlink()
        if complete and not self.n_steps:
            raise BadTrace("no forward pass was captured: the model was not called inside the block")


class _State(NamedTuple):
    """What is written, and whose the sequences of the batch at hand are."""

    number: int  # of the last pass written
    n_bytes: int
    n_steps: int
    n_rows: int
    n_requests: int
    requests: np.ndarray  # by place in the batch
    ended: np.ndarray


def _whose(state: _State, batch: int, past: int, opens: bool) -> _State:
    """Before passes of `batch` sequences, the first over `past` cached tokens: if it `opens`, of new requests."""
    if opens:
        requests = np.arange(state.n_requests, state.n_requests + batch, dtype=np.int32)
        return state._replace(requests=requests, n_requests=state.n_requests + batch, ended=np.zeros(batch, bool))
    if batch != len(state.requests):
        raise BadTrace(
            f"a pass of {batch} sequences over a cache of {past} tokens, but the pass that filled it had "
            f"{len(state.requests)}: whose tokens these are is not known (beam search is not captured)"
        )
    return state
