"""Keeps the process small: what a block of a trace took goes back to the system before the next block is read."""

import ctypes
import os

# glibc's numbers for mallopt. One arena, else every thread that decodes keeps one of its own; arrays of a block are
# mapped and unmapped, while buffers of a column (below the threshold: 2.5 times slower if mapped) are used again.
_ARENA_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -8, -3, -1
_SETTINGS = {_ARENA_MAX: 1, _MMAP_THRESHOLD: 4 << 20, _TRIM_THRESHOLD: 1 << 20}


def give_back_early() -> None:
    """For a process of our own, before Arrow is loaded; a library must not decide this for its host.

    Without it `slotwise replay` takes up to twice as much above an empty replay (`benchmarks/memory.py`). Where the C
    library is not glibc only Arrow's part is set. Variables that the user has set win.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt and not any(name.startswith("MALLOC_") for name in os.environ):
        for setting, value in _SETTINGS.items():
            mallopt(setting, value)
