"""Words from device to host without a copy engine: a kernel writes page-locked memory, then a flag that we poll."""

from __future__ import annotations

from typing import Any

import numpy as np

from .cupy_small import LAST_FLAG, TELLS, SmallKernels, page_locked
from .errors import BadExecutor

_FLAG_BYTES = 4096  # a page before the words
_MOST = 1 << 20
_VIEWS = 256  # shapes whose views of the words are kept
_NOTHING = (0, 0, 0)
Stretch = tuple[int, int, int]  # address of 32-bit words on the device, in page-locked memory, and how many


class Words:
    """What one stream tells the host, in tellings that are numbered. Hearing one is hearing all before it."""

    def __init__(self, small: SmallKernels, stream: Any):
        self._small, self._stream, self._handle = small, stream, int(stream.ptr)
        memory = page_locked(_FLAG_BYTES + _MOST)
        self._flags, self._room = memory[:_FLAG_BYTES].view(np.uint32), memory[_FLAG_BYTES:]
        self._flag_at, self._room_at = self._flags.ctypes.data, self._room.ctypes.data
        self._views: dict[Any, np.ndarray] = {}
        self._told = self._heard = self._heard_last = 0
        self._last: Stretch = _NOTHING

    def bring(self, words: int, to: int, count: int) -> int:
        """Has the next telling bring these too, after all else. Returns its number, for `hear_last`."""
        self._last = (words, to, count)
        return self._told + 1

    def tell(self, *stretches: Stretch) -> int:
        """Queues a telling of at most two stretches, and of what `bring` named. Returns its number."""
        asked = (*stretches, *(_NOTHING,) * (TELLS - 1 - len(stretches)), self._last)
        self._told += 1
        words, to, counts = zip(*asked, strict=True)
        self._small.tell(self._handle, words, to, counts, self._flag_at, self._told & 0xFFFFFFFF)
        self._last = _NOTHING
        return self._told

    def arrays(self, *values: Any) -> list[np.ndarray]:
        """At most two device arrays of whole words on the host, until the next call, with one wait for both."""
        found, asked, at = [], [], 0
        for value in values:
            n_words = -(-value.nbytes // 4)
            if at + 4 * n_words > _MOST:
                raise BadExecutor(f"{value.nbytes} bytes of ids of one step: at most {_MOST}")
            found.append(self._view(at, value))
            asked.append((value.data.ptr, self._room_at + at, n_words))
            at += 64 * -(-n_words // 16)
        self.hear(self.tell(*asked))
        return found

    def _view(self, at: int, value: Any) -> np.ndarray:
        key = at, value.shape, value.dtype
        if key not in self._views:
            if len(self._views) >= _VIEWS:
                self._views.clear()
            self._views[key] = self._room[at : at + value.nbytes].view(value.dtype).reshape(value.shape)
        return self._views[key]

    def hear(self, number: int) -> None:
        """Waits until the device has told that much, but perhaps what was to come last: the only wait of a layer."""
        if number > self._heard:
            self._poll(0)
            self._heard = self._told

    def hear_last(self, number: int) -> None:
        """Waits until the device has told all of that much."""
        if number > self._told:
            self.tell()
        if number > self._heard_last:
            self._poll(LAST_FLAG)
            self._heard_last = self._told

    def _poll(self, at: int) -> None:
        flags, awaited, spins = self._flags, self._told & 0xFFFFFFFF, 0
        while flags[at] != awaited:
            spins += 1
            if spins % 100_000 == 0:
                self._stream.synchronize()  # a lost device raises here instead of never answering
