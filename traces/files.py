"""Which files may be read and replaced; what is written is written beside and renamed, so that none is half there."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import BadTrace


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A temporary name in the folder of `path`: renamed to `path` at the end, removed if the body fails."""
    check_target(path)
    path = path.resolve()  # a link stays one: what it leads to is replaced
    temporary = path.with_name(f".{path.name[:32]}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def check_target(path: Path) -> None:
    """Raises BadTrace, or OSError for a folder that is missing or takes no file, unless `path` is or may become a file.

    A rename would put a file in the place of a device or a pipe, too, and as root nothing would stop it.
    """
    kind = kind_of(path)
    if not path.name or kind not in ("", "file"):
        raise BadTrace(f"cannot write to {str(path)!r}: it is {kind}; name a file")
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such folder", str(path.parent))
    try:
        tempfile.TemporaryFile(dir=path.resolve().parent).close()
    except OSError as error:
        words = f"no file can be written there ({error.strerror}); name another folder"
        raise OSError(error.errno, words, str(path)) from None


def check_source(path: Path) -> None:
    """Raises BadTrace if reading `path` could wait or go on for ever."""
    if (kind := kind_of(path)) not in ("", "file", "a folder"):  # of these two `open` has a better word
        raise BadTrace(f"{path}: is {kind}, and a trace is read more than once; copy it to a file first")


def kind_of(path: Path) -> str:
    """What a name stands for: "file", "a folder", ..., or "" if nothing is there. BadTrace if nothing can be."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return ""
    except ValueError as error:
        raise BadTrace(f"{str(path)!r} cannot be the name of a file: {error}") from None
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")
