"""What the machine moves at best, measured in the run that is held against it: copies, and reads on both sides."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import cycle, islice

import numpy as np

from .backend import Backend, Copy
from .cold import ColdChain
from .cores import caches_bytes
from .store import HostStore

BUDGET_S = 0.04  # for each of the four, once its memory is there
BATCH_BYTES, BATCH_ROWS = 64 << 20, 256
LARGE_BYTES = 16 << 20  # one copy
MOST_BYTES = 512 << 20  # of memory that is made only to be read


def best_rate(job: Callable[[], int]) -> float:
    """Bytes per second of the fastest of several calls, each of which returns how many it moved."""
    until, best = time.monotonic() + BUDGET_S, 0.0
    for turn in range(1000):
        began = time.monotonic()
        moved = job()
        ended = time.monotonic()
        best = max(best, moved / (ended - began))
        if turn and ended > until:
            break
    return best


def l3_bytes() -> int:
    """All L3 caches of the machine together; 32 MiB where the system does not say."""
    return caches_bytes(3) or 32 << 20


def measure(backend: Backend, chain: ColdChain, store: HostStore) -> dict[str, float | int | None]:
    """Bytes per second at best, and how much memory the host's figure went over. In all about half a second.

    Called before and after the runs: whoever else uses the machine meanwhile rarely spoils both, see `better`.

    backend: a new one, which this prepares, and leaves to be closed. chain: of the cold chain, opened.
    `copy_rows`: batches of rows of the store into device memory; `copy_large`: the same in pieces of up to 16 MiB; None
    if the device has no room for a row. `host_read`: the cold chain's threads over four L3 caches at least, of the
    store where it is that large, else of memory made for it (at most 512 MiB). `device_read`: what the hot chain could
    read. All of them are None on a backend that moves nothing.
    """
    backend.prepare(store.layouts, 1, 1)
    wanted, free = 4 * l3_bytes(), backend.free_bytes()
    names = ("copy_rows_per_s", "copy_large_per_s", "host_read_per_s", "device_read_per_s")
    found: dict[str, float | int | None] = dict.fromkeys(names)
    stored = sum(memory.nbytes for memory in store.memory)
    found |= {"store_bytes": stored, "l3_bytes": l3_bytes(), "read_bytes": None}
    read = backend.read_rate(MOST_BYTES if free is None else max(1 << 20, min(MOST_BYTES, free // 2)))
    if read is None:
        return found
    found["device_read_per_s"] = read
    stride = max(store.strides)
    room = max(BATCH_BYTES, stride)
    room = room if free is None else min(room, free)
    if room >= stride:
        target = backend.device_memory(room)
        found["copy_rows_per_s"] = _rows(backend, store, target, room)
        found["copy_large_per_s"] = _pieces(backend, store.memory[0], target, room)
    wanted = wanted if stored >= wanted else min(wanted, MOST_BYTES)
    found["read_bytes"] = wanted
    found["host_read_per_s"] = _read(chain, store.memory if stored >= wanted else [np.ones(wanted, np.uint8)], wanted)
    return found


def better(one: dict[str, float | int | None], other: dict[str, float | int | None]) -> dict[str, float | int | None]:
    """The higher of two measurements of each rate."""
    return one | {
        name: max(value, again)
        for name, value in one.items()
        if name.endswith("_per_s") and value is not None and (again := other[name]) is not None
    }


def _rows(backend: Backend, store: HostStore, target: int, room: int) -> float:
    """Batch after batch, through all rows of the store."""
    stride = max(store.strides)
    n = min(BATCH_ROWS, room // stride, store.n_experts * len(store.memory))
    stored = zip(store.addresses[: len(store.memory)], store.row_bytes, strict=False)
    rows = cycle([(address, size) for addresses, size in stored for address in addresses])

    def job() -> int:
        return _move(backend, [Copy(row, target + i * stride, size) for i, (row, size) in enumerate(islice(rows, n))])

    return best_rate(job)


def _pieces(backend: Backend, memory: np.ndarray, target: int, room: int) -> float:
    piece = min(LARGE_BYTES, memory.nbytes, room)
    copies = [Copy(memory.ctypes.data, target + i * piece, piece) for i in range(min(BATCH_ROWS, room // piece))]
    return best_rate(lambda: _move(backend, copies))


def _move(backend: Backend, copies: list[Copy]) -> int:
    backend.copy(copies)
    backend.drain()
    return sum(copy.n_bytes for copy in copies)


def _read(chain: ColdChain, parts: list[np.ndarray], wanted: int) -> float:
    """So many bytes from the parts, one after the other: by the next round no cache holds what is read."""
    turns, left = [], wanted
    for part in parts:
        turns.append(part[:left])
        left -= turns[-1].nbytes

    def job() -> int:
        for part in turns:
            if part.size:
                chain.read(part)
        return wanted

    return best_rate(job)
