"""A grid of replays on all cores, into one Parquet file that can be added to: nothing finished is ever lost."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from typing import Any

from slotwise.policies import Refused, parse_policy
from slotwise.traces import Trace, open_trace

from .errors import BadOption
from .options import Options
from .rows import option_key, read_rows, write_rows
from .run import run
from .sizes import parse_slot_list

Progress = Callable[[int, int, str], None]


def sweep(
    traces: Iterable[Trace | str | Path],
    policies: Iterable[str],
    slots: Iterable[str | int] | str | int | None = None,
    widths: Iterable[int] = (0,),
    *,
    out: str | Path,
    vram: Iterable[str | int] | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    skipped: Callable[[str], None] | None = None,
    **options: Any,
) -> Path:
    """Replays every trace x policy x size x width, and writes one row each to the Parquet file `out`; returns its path.

    slots: counts, fractions, lists and ranges ("8,16", "8:128:8", "25%"); vram: byte budgets. `options` are the other
    fields of `Options`. Rows that `out` holds already are kept and not replayed again. A combination that a policy
    refuses (the bound with look-ahead, look-ahead without slots) is left out and its reason given to `skipped`. Each
    finished row is at once on disk in `out` + ".part", so a killed sweep goes on where it stopped.
    """
    path = Path(out)
    opened = [t if isinstance(t, Trace) else open_trace(t) for t in traces]
    sizes = _sizes(slots, vram)
    grid = [
        (trace, Options(policy=str(parse_policy(policy)), width=width, **size, **options).spelt())
        for trace, policy, size, width in product(opened, policies, sizes, widths)
    ]
    if not grid:
        raise BadOption("nothing to do: give at least one trace, policy, size and width")
    if not path.parent.is_dir():
        raise BadOption(f"{path}: there is no folder {str(path.parent)!r} to write to")
    part = path.with_name(path.name + ".part")
    rows = {option_key(row): row for row in [*read_rows(path), *_read_part(part)]}
    todo: dict[str, tuple[Trace, Options]] = {}
    reasons = []
    for trace, choice in grid:
        try:
            key = _key(trace, choice)
        except Refused as error:
            reasons.append(str(error))
            continue
        if key not in rows:
            todo.setdefault(key, (trace, choice))
    for reason in dict.fromkeys(reasons):
        if skipped:
            skipped(reason)
    if len(reasons) == len(grid):
        raise BadOption(f"every configuration was refused: {reasons[0]}")
    if todo:
        _run_all(todo, rows, part, workers or os.cpu_count() or 1, progress)
    write_rows(list(rows.values()), path)
    part.unlink(missing_ok=True)
    return path


def _run_all(todo, rows, part: Path, workers: int, progress: Progress | None) -> None:
    """Runs what is left; every finished row reaches the disk before the next is counted."""
    lock = threading.Lock()
    done = 0
    with part.open("a", encoding="utf-8") as journal, ThreadPoolExecutor(workers) as pool:
        futures = {pool.submit(_one, trace, choice): key for key, (trace, choice) in todo.items()}
        try:
            for future in as_completed(futures):
                row = future.result()
                with lock:
                    rows[futures[future]] = row
                    journal.write(json.dumps(row) + "\n")
                    journal.flush()
                    os.fsync(journal.fileno())
                    done += 1
                if progress:
                    progress(done, len(todo), f"{row['policy']} {row['slots_asked']} width {row['width']}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _one(trace: Trace, choice: Options) -> dict[str, Any]:
    return run(trace, choice, threads=1).to_row()


def _key(trace: Trace, choice: Options) -> str:
    """What the row of this configuration will be found by; raises Refused where the policy does not allow it."""
    size = choice.size(trace)
    choice.check(trace, size)
    total = trace.n_steps if choice.steps is None else min(trace.n_steps, choice.steps)
    return option_key(
        {**choice.recorded(size), "trace": trace.name, "trace_sha256": trace.sha256},
        window=choice.window or max(1, -(-total // 100)),
        pollution=choice.pollution,
        hashed=choice.plan_hash,
    )


def _sizes(slots, vram) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    each = [slots] if isinstance(slots, (str, int)) else list(slots or [])
    for text in each:
        found += [{"slots": s} for s in parse_slot_list(str(text))]
    found += [{"vram": v} for v in vram or []]
    if not found:
        raise BadOption("no sizes: give slots (8,16,25%) or vram (8GiB)")
    return found


def _read_part(part: Path) -> list[dict[str, Any]]:
    """Rows of an interrupted sweep. A line that a kill cut short is the last one, and is left out."""
    if not part.exists():
        return []
    rows = []
    lines = part.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number != len(lines):
                raise BadOption(f"{part} line {number} is not a result; move the file away to start anew") from error
    part.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return rows
