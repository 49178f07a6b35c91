"""Finished blocks of a validation, kept in a file from which it goes on, and what else the machine did meanwhile."""

from __future__ import annotations

import json
import math
import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from slotwise.replay.errors import BadOption
from slotwise.replay.lock import held
from slotwise.traces.files import beside

LOAD = ("steal_s", "involuntary_switches", "most_rss_bytes")  # of a block's load, numbers that are always there


@contextmanager
def blocks_of(out: str | Path | None, question: str, runs: Sequence[int]) -> Iterator[Blocks]:
    """The finished blocks of a validation; while they are open, no other one works on the same result.

    runs: of each configuration in a block. Raises BadOption.
    """
    lock = nullcontext() if out is None else held(
        Path(f"{out}.lock"), f"another validation is working on {out}; wait for it, or name another result"
    )  # fmt: skip
    with lock:
        yield Blocks(out, question, runs)


class Blocks:
    """Finished blocks, in a file beside the result where there is to be one, for the same question alone."""

    def __init__(self, out: str | Path | None, question: str, runs: Sequence[int]):
        self._out = None if out is None else Path(out)
        self._path = None if out is None else Path(f"{out}.part")
        self._question = question
        self.blocks: list[dict[str, Any]] = []
        self._check_new()
        if self._path is None or not self._path.exists():
            return
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as wrong:
            raise BadOption(f"{self._path}: is not what a validation leaves ({wrong}); remove it") from wrong
        if not isinstance(found, dict) or found.get("question") != question:
            raise BadOption(f"{self._path}: holds blocks of another validation; remove it, or name another result")
        blocks = found.get("blocks")
        if not isinstance(blocks, list):
            raise BadOption(f"{self._path}: its blocks are no list; remove it")
        for number, block in enumerate(blocks, 1):
            if wrong := _wrong(block, runs):
                raise BadOption(f"{self._path}: block {number} {wrong}; remove the file, and all blocks run again")
        self.blocks = blocks

    def add(self, block: dict[str, Any]) -> None:
        self.blocks.append(block)
        if self._path is not None:
            with beside(self._path) as temporary:
                temporary.write_text(json.dumps({"question": self._question, "blocks": self.blocks}), encoding="utf-8")

    def finish(self, result: dict[str, Any]) -> None:
        """Writes the result, and the blocks beside it go."""
        if self._out is None or self._path is None:
            return
        self._check_new()
        with beside(self._out) as temporary:
            temporary.write_text(json.dumps(result, allow_nan=False, indent=1) + "\n", encoding="utf-8")
        self._path.unlink(missing_ok=True)

    def _check_new(self) -> None:
        if self._out is not None and self._out.exists():
            raise BadOption(f"{self._out} exists: a validation replaces none; name another")


def _wrong(block: Any, runs: Sequence[int]) -> str | None:
    """What is wrong with a block that was read; None if nothing is."""
    if not isinstance(block, dict) or not isinstance(block.get("load"), dict):
        return "is no object with a load"
    found = block.get("tokens_per_s")
    shape = [len(each) if isinstance(each, list) else 0 for each in found] if isinstance(found, list) else []
    if not isinstance(found, list) or shape != list(runs):
        return f"has no tokens_per_s of {sum(runs)} runs of {len(runs)} configurations"
    if wrong := [value for each in found for value in each if not _number(value) or value <= 0]:
        return f"has tokens_per_s of {str(wrong[0])[:40]}"
    load = block["load"]
    if wrong := [name for name in LOAD if not _number(load.get(name))]:
        return f"has a load whose {wrong[0]} is {str(load.get(wrong[0]))[:40]}"
    device = load.get("device") or {}
    if not isinstance(device, dict) or not all(
        isinstance(ends, list) and len(ends) == 2 and all(map(_number, ends)) for ends in device.values()
    ):
        return "has a load whose device is no table of the least and the most"
    return None


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


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
