"""A run as a picture: its ticks in the Chrome trace format, for Perfetto (https://ui.perfetto.dev)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from slotwise.traces.files import beside

from .timing import TickTimes

_ROWS = {"tick": 1, "hot chain": 2, "cold chain": 3}


def write_timeline(ticks: Iterable[TickTimes], path: str | Path) -> None:
    """Writes one complete event per tick and chain, microseconds from the first tick on. The file appears whole."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "tid": row, "name": "thread_name", "args": {"name": name}} for name, row in _ROWS.items()
    ]
    start = None
    for tick in ticks:
        start = tick.began if start is None else start
        about = {"step": tick.step, "layer": tick.layer, "hits": tick.hits, "misses": tick.misses, "loads": tick.loads}
        spans = {"tick": (tick.began, tick.began + tick.total_s), "hot chain": tick.hot, "cold chain": tick.cold}
        for name, span in spans.items():
            if span:
                events.append(
                    {
                        "ph": "X", "pid": 1, "tid": _ROWS[name], "name": f"{name} {tick.layer}", "args": about,
                        "ts": round(1e6 * (span[0] - start), 3), "dur": round(1e6 * (span[1] - span[0]), 3),
                    }
                )  # fmt: skip
    with beside(Path(path)) as temporary:
        temporary.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
