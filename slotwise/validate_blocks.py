"""Finished blocks of a validation, kept in a file from which it goes on, and what else the machine did meanwhile."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slotwise.replay.errors import BadOption
from slotwise.traces.files import beside


class Blocks:
    """Finished blocks, in a file beside the result where there is to be one, for the same question alone."""

    def __init__(self, out: str | Path | None, question: str):
        self._path = None if out is None else Path(f"{out}.part")
        self._question = question
        self.blocks: list[dict[str, Any]] = []
        if self._path is None or not self._path.exists():
            return
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
        except ValueError as wrong:
            raise BadOption(f"{self._path}: is not what a validation leaves ({wrong}); remove it") from wrong
        if not isinstance(found, dict) or found.get("question") != question:
            raise BadOption(f"{self._path}: holds blocks of another validation; remove it, or name another result")
        self.blocks = found["blocks"]

    def add(self, block: dict[str, Any]) -> None:
        self.blocks.append(block)
        if self._path is not None:
            with beside(self._path) as temporary:
                temporary.write_text(json.dumps({"question": self._question, "blocks": self.blocks}), encoding="utf-8")

    def forget(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def load_now() -> tuple[float, int]:
    """Seconds that other guests of the host took from this machine's processors, and involuntary switches."""
    stat = Path("/proc/stat")
    words = stat.read_text(encoding="ascii").split("\n", 1)[0].split() if stat.exists() else []
    stolen = int(words[8]) / os.sysconf("SC_CLK_TCK") if len(words) > 8 else 0.0
    return stolen, resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def load_since(before: tuple[float, int], told: Sequence[dict[str, float]]) -> dict[str, Any]:
    """What became of it, memory, and of what a device told after each run the least and the most; None if nothing."""
    stolen, switches = load_now()
    names = dict.fromkeys(name for each in told for name in each)
    values = {name: [each[name] for each in told if name in each] for name in names}
    return {
        "steal_s": round(stolen - before[0], 3), "involuntary_switches": switches - before[1],
        "rss_bytes": _rss_bytes(), "most_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "device": {name: [min(each), max(each)] for name, each in values.items()} or None,
    }  # fmt: skip


def _rss_bytes() -> int | None:
    """Memory of this process that is there now; None where the system does not say."""
    pages = Path("/proc/self/statm")
    return int(pages.read_text(encoding="ascii").split()[1]) * resource.getpagesize() if pages.exists() else None
