"""Where compiled code is kept: settled before any folder compiles, since numba refuses what it cannot keep."""

import os
import sys
import warnings
from pathlib import Path


class CacheWarning(UserWarning):
    """Nothing that is compiled can be kept."""


def settle() -> None:
    """Gives this process and its children a folder for compiled code where the usual ones cannot be written.

    Those are SLOTWISE_CACHE_DIR or the user's cache folder for the generated kernels, and for all other functions
    numba's: beside the sources, else the user's cache folder. Both may be read-only, as in a container.
    """
    users = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - may be no home
    chosen = os.environ.get("SLOTWISE_CACHE_DIR")
    if not _writable(chosen or users):
        chosen = _temporary(chosen or users)
    if chosen and not _writable(os.environ.get("NUMBA_CACHE_DIR") or users):
        os.environ["NUMBA_CACHE_DIR"] = str(Path(chosen) / "numba")
        if "numba" in sys.modules:  # it has read its environment already
            sys.modules["numba"].config.CACHE_DIR = os.environ["NUMBA_CACHE_DIR"]


def _temporary(instead_of: str) -> str:
    """A folder that is removed at the end."""
    import atexit
    import shutil
    import tempfile

    folder = os.environ["SLOTWISE_CACHE_DIR"] = tempfile.mkdtemp(prefix="slotwise-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    text = f"{instead_of} cannot be written, so each run compiles anew; set SLOTWISE_CACHE_DIR to a writable folder"
    warnings.warn_explicit(text, CacheWarning, "slotwise", 0)
    return folder


def _writable(folder: str) -> bool:
    """Whether files can be made in the folder, which may have to be made itself."""
    path = Path(folder)
    there = next((each for each in (path, *path.parents) if os.path.lexists(each)), path)
    return path.is_absolute() and there.is_dir() and os.access(there, os.W_OK | os.X_OK)
