"""Words from device to host without a copy engine: a kernel writes page-locked memory, then a flag that we poll."""

from __future__ import annotations

from typing import Any

import numpy as np

from .cupy_small import SmallKernels, page_locked
from .errors import BadExecutor

_FLAG_BYTES = 4096  # a page before the words
_MOST = 1 << 20


class Words:
    """What one stream tells the host. Every telling has a number; hearing one is hearing all before it."""

    def __init__(self, small: SmallKernels, stream: Any):
        self._small, self._stream, self._handle = small, stream, int(stream.ptr)
        memory = page_locked(_FLAG_BYTES + _MOST)
        self._flag, self._room = memory[:4].view(np.uint32), memory[_FLAG_BYTES:]
        self._told = self._heard = 0

    def tell(self, words: int, count: int, to: int) -> int:
        """Queues the telling of 32-bit words to page-locked memory. Returns its number."""
        self._told += 1
        self._small.tell(self._handle, words, count, to, self._flag.ctypes.data, self._told & 0xFFFFFFFF)
        return self._told

    def arrays(self, values: tuple[Any, ...]) -> list[np.ndarray]:
        """Device arrays of whole words on the host, until the next call, with one wait for all of them."""
        found, at = [], 0
        for value in values:
            n_words = -(-value.nbytes // 4)
            if at + 4 * n_words > _MOST:
                raise BadExecutor(f"{value.nbytes} bytes of ids of one step: at most {_MOST}")
            found.append(self._room[at : at + value.nbytes].view(value.dtype).reshape(value.shape))
            self.tell(value.data.ptr, n_words, self._room.ctypes.data + at)
            at += 64 * -(-n_words // 16)
        self.hear(self._told)
        return found

    def hear(self, number: int) -> None:
        """Waits until the device has told that much: the only wait of a layer."""
        if number <= self._heard:
            return
        flag, awaited, spins = self._flag, self._told & 0xFFFFFFFF, 0
        while flag[0] != awaited:
            spins += 1
            if spins % 100_000 == 0:
                self._stream.synchronize()  # a lost device raises here instead of never answering
        self._heard = self._told
