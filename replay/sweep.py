"""A grid of replays on all cores, into one Parquet file that can be added to: nothing finished is ever lost."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from typing import Any, BinaryIO

from slotwise.policies import Refused
from slotwise.traces import Trace, open_trace
from slotwise.traces.files import check_target, kind_of

from .errors import BadOption
from .lag import settled
from .lock import held
from .options import Options, check_workers, warn_idle
from .pricing import Pricing
from .rows import option_key, read_rows, whatever_the_files, write_rows
from .run import run
from .sizes import parse_slot_list

FOREIGN = (".csv", ".json", ".html", ".md", ".txt", ".npz", ".png")  # endings that say what a result is not
Progress = Callable[[int, int, str], None]


def sweep(
    traces: Iterable[Trace | str | Path] | Trace | str | Path,
    policies: Iterable[str] | str,
    slots: Iterable[str | int] | str | int | None = None,
    widths: Iterable[int] | int = (0,),
    *,
    out: str | Path,
    vram: Iterable[str | int] | str | int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    skipped: Callable[[str], None] | None = None,
    counted: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Path:
    """Replays every trace x policy x size x width, and writes one row each to the Parquet file `out`; returns its path.

    slots: counts, fractions, lists and ranges ("8,16", "8:128:8", "25%"); vram: byte budgets, or lists of them
    ("2GiB,4GiB"). `options` are the other fields of `Options`, and with `machine` those of `Pricing`. Rows that
    `out` holds already are kept and not replayed again, but rows of a policy whose own file or profile has been edited
    since give way to the new ones. A combination
    that a policy refuses (the bound with look-ahead, look-ahead without slots) is left out and its reason given to
    `skipped`. Each finished row is at once on disk in `out` + ".part", so a killed sweep goes on where it stopped. At
    the end `counted` is told how many rows are new and how many were there.
    """
    path = Path(out)
    check_workers("workers", workers)
    traces = [traces] if isinstance(traces, (str, Path, Trace)) else traces
    policies = [policies] if isinstance(policies, str) else policies
    widths = [widths] if isinstance(widths, int) else list(widths)
    warn_idle(options.get("predictor"), widths)
    pricing = Pricing.taken_from(options)
    opened = [t if isinstance(t, Trace) else open_trace(t) for t in traces]
    sizes = list_sizes(slots, vram)
    grid = [
        (trace, settled(Options.of(policy=policy, width=width, **size, **options), trace, pricing))
        for trace, policy, size, width in product(opened, policies, sizes, widths)
    ]
    if not grid:
        raise BadOption("nothing to do: give at least one trace, policy, size and width")
    if not path.name or kind_of(path) not in ("", "file") or not path.parent.is_dir():
        raise BadOption(f"cannot write a result to {str(out)!r}: name a file in an existing folder")
    if path.suffix in FOREIGN:
        raise BadOption(f"{path}: a result is a Parquet file, not {path.suffix}; name it {path.stem}.parquet")
    check_target(path)
    for trace in opened:
        if trace.digest() != trace.sha256:
            raise BadOption(f"{trace.name}: its ids do not match the sha256 that it records; import it again")
    path = path.resolve()  # a link stays one, and whoever writes what it leads to meets our lock
    part = path.with_name(path.name + ".part")  # finished rows go there at once
    with held(part, f"another sweep is writing {path}; wait for it, or choose another name") as journal:
        kept = {option_key(row): row for row in read_rows(path)}
        rows = kept | {option_key(row): row for row in _read_journal(journal)}
        todo: dict[str, tuple[Trace, Options]] = {}
        reasons, asked = [], {}
        for trace, choice in grid:
            try:
                key = _key(trace, choice, pricing)
            except Refused as error:
                reasons.append(str(error))
                continue
            asked[key] = None
            if key not in rows:
                todo.setdefault(key, (trace, choice))
        if len(reasons) == len(grid):
            raise BadOption(f"every configuration was refused: {reasons[0]}")
        for reason in dict.fromkeys(reasons):
            if skipped:
                skipped(reason)
        if todo:
            _run_all(todo, rows, journal, pricing, workers or os.cpu_count() or 1, progress)
        edited = {whatever_the_files(key) for key in asked}
        order = kept | asked | rows  # what was there first, then in the order of the grid
        written = [rows[key] for key in order if key in asked or whatever_the_files(key) not in edited]
        write_rows(written, path)
        part.unlink()
    if counted:
        counted(len(todo), len(written) - len(todo))
    return Path(out)


def _run_all(todo, rows, journal: BinaryIO, pricing: Pricing | None, workers: int, progress: Progress | None) -> None:
    """Runs what is left; every finished row reaches the disk before the next is counted."""
    with ThreadPoolExecutor(workers) as pool:
        futures = {pool.submit(_one, trace, choice, pricing): key for key, (trace, choice) in todo.items()}
        try:
            for done, future in enumerate(as_completed(futures), 1):
                row = future.result()
                rows[futures[future]] = row
                journal.write(json.dumps(row).encode() + b"\n")
                journal.flush()
                os.fsync(journal.fileno())
                if progress:
                    progress(done, len(todo), f"{row['policy']} {row['slots_asked']} width {row['width']}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _one(trace: Trace, choice: Options, pricing: Pricing | None) -> dict[str, Any]:
    return run(trace, choice, pricing=pricing, threads=1).to_row() | {"content_sha256": trace.content_sha256}


def _key(trace: Trace, choice: Options, pricing: Pricing | None) -> str:
    """What the row of this configuration will be found by; raises Refused where the policy does not allow it."""
    size = choice.size(trace)
    choice.check(trace, size)
    return option_key(
        {**choice.recorded(size), "trace": trace.name, "content_sha256": trace.content_sha256},
        window=choice.window_of(choice.source(trace)),
        pollution=choice.pollution,
        hashed=choice.plan_hash,
        priced=pricing.recorded() if pricing else None,
    )


def list_sizes(
    slots: Iterable[str | int] | str | int | None = None, vram: Iterable[str | int] | str | int | None = None
) -> list[dict[str, Any]]:
    """What `Options` takes for each size: ranges and lists are spelt out. Raises BadOption where there is none."""
    slots, vram = ([each] if isinstance(each, (str, int)) else list(each or []) for each in (slots, vram))
    found: list[dict[str, Any]] = [{"slots": size} for text in slots for size in parse_slot_list(str(text))]
    found += [{"vram": size.strip()} for text in vram for size in str(text).split(",")]
    if not found:
        raise BadOption("no sizes: give slots (8,16,25%) or vram (8GiB)")
    return found


def _read_journal(journal: BinaryIO) -> list[dict[str, Any]]:
    """Rows of an interrupted sweep. A line that a kill cut short is the last one, and is cut off."""
    journal.seek(0)
    rows, whole = [], 0
    for number, line in enumerate(journal, 1):
        if not line.endswith(b"\n"):
            break
        try:
            row = json.loads(line)
            option_key(row)
            row["content_sha256"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadOption(f"{journal.name} line {number} is not a result; move it away to start anew") from error
        rows.append(row)
        whole += len(line)
    journal.truncate(whole)
    return rows
