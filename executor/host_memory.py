"""Memory that rows are copied from, by kind: page-locked, huge pages that are registered, or ordinary behind a ring."""

from __future__ import annotations

import ctypes
import mmap
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .backend import Copy
from .cold import ColdChain
from .errors import LESS_HOST, BadExecutor

HOSTS = ("pinned", "registered", "staged")
RING_BYTES = 64 << 20
ALIGNMENT = 256
_HUGE = 2 << 20
_TOUCHED = 64 << 20  # bytes that the threads share out at a time


def ordinary(n_bytes: int) -> NDArray[np.uint8]:
    """Memory as it comes, aligned to 256 bytes. Raises BadExecutor if it cannot be had."""
    try:
        memory = np.empty(n_bytes + ALIGNMENT, np.uint8)
    except MemoryError:
        raise BadExecutor(f"{n_bytes:,} bytes of host memory cannot be had; {LESS_HOST}") from None
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + n_bytes]


def huge_pages(n_bytes: int) -> NDArray[np.uint8]:
    """Zeroed memory in huge pages, touched first by as many threads as the cold chain would have.

    Where the kernel has no huge pages they are small ones. Raises BadExecutor if it cannot be had.
    """
    try:
        pages = mmap.mmap(-1, n_bytes + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as failed:
        raise BadExecutor(f"{n_bytes:,} bytes of host memory cannot be had ({failed.strerror}); {LESS_HOST}") from None
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel built without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(pages, np.uint8)  # keeps the mapping
    start = -whole.ctypes.data % _HUGE
    memory = whole[start : start + n_bytes]
    zeros = np.zeros(min(n_bytes, _TOUCHED), np.uint8)
    with ColdChain() as chain:
        for first in range(0, n_bytes, _TOUCHED):
            part = memory[first : first + _TOUCHED]
            chain.copy(part, zeros[: part.size])
    return memory


class Ring:
    """A little memory that a device copies from, in front of much that it does not.

    Rows go into it piece by piece, a quarter of it at most, and from there on; what a batch took is used again once the
    batch has landed. memory: page-locked, or whatever the device at hand needs; a multiple of 1024 bytes.
    most: the most pieces of a batch.
    """

    def __init__(self, memory: NDArray[np.uint8], most: int = 512):
        if memory.nbytes % (4 * ALIGNMENT) or not memory.nbytes:
            raise BadExecutor(f"a ring of {memory.nbytes} bytes: a positive multiple of {4 * ALIGNMENT}")
        memory[:] = 0  # pages are there from now on
        self._memory, self._most = memory, most
        self._piece = memory.nbytes // 4
        self._head = self._tail = 0  # bytes that were handed out, and came back, since the beginning
        self._sent: deque[tuple[int, Any]] = deque()  # where batches end, and their tickets, oldest first
        self.reused = 0  # batches whose bytes were handed out again

    def carry(self, copies: Sequence[Copy], submit: Callable[[list[Copy]], Any], wait: Callable[[Any], Any]) -> Any:
        """Moves rows through the ring and returns the ticket of the last batch; `submit` makes tickets, `wait` waits.

        What `submit` raises is passed on: nothing of that batch then holds a place in the ring.
        """
        batch: list[Copy] = []
        ticket, began = None, self._head
        for source, target, n_bytes in copies:
            for at in range(0, n_bytes, self._piece):
                n = min(self._piece, n_bytes - at)
                room = self._room(n, wait)
                ctypes.memmove(room, source + at, n)  # without the GIL
                batch.append(Copy(room, target + at, n))
                if self._head - began >= self._piece or len(batch) == self._most:
                    ticket, batch, began = self._send(batch, began, submit), [], self._head
        return self._send(batch, began, submit) if batch else ticket

    def _send(self, batch: list[Copy], began: int, submit: Callable[[list[Copy]], Any]) -> Any:
        end, self._head = self._head, began
        ticket = submit(batch)
        self._head = end
        self._sent.append((end, ticket))
        return ticket

    def _room(self, n_bytes: int, wait: Callable[[Any], Any]) -> int:
        """Address of so many bytes that nobody reads any more. Less than half of the ring is not sent yet."""
        size = self._memory.nbytes
        n_bytes = -(-n_bytes // ALIGNMENT) * ALIGNMENT
        at = self._head % size
        if at + n_bytes > size:  # no piece lies across the end
            self._head += size - at
        while self._head + n_bytes - self._tail > size:
            end, ticket = self._sent.popleft()
            wait(ticket)
            self.reused += 1
            self._tail = end
        at = self._head % size
        self._head += n_bytes
        return self._memory.ctypes.data + at
