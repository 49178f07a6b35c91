"""What goes wrong with a trace: one error class, one warning class, and how a warning finds who should read it."""

from __future__ import annotations

import sys
import warnings


class BadTrace(ValueError):
    """A trace breaks a rule. The message is one line: file, row, layer, value, rule, and the way out."""


class CaptureFailed(RuntimeError):
    """A capture is not what it should be. The message is one line."""


class TraceWarning(UserWarning):
    """A trace is readable, but looks like a capture that is known to be broken."""


def warn_caller(text: str, category: type[Warning]) -> None:
    """Warns at the line outside the package that called into it, however deep the call was."""
    level, frame = 1, sys._getframe()  # Python 3.12 has skip_file_prefixes for this
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] == "slotwise":
        level, frame = level + 1, frame.f_back
    if frame and frame.f_globals.get("__name__") in ("concurrent.futures.thread", "threading"):  # a thread of ours
        warnings.warn_explicit(text, category, "slotwise", 0)
        return
    warnings.warn(text, category, stacklevel=level)
