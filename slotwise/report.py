"""Files of every kind that there is a page for -> a report: what is not Parquet is told apart by what it says it is."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

VALIDATED = "validation.json"
VALIDATION = "slotwise.validation"  # the format of what `slotwise.validate` writes
MOST_BYTES = 1 << 30  # of a JSON file


def write_report(paths: Sequence[Path | str], out_dir: Path | str, **how: Any) -> list[Path]:
    """Writes page, Markdown, figures, CSV and a summary in JSON into `out_dir`; returns the files, the page first.

    paths: results of `slotwise.sweep` and `slotwise.run`, machine files, and results of `slotwise.validate`; together
    they share one page, a section for each. how: keep, force and progress, as `slotwise.reports.write_report` says.
    Raises BadResult or BadOption: a file that cannot be reported on, or a folder that is not ours.
    """
    from slotwise.reports import write_report as write

    paths = list(paths)
    given = {path: found for path in paths if (found := _given(Path(path))) is not None}
    keep = [*how.pop("keep", ()), *given]
    return write([path for path in paths if path not in given], out_dir, given=list(given.values()), keep=keep, **how)


@contextmanager
def validation_in(folder: Path | str) -> Iterator[Path]:
    """The file for the result of a validation in the folder for the report on it, which is made, and goes if unused.

    Raises BadResult: the folder is somebody else's.
    """
    from slotwise.reports import BadResult, check_folder, earlier_report

    folder = Path(folder)
    file = folder / VALIDATED
    if not file.exists() and (there := earlier_report(folder)):
        raise BadResult(f"{folder}: holds a report on {', '.join(there)}; name another folder")
    check_folder(folder, [file, *(file.with_name(f"{VALIDATED}.{end}") for end in ("part", "lock"))])
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield file
    finally:
        if new and not any(folder.iterdir()):
            folder.rmdir()


def _given(path: Path) -> dict[str, Any] | None:
    """What a report takes of a JSON file; None for other files."""
    from slotwise.replay.machine import FORMAT as MACHINE
    from slotwise.replay.machine import machine_of
    from slotwise.replay.machine_figures import FIGURES
    from slotwise.reports.errors import BadResult

    found = _object(path)
    if found is None:
        return None
    if found.get("format") == VALIDATION:
        from slotwise.reports.validations import validation_of

        _check_verdict(validation_of(path.name, found).found, path)
        return {"validation": found, "file": path.name}
    if found.get("format") != MACHINE:
        raise BadResult(
            f"{path}: JSON that says it is {found.get('format')!r}; a report is made from {MACHINE} (of `calibrate`, "
            f"`machine`), {VALIDATION} (of `validate -o`), and what `sweep` and `run` write"
        )
    machine = machine_of(found, str(path))
    meanings = {name: (figure.unit, figure.meaning) for name, figure in FIGURES.items()}
    plain = json.loads(json.dumps(machine.to_dict()))
    return {"machine": plain, "sha256": machine.sha256, "meanings": meanings, "file": path.name}


def _check_verdict(found: Mapping[str, Any], path: Path) -> None:
    """Raises BadResult where the verdict of a checked validation is not the one that its own numbers lead to."""
    import numpy as np

    from slotwise.reports.errors import BadResult

    from .validate_judge import concluded, doubts_of

    rows, parts = found["configurations"], found.get("parts") or [found]
    drifts: dict[str, float] = {}  # a later calibration of a machine counts for all of its results
    for part in parts:
        if part["drift"] is not None:
            drifts[_machine(part)] = max(part["drift"], drifts.get(_machine(part), part["drift"]))
    doubts = []
    for number, part in enumerate(parts, 1):
        mine = [row for row in rows if row.get("part", 1) == number]
        kept, drift = part["blocks"] - part["blocks_dropped"], drifts.get(_machine(part))
        doubts += doubts_of(kept, part["noise_floor"], drift, [row["label"] for row in mine])
    told, measured, line = (np.array([row[name] for row in rows]) for name in ("predicted", "measured", "baseline"))
    strata, pairs = [row["stratum"] for row in rows], found["pairs"]["each"]
    verdict = concluded(told / measured - 1, line / measured - 1, strata, pairs, doubts)["verdict"]
    if verdict != found["verdict"]:
        raise BadResult(
            f"{path}: its verdict is {found['verdict']!r}, but its numbers say {verdict!r}: the file was changed, or "
            "judged by other rules; make it again with `slotwise validate -o`"
        )


def _machine(part: Mapping[str, Any]) -> str:
    """Whatever tells machines apart: names may be alike."""
    return part.get("machine_sha256") or part["machine"]


def _object(path: Path) -> Mapping[str, Any] | None:
    """The object in a JSON file, known by its first letter; None for anything else."""
    from slotwise.reports.errors import BadResult

    if not path.is_file():  # what there is none of, or is a folder, is refused where other results are opened
        return None
    with path.open("rb") as file:
        if not file.read(64).removeprefix(BOM_UTF8).lstrip().startswith(b"{"):
            return None
    if path.stat().st_size > MOST_BYTES:
        raise BadResult(f"{path}: has {path.stat().st_size} bytes; no machine file and no validation has so many")
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise BadResult(f"{path}: is cut off or damaged ({error}); make it again") from error
