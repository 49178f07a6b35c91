"""How a capture is read: how far its reader has come, which a progress bar shows, and how large it may become."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import IO

from .errors import BadTrace

EVERY = 1 << 20  # bytes
MAX_SIZE = 16 << 30  # bytes of a decoded file, unless the caller says otherwise
_max_size: ContextVar[int] = ContextVar("max_size", default=MAX_SIZE)
_advance: ContextVar[Callable[[int], None] | None] = ContextVar("advance", default=None)


@contextmanager
def telling(advance: Callable[[int], None] | None, max_size: int) -> Iterator[None]:
    """Within, `advance(n)` is called after every n bytes of text that are read, and `hold_size` holds to `max_size`."""
    tokens = _advance.set(advance), _max_size.set(max_size)
    try:
        yield
    finally:
        _advance.reset(tokens[0])
        _max_size.reset(tokens[1])


def hold_size(where: str, n_bytes: int) -> None:
    """BadTrace if what is declared to have so many bytes when decoded is larger than allowed."""
    if n_bytes > _max_size.get():
        raise BadTrace(
            f"{where}: declares {n_bytes} bytes when decoded, above the {_max_size.get()} allowed; if you trust it, "
            "`slotwise trace import --max-size GIB` raises it"
        )


def lines(file: IO[bytes], longest: int) -> Iterator[bytes]:
    """The lines of the file with their ends, after a byte order mark; longer ones in pieces of `longest` bytes."""
    if not file.tell() and file.read(len(BOM_UTF8)) != BOM_UTF8:
        file.seek(0)
    advance, read = _advance.get(), 0
    while line := file.readline(longest):
        yield line
        read += len(line)
        if advance and read >= EVERY:
            advance(read)
            read = 0
