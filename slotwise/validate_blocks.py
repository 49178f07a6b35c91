"""Finished blocks of a validation, kept in a file from which it goes on, and what else the machine did meanwhile."""

from __future__ import annotations

import json
import os
import resource
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


def load_since(before: tuple[float, int]) -> dict[str, float]:
    stolen, switches = load_now()
    return {
        "steal_s": round(stolen - before[0], 3), "involuntary_switches": switches - before[1],
        "most_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }  # fmt: skip
