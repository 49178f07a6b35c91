"""open_trace: a path in, a Trace out, whatever the format; and the list of the formats."""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from codecs import BOM_UTF8
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import BadTrace, TraceWarning, warn_caller
from .files import check_source
from .reading import MAX_SIZE, telling
from .trace import Trace

SAMPLE = Path(__file__).with_name("sample.parquet")


def open_trace(
    path: str | Path | Sequence[str | Path],
    format: str | None = None,  # noqa: A002 - the word of the command line
    *,
    advance: Callable[[int], None] | None = None,
    max_size: int = MAX_SIZE,
    **hints: Any,
) -> Trace:
    """Open a trace file, or the shipped trace `"sample"`. The format is sniffed from the content unless named.

    Several paths are one capture kept in several files (a file per layer, or per request). Foreign files are read as a
    whole and may warn (`TraceWarning`); what engines write line by line takes little memory, since many rows go to a
    temporary file. `advance(n)` is called after every n bytes of text, for a progress bar. A file that
    declares more than `max_size` bytes when decoded is refused before it is. `hints` tell what a file does not say:
    `n_experts`, `top_k`, `row_bytes`, `model`.
    Raises BadTrace with one line, or the operating system's FileNotFoundError and PermissionError.
    """
    paths = [Path(p) for p in ([path] if isinstance(path, str | Path) else path)]
    if not paths:
        raise BadTrace("no trace file given")
    unknown = set(hints) - {"n_experts", "top_k", "row_bytes", "model"}
    if unknown:
        raise TypeError(f"open_trace: unknown hints {sorted(unknown)}")
    hints = {name: value for name, value in hints.items() if value is not None}
    if len(paths) == 1 and str(paths[0]) == "sample" and format is None:
        paths = [SAMPLE]
    for each in paths:
        check_source(each)
    head = _head(paths[0])
    name = format or _sniff(paths[0], head)
    if name == "slotwise":
        from .parquet import read

        if len(paths) > 1:
            raise BadTrace(f"{paths[1]}: one slotwise trace at a time; {paths[0]} is one already")
        if hints:
            raise BadTrace(f"{paths[0]}: a slotwise trace says {', '.join(hints)} itself; leave the option out")
        with telling(advance, max_size):
            return read(paths[0])
    modules = _modules()
    if name not in modules:
        near = difflib.get_close_matches(name, modules, 1)
        raise BadTrace(
            f"no trace format named {name!r}; known: {', '.join(['slotwise', *modules])}."
            + (f" Did you mean {near[0]!r}?" if near else "")
        )
    with telling(advance, max_size):
        trace = modules[name].read(paths, **hints)
    from .suspects import suspects

    for text in suspects(trace):
        warn_caller(f"{paths[0]}: {text}", TraceWarning)
    return trace


def list_formats() -> list[dict[str, str]]:
    """The formats that can be read, one row each: name, description, source, what our exports of it lose ("" where we
    write none), and the layout in detail."""
    from . import parquet
    from .exporting import list_exports

    exports: dict[str, list[str]] = {}
    for row in list_exports():
        exports.setdefault(row["imported_by"], []).append(f"{row['name']}: {row['loses']}")
    modules = {"slotwise": parquet, **_modules()}
    return [
        {
            "name": name,
            "description": m.description,
            "source": m.source,
            "export_loses": " | ".join(exports.get(name, [])),
            "layout": inspect.cleandoc(m.__doc__ or ""),
        }
        for name, m in modules.items()
    ]


def _modules() -> dict[str, ModuleType]:
    """Every `format_*.py` of this folder by its name, in alphabetical order."""
    found = sorted(m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if m.name.startswith("format_"))
    modules = [importlib.import_module(f"{__package__}.{name}") for name in found]
    return {module.name: module for module in modules}


def _head(path: Path) -> bytes:
    if not path.exists() and str(path) != "sample" and difflib.get_close_matches(str(path), ["sample"], 1, 0.7):
        raise FileNotFoundError(f"no trace file {str(path)!r}. Did you mean 'sample', the trace that is shipped?")
    with path.open("rb") as file:
        head = file.read(4096).removeprefix(BOM_UTF8)
    if not head:
        raise BadTrace(f"{path}: empty file; a trace needs at least one row")
    return head


def _sniff(path: Path, head: bytes) -> str:
    if head.startswith(b"PAR1"):  # ours, most of the time: then no other format is imported
        from . import format_policylang, format_tidy

        return next((m.name for m in (format_policylang, format_tidy) if m.sniff(path, head)), "slotwise")
    for name, module in _modules().items():
        if module.sniff(path, head):
            return name
    raise BadTrace(
        f"{path}: in no known trace format ({', '.join(['slotwise', *_modules()])}); is it a trace at all? "
        "`slotwise trace import --format NAME` names one"
    )
