"""When work of the device began and ended, by the host's clock: events beside it, read once they have happened."""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import Any

from .cupy_driver import need_cupy

_ANEW_S = 1.0  # elapsed time is a float32 of milliseconds: over a second it is exact to a tenth of a microsecond


class Spans:
    """Events around hot work and batches of copies, on the streams that do them. For runs that are timed."""

    def __init__(self, stream: Any, copy_stream: Any):
        self._cupy = need_cupy()
        self._stream, self._copy_stream = stream, copy_stream
        self._zero = self._cupy.cuda.Event()
        self._hot: list[tuple[Any, Any, Any]] = []  # of the present tick: where it arrived (to wait), began, ended
        self._spare: list[Any] = []
        self._batches: deque[tuple[Any, Any, int]] = deque()
        self._set_zero()

    def _set_zero(self) -> None:
        self._zero.record(self._stream)
        self._zero.synchronize()
        self._zero_s = monotonic()

    def _since(self, first: Any, last: Any) -> float:
        return self._cupy.cuda.get_elapsed_time(first, last) * 1e-3

    def _event(self, stream: Any) -> Any:
        event = self._blank()
        event.record(stream)
        return event

    def _blank(self) -> Any:
        return self._spare.pop() if self._spare else self._cupy.cuda.Event()

    # --- hot work ---

    def hot_work(self, *, first: bool, waits: bool) -> tuple[int, int]:
        """Handles of two events to record where the work begins and where it ends, once it has waited for copies.

        first: of its tick; what is known of the last one goes.
        """
        if first:
            self._spare += (event for events in self._hot for event in events if event)
            self._hot.clear()
        arrived = self._event(self._stream) if waits else None
        began, ended = self._blank(), self._blank()
        self._hot.append((arrived, began, ended))
        return began.ptr, ended.ptr

    def _at(self, event: Any) -> float:
        return self._zero_s + self._since(self._zero, event)

    def hot(self) -> list[tuple[float, float]]:
        """(began, ended) of each piece of the tick that has just been waited for."""
        return [(self._at(began), self._at(ended)) for _, began, ended in self._hot]

    def late(self) -> list[tuple[float, float]]:
        """(arrived, began) of each piece that had copies to wait for."""
        return [(self._at(arrived), self._at(began)) for arrived, began, _ in self._hot if arrived]

    # --- copies ---

    def batch_begins(self) -> Any:
        """After what the copy stream has to wait for, before the batch. Returns what `batch_ends` takes."""
        return self._event(self._copy_stream)

    def batch_ends(self, began: Any, n_bytes: int) -> None:
        self._batches.append((began, self._event(self._copy_stream), n_bytes))

    def copies(self) -> list[tuple[float, float, int]]:
        """(began, ended, bytes) of batches that landed since the last call."""
        found = []
        while self._batches and self._batches[0][1].done:
            first, last, n_bytes = self._batches.popleft()
            found.append((self._at(first), self._at(last), n_bytes))
            self._spare += first, last
        if not self._batches and monotonic() - self._zero_s > _ANEW_S:
            self._set_zero()
        return found


class Timed:
    """What a backend with spans, or without, tells of them."""

    _spans: Spans | None = None

    def hot_spans(self, tick: Any) -> list[tuple[float, float]]:
        return self._spans.hot() if tick.hot and self._spans else []

    def late_spans(self, tick: Any) -> list[tuple[float, float]]:
        return self._spans.late() if tick.hot and self._spans else []

    def copy_spans(self) -> list[tuple[float, float, int]]:
        return self._spans.copies() if self._spans else []
