"""A run as a picture: its ticks in the Chrome trace format, for Perfetto (https://ui.perfetto.dev)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from slotwise.traces.files import beside

from .timing import TickTimes

_ROWS = {"tick": 1, "policy": 2, "late wait": 3, "merge": 4, "hot chain": 5, "cold chain": 6, "copies": 7}


def write_timeline(ticks: Iterable[TickTimes], path: str | Path) -> None:
    """Writes one complete event per tick, chain, batch of copies and part of the host's time. The file appears whole.

    Microseconds from the first tick on.
    """
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "tid": row, "name": "thread_name", "args": {"name": name}} for name, row in _ROWS.items()
    ]
    start = None
    for tick in ticks:
        start = tick.began if start is None else start
        about = {"step": tick.step, "layer": tick.layer, "hits": tick.hits, "misses": tick.misses, "loads": tick.loads}
        ended, planned = tick.began + tick.total_s, tick.began + tick.policy_s
        spans = [
            ("tick", (tick.began, ended)), ("policy", (tick.began, planned)), ("merge", (ended - tick.merge_s, ended)),
            *(("late wait", span) for span in tick.late),
            *(("hot chain", span) for span in tick.hot), *(("cold chain", span) for span in tick.cold),
        ]  # fmt: skip
        events += [_event(name, f"{name} {tick.layer}", span, start, about) for name, span in spans]
        events += [_event("copies", "copies", (a, b), start, {"bytes": n_bytes}) for a, b, n_bytes in tick.copies]
    with beside(Path(path)) as temporary:
        temporary.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))


def _event(row: str, name: str, span: tuple[float, float], start: float, about: dict[str, Any]) -> dict[str, Any]:
    began, took = round(1e6 * (span[0] - start), 3), round(1e6 * (span[1] - span[0]), 3)
    return {"ph": "X", "pid": 1, "tid": _ROWS[row], "name": name, "args": about, "ts": began, "dur": took}
