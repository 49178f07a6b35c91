"""What the host holds and does for the GPU: memory that rows are copied from, and the merge on the CPU."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .cupy_driver import need_cupy
from .cupy_small import MAX_WHERE, SmallKernels, page_locked
from .errors import BadExecutor
from .host_memory import huge_pages, ordinary
from .merge import COLD, merged


class RowMemory:
    """Memory of one kind: `pinned` is page-locked, `registered` huge pages made so, `staged` ordinary."""

    def __init__(self, kind: str):
        self._kind = kind
        self._registered: list[NDArray[np.uint8]] = []

    def take(self, n_bytes: int) -> NDArray[np.uint8]:
        """New memory. Raises BadExecutor if the driver refuses, with the way out."""
        if self._kind == "staged":
            return ordinary(n_bytes)
        if self._kind == "pinned":
            return page_locked(n_bytes)
        memory, runtime = huge_pages(n_bytes), need_cupy().cuda.runtime
        try:
            runtime.hostRegister(memory.ctypes.data, n_bytes, 0)
        except runtime.CUDARuntimeError as failed:
            raise BadExecutor(
                f"{n_bytes:,} bytes of host memory cannot be registered ({failed}): use --host staged"
            ) from failed
        self._registered.append(memory)
        return memory

    def close(self) -> None:
        """The memory is ordinary from now on: no copy may be under way. A second time does nothing."""
        while self._registered:
            need_cupy().cuda.runtime.hostUnregister(self._registered.pop().ctypes.data)


class HostMerge:
    """The merge on the CPU, by `merged`: the bytes of the kernel. A kernel brings its result to the device.

    `out` [n_pairs, hidden] is page-locked: the cold chain and the hot chain's kernels write their pairs into it.
    """

    def __init__(self, small: SmallKernels, n_pairs: int, hidden: int):
        self.out = page_locked(n_pairs * hidden * 4).view(np.float32).reshape(n_pairs, hidden)
        self._y = page_locked(n_pairs * hidden * 4).view(np.float32).reshape(n_pairs, hidden)
        self._small = small
        self._ones = need_cupy().ones(MAX_WHERE, np.float32)
        self._from_host = np.full(MAX_WHERE, COLD, np.uint8)

    def merge(self, stream: int, chains: NDArray[np.uint8], weights: ArrayLike, y: int) -> None:
        """chains, weights [n, k] -> [n, hidden] at device address `y`. Both chains have written, and the host knows."""
        n, k = chains.shape
        hidden = self.out.shape[1]
        self._y[:n] = merged(self.out[: n * k].reshape(n, k, hidden), chains, np.asarray(weights, np.float32))
        here, ones = self._y.ctypes.data, self._ones.data.ptr
        for a in range(0, n, MAX_WHERE):  # one choice a token, times 1: the kernel's reads pass by every cache
            m, at = min(MAX_WHERE, n - a), 4 * a * hidden
            self._small.merge(stream, here + at, here + at, self._from_host[:m], ones, y + at, m, 1, hidden)
