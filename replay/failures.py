"""Copies that failed in a real run, so that a replay can make the very same plans."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .errors import BadOption

PHASES, KINDS = ("demand", "ahead"), ("refused", "doubtful")
_RULE = (
    'a failure is {"step": 3, "layer": 1, "phase": "demand" or "ahead", "load": 0, "kind": "refused" or "doubtful"}: '
    "from that load of the phase on, copies were refused, or may have been made half-way"
)


class Failure(NamedTuple):
    """What happened to the copies of one phase of a tick, from the load `load` (0 is its first) on.

    `layer` is the layer whose pool loads: for look-ahead the one predicted for.
    """

    step: int
    layer: int
    phase: str
    load: int
    kind: str


def read_failures(path: str | Path) -> tuple[Failure, ...]:
    """Failures from a JSON file: a list of them, or what `slotwise run --json` printed. Raises BadOption."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise BadOption(f"{path}: not JSON ({error})") from None
    if isinstance(found, dict):
        runs = found.get("runs")
        if not isinstance(runs, list) or len(runs) != 1 or not isinstance(runs[0], dict):
            raise BadOption(f"{path}: give the JSON of one run, or a list of failures")
        found = runs[0].get("failures")
    if not isinstance(found, list):
        raise BadOption(f"{path}: no list of failures; {_RULE}")
    return tuple(_failure(item, f"{path}, failure {i}") for i, item in enumerate(found))


def _failure(item: Any, where: str) -> Failure:
    if not isinstance(item, dict) or set(item) != set(Failure._fields):
        raise BadOption(f"{where}: {item!r}; {_RULE}")
    numbers = [item[name] for name in ("step", "layer", "load")]
    whole = all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**40 for n in numbers)
    if not whole or item["phase"] not in PHASES or item["kind"] not in KINDS:
        raise BadOption(f"{where}: {item!r}; {_RULE}")
    return Failure(**item)


def by_pool(failures: Iterable[Failure], n_pools: int, n_layers: int, horizon: int) -> Sequence[np.ndarray]:
    """Per pool int64 [n, 5], as the kernel takes them, in the order in which the pool's phases come."""
    wide = n_pools == 1
    parts: list[list[tuple]] = [[] for _ in range(n_pools)]
    seen = set()
    for failure in failures:
        step, layer, phase, load, kind = failure
        ahead = phase == "ahead"
        if layer >= n_layers or (ahead and layer < horizon):
            raise BadOption(f"{failure}: no such phase with {n_layers} layers and horizon {horizon}")
        if failure[:3] in seen:
            raise BadOption(f"{failure}: two failures of one phase; give the first")
        seen.add(failure[:3])
        order = (step, layer - horizon if ahead else layer, ahead) if wide else (step, not ahead)
        parts[0 if wide else layer].append((order, (step, layer, ahead, load, kind == "doubtful")))
    return [np.array([row for _, row in sorted(part)], np.int64).reshape(-1, 5) for part in parts]
