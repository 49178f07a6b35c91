"""The walk of a price for Python: compiled once, and anew after an edit of any file that it is compiled from."""

from __future__ import annotations

import zlib
from pathlib import Path

from numba import njit

from .price_walk import walk_steps


def _made(sources):
    """`walk_steps` for Python. numba keeps what it compiled by the file and the closure of the outermost function, so
    the sources of all that is compiled into it are part of the closure: an edit of any of them is never answered
    with older code."""

    @njit(nogil=True, cache=True)
    def priced(*arguments):
        if sources:
            walk_steps(*arguments)

    return priced


_FILES = ("price_walk.py", "price_queue.py", "price_link.py", "price_tables.py")
walk = _made(1 + zlib.crc32(b"".join(Path(__file__).with_name(name).read_bytes() for name in _FILES)))
