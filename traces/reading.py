"""The lines of a capture, and how far its reader has come: what the progress bar of an import shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import IO

EVERY = 1 << 20  # bytes
_advance: ContextVar[Callable[[int], None] | None] = ContextVar("advance", default=None)


@contextmanager
def telling(advance: Callable[[int], None] | None) -> Iterator[None]:
    """Within, `advance(n)` is called after every n bytes of text that a reader has read."""
    token = _advance.set(advance)
    try:
        yield
    finally:
        _advance.reset(token)


def lines(file: IO[bytes], longest: int) -> Iterator[bytes]:
    """The lines of the file with their ends; longer ones come in pieces of `longest` bytes."""
    advance, read = _advance.get(), 0
    while line := file.readline(longest):
        yield line
        read += len(line)
        if advance and read >= EVERY:
            advance(read)
            read = 0
