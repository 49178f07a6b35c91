"""A file that one process at a time may hold, and that goes when nothing was written to it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from .errors import BadOption


@contextmanager
def held(path: Path, refusal: str) -> Iterator[BinaryIO]:
    """The file, opened to read and append, and locked; BadOption with `refusal` if somebody else holds it."""
    with _locked(path, refusal) as file:
        try:
            yield file
        finally:
            if _is_at(path, file) and path.stat().st_size == 0:
                path.unlink()


def _locked(path: Path, refusal: str) -> BinaryIO:
    """The very file of that name, not one that another holder removed between our open and our lock."""
    while True:
        file = path.open("a+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, file):
                return file
        except BlockingIOError:
            file.close()
            raise BadOption(refusal) from None
        file.close()


def _is_at(path: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
