"""The copy engine: rows from page-locked memory into slots, batch by batch, on a stream of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .cupy_driver import LOST, NOT_READY, calls, check, need_cupy, need_driver
from .cupy_small import page_locked
from .errors import BadExecutor, ContextLost

WAYS = ("batch", "batch_12_8", "loop")


class CopyFailed(BadExecutor):
    """A batch that the driver did not take. doubtful: some of its rows may be on their way; else none is."""

    def __init__(self, message: str, doubtful: bool):
        super().__init__(message)
        self.doubtful = doubtful


class CopyEngine:
    """One non-blocking stream of copies. A ticket is a batch; batches land in the order in which they were submitted.

    how: `batch`, one call of the driver for all rows (cuMemcpyBatchAsync as CUDA 13 has it); `batch_12_8`, the same as
    CUDA 12.8 has it, with the index of the row that failed; `loop`, one asynchronous copy a row. Default: the first
    that this driver has, which `how` then names. The bytes that land are the same. Opening copies a few bytes that way
    and compares. batch_rows: the most rows of a batch. tickets: the most batches whose landing can still be asked for.
    """

    def __init__(self, *, how: str | None = None, batch_rows: int = 512, tickets: int = 1024):
        cupy, driver = need_cupy(), need_driver()
        here = {"batch": calls().batch_13, "batch_12_8": calls().batch_12_8, "loop": calls().copy_to_device}
        if how is None:
            how = next(name for name in WAYS if here[name] is not None)
        if how not in here:
            raise BadExecutor(f"how={how!r} of the copies: {', '.join(WAYS)}")
        if here[how] is None:
            raise BadExecutor(f"how={how!r} of the copies: this driver is older than it; say how='loop'")
        self.how = how
        self.stream = cupy.cuda.Stream(non_blocking=True)  # waits for no other stream, and none for it
        self._stream = int(self.stream.ptr)
        kind = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
        self._events = [check(driver.cuEventCreate(kind)) for _ in range(tickets)]
        self._handles = [int(event) for event in self._events]
        self._submitted = 0
        self._landed = 0  # all tickets up to this one are known to have landed
        self._to, self._from, self._sizes = (np.zeros(batch_rows, np.uint64) for _ in range(3))
        self._addresses = tuple(array.ctypes.data for array in (self._to, self._from, self._sizes))
        self._first = np.zeros(1, np.uint64)  # the attributes hold from row 0 on
        self._failed = np.zeros(1, np.uint64)
        self._attributes = self._make_attributes(driver)
        self._attributes_at = int(self._attributes.getPtr())
        self._fail_after: int | None = None
        self._check()

    def _make_attributes(self, driver: Any) -> Any:
        """Sources are read in stream order (they are rewritten only after the event); host to this device."""
        found = driver.CUmemcpyAttributes()
        found.srcAccessOrder = driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
        found.srcLocHint.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST
        found.dstLocHint.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        found.dstLocHint.id = need_cupy().cuda.runtime.getDevice()
        found.flags = 0
        return found

    def _check(self) -> None:
        """Copies four pieces and compares, so that a signature that is not this driver's is found now, not later."""
        cupy = need_cupy()
        sent, back = page_locked(1024), cupy.zeros(1024, np.uint8)
        sent[:] = np.arange(1024) % 251
        cupy.cuda.get_current_stream().synchronize()
        pieces = np.array([3, 0, 2, 1], np.uint64) * np.uint64(256)
        ticket = self.submit(pieces + np.uint64(back.data.ptr), pieces + np.uint64(sent.ctypes.data), [256] * 4)
        self.wait(ticket)
        if not np.array_equal(cupy.asnumpy(back), sent):
            raise BadExecutor(f"copies with how={self.how!r} do not arrive with this driver: say how='loop'")

    def submit(self, to: ArrayLike, source: ArrayLike, sizes: ArrayLike) -> int:
        """Queues one batch and returns its ticket. It runs after the batches before it and what `hold_copies` named.

        to: device addresses; source: addresses in page-locked memory, which must not change before the batch landed;
        sizes: bytes; one of each per row. No two rows of a batch may overlap in `to`. Raises CopyFailed if the driver
        does not take it, and BadExecutor for more rows or batches than the engine was opened for.
        """
        count = len(to)  # pyright: ignore[reportArgumentType]
        if not 1 <= count <= self._to.size:
            raise BadExecutor(f"{count} rows in one batch: 1 to {self._to.size} (batch_rows)")
        kept = len(self._handles)
        if self._submitted - self._landed >= kept and not self.landed(self._submitted + 1 - kept):
            raise BadExecutor(f"{kept} batches are on their way: wait for one, or open with more tickets")
        self._to[:count], self._from[:count], self._sizes[:count] = to, source, sizes
        if self._fail_after is not None:
            after, self._fail_after = min(self._fail_after, count), None
            self._queue(after)
            raise CopyFailed("the batch was told to fail", doubtful=after > 0)
        self._queue(count)
        self._submitted += 1
        error = calls().event_record(self._handle(self._submitted), self._stream)
        if error:
            self._submitted -= 1
            raise self._failure(error, doubtful=True)
        return self._submitted

    def _queue(self, count: int) -> None:
        if count == 0:
            return
        if self.how == "loop":
            copy, stream = calls().copy_to_device, self._stream
            rows = zip(*(array[:count].tolist() for array in (self._to, self._from, self._sizes)), strict=True)
            for done, row in enumerate(rows):
                error = copy(*row, stream)
                if error:
                    raise self._failure(error, doubtful=done > 0)
            return
        common = (*self._addresses, count, self._attributes_at, self._first.ctypes.data, 1)
        if self.how == "batch":
            error = calls().batch_13(*common, self._stream)
        else:
            error = calls().batch_12_8(*common, self._failed.ctypes.data, self._stream)
        if error:  # the driver does not say which rows it had queued
            raise self._failure(error, doubtful=True)

    def _failure(self, error: int, doubtful: bool) -> Exception:
        code = need_driver().CUresult(error)
        if error in LOST:
            return ContextLost(f"the CUDA driver answers {code.name} ({error}) to copies, and nothing else from now on")
        return CopyFailed(f"the CUDA driver answers {code.name} ({error}) to a batch of copies", doubtful)

    def fail_next(self, after: int = 0) -> None:
        """Makes the next batch fail once that many of its rows are queued: for tests of what follows."""
        self._fail_after = after

    def _handle(self, ticket: int) -> int:
        return self._handles[ticket % len(self._handles)]

    def landed(self, ticket: int) -> bool:
        """Whether all rows of that batch have arrived. Never waits."""
        if ticket <= self._landed:
            return True
        self._known(ticket)
        error = calls().event_query(self._handle(ticket))
        if error == NOT_READY:
            return False
        if error:
            raise self._failure(error, doubtful=True)
        self._landed = ticket
        return True

    def wait(self, ticket: int) -> None:
        """The host waits until that batch has landed."""
        if ticket > self._landed:
            self._known(ticket)
            error = calls().event_synchronize(self._handle(ticket))
            if error:
                raise self._failure(error, doubtful=True)
            self._landed = ticket

    def hold(self, stream: int, ticket: int) -> None:
        """What is queued on that stream from now on waits, on the device, for the batch; the host does not wait."""
        if ticket > self._landed:
            self._known(ticket)
            error = calls().stream_wait(stream, self._handle(ticket), 0)
            if error:
                raise self._failure(error, doubtful=True)

    def hold_copies(self, event: int) -> None:
        """Batches from now on wait, on the device, for that event (its handle), such as the last reader of a slot."""
        error = calls().stream_wait(self._stream, event, 0)
        if error:
            raise self._failure(error, doubtful=False)

    def _known(self, ticket: int) -> None:
        kept = len(self._handles)
        if not self._submitted - kept < ticket <= self._submitted:
            raise BadExecutor(
                f"ticket {ticket}: the last is {self._submitted} and {kept} are kept; open with more tickets"
            )

    def close(self) -> None:
        """Waits for what is on its way and gives the events back. A second time does nothing."""
        if self._events:
            self.stream.synchronize()
            driver = need_driver()
            while self._events:
                check(driver.cuEventDestroy(self._events.pop()))

    def __enter__(self) -> CopyEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
