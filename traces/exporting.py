"""Traces in the formats of others. One file each (`export_*.py`), found by scan; what a format cannot hold is said."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from .errors import BadTrace
from .files import beside
from .importing import request_columns
from .tidy import parts
from .trace import Trace, step_changes

if TYPE_CHECKING:
    import polars


def export(
    trace: Trace,
    path: str | Path,
    format: str | None = None,  # noqa: A002 - the word of the command line
    *,
    advance: Callable[[int], None] | None = None,
) -> str:
    """Write `trace` in a foreign format, by default the one that the suffix of `path` stands for (`list_exports`).

    Streamed, written beside and renamed. `advance(n)` is called after every n rows. Returns the format's name. Raises
    BadTrace where the format cannot hold what a replay would need, such as steps of several tokens.
    """
    path, known = Path(path), _modules()
    if format is None:
        by_suffix = {module.suffix: name for name, module in known.items()}
        format = by_suffix.get(path.suffix)  # noqa: A001
        if format is None:
            raise BadTrace(
                f"{path}: its suffix names no format; known: {', '.join(by_suffix)}; or give the format's name"
            )
    if format not in known:
        near = difflib.get_close_matches(format, known, 1)
        raise BadTrace(
            f"no format named {format!r} to export to; known: {', '.join(known)}."
            + (f" Did you mean {near[0]!r}?" if near else "")
        )
    with beside(path) as temporary:
        known[format].write(trace, temporary, advance or (lambda rows: None))
    return format


def list_exports() -> list[dict[str, str]]:
    """The formats that can be written, one row each: name, suffix, description, what a trace loses in it, and the
    format that reads it back ("" for none)."""
    return [
        {
            "name": name,
            "suffix": m.suffix,
            "description": m.description,
            "loses": m.loses,
            "imported_by": m.imported_by,
        }
        for name, m in _modules().items()
    ]


def one_after_the_other(trace: Trace, format: str, *, counted: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # noqa: A002
    """(rows, prefill rows, first position) of the requests, `[R]` each, for formats that hold no steps of their own.

    Such a format is read as requests one after the other, each of at most one step of prefill and then a step a token;
    BadTrace if the trace is anything else. `counted`: positions, too, must be counted from the first.
    """
    rows = trace.rows("request", "step", "position", "phase")
    begins = np.append(0, step_changes(rows["request"]))
    lengths = np.diff(np.append(begins, trace.n_tokens))
    prefill = np.add.reduceat((rows["phase"] == 0).astype(np.int64), begins)
    first = rows["position"][begins].astype(np.int64)
    steps = np.zeros(trace.n_tokens, np.int64)
    steps[step_changes(rows["step"])] = 1
    found = {"step": np.cumsum(steps), "phase": rows["phase"], "position": rows["position"]}
    expected = request_columns(lengths, prefill, first)
    wrong = np.zeros(trace.n_tokens, bool)
    for name in found if counted else ("step", "phase"):
        wrong |= found[name] != expected[name]
    again = len(begins) > trace.n_requests
    if wrong.any() or again:
        what = f"row {np.argmax(wrong)} is not so" if wrong.any() else "a request goes on after another"
        raise BadTrace(
            f"{trace.name}: {format} holds requests one after the other, each a step of prefill and then a step a token"
            f"{', positions counted' * counted}; {what}. Export it as tidy, which holds any steps"
        )
    return lengths, prefill, first


def tidy_parts(trace: Trace, format: str) -> Iterator[tuple[polars.DataFrame, int]]:  # noqa: A002
    """`tidy.parts`; BadTrace if a token has no line, since nothing would be left of it."""
    first = 0
    for frame, rows in parts(trace):
        there = frame["token"].unique().to_numpy()
        if len(there) < rows:
            row = int(np.setdiff1d(np.arange(first, first + rows), there)[0])
            raise BadTrace(f"{trace.name}: row {row} is absent at every layer, and {format} has lines of experts only")
        first += rows
        yield frame, rows


def _modules() -> dict[str, ModuleType]:
    """Every `export_*.py` of this folder by its name, in alphabetical order."""
    found = sorted(m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if m.name.startswith("export_"))
    modules = [importlib.import_module(f"{__package__}.{name}") for name in found]
    return {module.name: module for module in modules}
