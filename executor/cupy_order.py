"""Order between streams, by events: what the caller queues, what we queue, copies into slots that hot work reads."""

from __future__ import annotations

from typing import Any

from .cupy_driver import calls, check, need_cupy, need_driver, refused

_READERS = 4096  # pieces of hot work that copies may still have to wait for


class Order:
    """The compute stream among others. The host never waits here."""

    def __init__(self, stream: Any):
        driver = need_driver()
        kind = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
        self._current, self._stream = need_cupy().cuda.get_current_stream, int(stream.ptr)
        self._events = [check(driver.cuEventCreate(kind)) for _ in range(_READERS + 2)]
        self._handles = [int(event) for event in self._events]
        self._theirs, self._ours = self._handles[_READERS:]
        self._number = 0

    def after_caller(self) -> None:
        """What we queue from now on waits for what the stream that is current for CuPy holds."""
        caller = self._current().ptr
        if caller != self._stream:
            refused(calls().event_record(self._theirs, caller))
            refused(calls().stream_wait(self._stream, self._theirs, 0))

    def before_caller(self) -> None:
        """What is queued there from now on waits for what we hold."""
        caller = self._current().ptr
        if caller != self._stream:
            refused(calls().event_record(self._ours, self._stream))
            refused(calls().stream_wait(caller, self._ours, 0))

    def next_reader(self) -> tuple[int, int]:
        """(number, handle) of the event to record behind the next piece of hot work."""
        self._number += 1
        return self._number, self._handles[self._number % _READERS]

    def still_reading(self, number: int) -> int | None:
        """The event of a piece of hot work, or None if it is done."""
        if number <= self._number - _READERS:
            return None
        handle = self._handles[number % _READERS]
        return None if calls().event_query(handle) == 0 else handle
