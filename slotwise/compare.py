"""From traces to a report in one call: sweep a grid with sensible defaults, then write what it shows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

RESULTS, QUESTION = "R.parquet", "compare.json"
POLICIES = (
    "lru",  # what most engines ship, so what the others are held against
    "lru+gate",  # the same, loading a miss only when it recurs: nearly its hits for far fewer loads
    "lfu",  # counts for ever: shows what ageing is worth
    "lfu(half_life=16)",
    "lfru",
    "lfru(half_life=16)",
    "lfru+guard",  # the guard vets look-ahead, so these two differ from the plain ones at widths above 0 only
    "lfru(half_life=16)+guard",
    "opt",  # the bound; fifo and random are left out, for nobody would run them where a touch can be seen
)
SLOTS = ("6.25%", "12.5%", "18.75%", "25%", "37.5%", "50%", "75%", "100%")
WIDTH = 4  # half of a top-8: where captured predictions are still mostly right


def compare(
    traces: Sequence[Any],
    out_dir: Path | str,
    *,
    policies: Iterable[str] | None = None,
    slots: Iterable[str | int] | None = None,
    widths: Iterable[int] | None = None,
    force: bool = False,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> list[Path]:
    """Replays every policy on every trace at every size and width, and writes a report on it into `out_dir`.

    The result rows stay there as R.parquet. Interrupted, the same call goes on where it stopped; another question
    starts anew.

    Args:
        traces: Trace objects, files, or "sample".
        policies: spellings; default POLICIES. `opt` is run at width 0 only, a guarded policy whose plain form is
            there too at widths above 0 only.
        slots: counts or shares of the experts; default SLOTS.
        widths: default 0, and 4 for traces with predictions.
        force: add the report to a folder that holds other files.
        progress: is told what is being done.
        options: passed to `slotwise.sweep`: contract, scope, predictor, row_bytes, ...

    Returns:
        The files of the report, the page first.
    """
    return []
