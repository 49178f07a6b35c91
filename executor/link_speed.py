"""What the link gives: rows of a store copied to the device and timed, before a run takes them for granted."""

from __future__ import annotations

from itertools import cycle, islice
from time import monotonic

from .backend import Backend, Copy
from .store import HostStore

_ROWS = 8  # of one batch
_BATCHES = 4  # on their way at a time
_SECONDS = 0.05


def link_bytes_per_s(store: HostStore, backend: Backend) -> float | None:
    """Bytes per second of batches of the store's own rows; None if the device has no room for one.

    `backend` is a new one, which this prepares, and leaves to be closed. It takes about a twentieth of a second.
    """
    free, stride = backend.free_bytes(), max(store.strides)
    n = min(_ROWS, store.n_experts, _ROWS if free is None else free // stride)
    if n < 1:
        return None
    backend.prepare(store.layouts, 1)
    start = backend.device_memory(n * stride)
    stored = zip(store.addresses[: len(store.memory)], store.layouts, strict=False)
    rows = cycle([(address, layout.row_bytes) for addresses, layout in stored for address in addresses])

    def copy_some() -> int:
        batches = [[Copy(row, start + i * stride, size) for i, (row, size) in enumerate(islice(rows, n))]
                   for _ in range(_BATCHES)]  # fmt: skip
        for batch in batches:
            backend.copy(batch)
        backend.drain()
        return sum(copy.n_bytes for batch in batches for copy in batch)

    copy_some()  # to warm up
    began, moved = monotonic(), copy_some()
    while monotonic() - began < _SECONDS:
        moved += copy_some()
    return moved / (monotonic() - began)
