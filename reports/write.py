"""Result files in, a folder of page, figures and tables out: made beside it, then moved in, never half written."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .errors import BadResult
from .machines import MachineFile
from .opening import holds_runs
from .prices import price_records
from .rows import NESTED, read_rows
from .runs import Runs, read_runs, runs_of
from .sections import Section, sections
from .validations import Validation, validation_of

MARK, PAGE, FIGURES = "report.json", "report.html", "figures"
SPLITS = dict(zip(("layers.csv", "phases.csv", "requests.csv", "windows.csv"), NESTED, strict=True))


def write_report(
    paths: Sequence[Path | str],
    out_dir: Path | str,
    *,
    given: Sequence[Mapping[str, Any]] = (),
    keep: Iterable[Path | str] = (),
    force: bool = False,
    progress: Callable[[str], None] | None = None,
) -> list[Path]:
    """Reads the result files and writes the report into `out_dir`: page, Markdown, figures, CSV, and a summary in JSON.

    Files of a sweep become sections of what was simulated, files of runs sections of what was measured, on one page.
    `given` adds sections about other files, which the caller has read: of a machine {"machine": its object, "file": a
    name, "sha256": of its content, "meanings": {figure: (unit, meaning)}}, checked; of a validation {"validation": its
    object, "file": a name}, which is checked here.

    Result files that lie in `out_dir` stay there, and so does whatever `keep` names. Other files of the folder are
    never touched either, but unless `force` is set they are refused: they say that the folder is somebody else's. So is
    an earlier report on other traces or other result files; one on the same is refreshed.

    Returns:
        The files written, the page first.

    Raises:
        BadResult: a file that cannot be reported on, or a folder that is not ours.
    """
    from . import page, records
    from .figures import figures, measured_figures
    from .figures_machine import machine_figures
    from .figures_validation import validation_figures
    from .tables_machine import machine_chapter, machine_records
    from .tables_measured import tick_records
    from .tables_validation import configuration_records, pair_records, validation_chapter

    drawers: dict[type, tuple[Callable, Callable]] = {
        Section: (figures, page.chapter),
        Runs: (measured_figures, page.run_chapter),
        MachineFile: (machine_figures, machine_chapter),
        Validation: (validation_figures, validation_chapter),
    }
    out_dir, say = Path(out_dir), progress or (lambda _: None)
    stale = check_folder(out_dir, [*paths, *keep], force=force)
    say("reading results")
    measured = [path for path in paths if holds_runs(path)]
    simulated = [path for path in paths if path not in measured]
    others = [_opened(one) for one in given]
    rows = read_rows(simulated) if simulated or not (measured or others) else []
    run_rows = read_runs(measured)
    if not force:
        same = [(row["file"], row["trace_sha256"], row["trace"]) for row in rows + run_rows]
        _check_same(out_dir, same + [(one.file, one.identity, one.title) for one in others])
    parts = [*sections(rows), *runs_of(run_rows), *others]
    chapters = []
    texts: dict[str, str | bytes] = {}
    for i, part in enumerate(parts):
        say(f"drawing {part.title}")
        prefix, anchor = f"{i + 1}-" if len(parts) > 1 else "", f"section-{i + 1}"
        draw, chapter = drawers[type(part)]
        pictures = draw(part, prefix)
        chapters.append(chapter(part, anchor, pictures))
        texts |= {f"{FIGURES}/{picture.name}.png": picture.png for some in pictures.values() for picture in some}
    say("writing")
    texts["report.md"] = page.markdown(chapters)
    if rows:
        texts["configurations.csv"] = _csv(records.configuration_records(rows))
        texts["winners.csv"] = _csv(record for one in chapters if one.what == "sweep" for record in one.records)
        texts |= {name: _csv(records.split_records(rows, split)) for name, split in SPLITS.items()}
    if any(row["prices"] for row in rows):
        texts["prices.csv"] = _csv(price_records(rows))
    if run_rows:
        texts["runs.csv"] = _csv(record for one in chapters if one.what == "run" for record in one.records)
        texts["timeline.csv"] = _csv(record for part in runs_of(run_rows) for record in tick_records(part))
    if found := [one for one in others if isinstance(one, MachineFile)]:
        texts["machine.csv"] = _csv(record for one in found for record in machine_records(one))
    if found := [one for one in others if isinstance(one, Validation)]:
        texts["validation.csv"] = _csv(record for one in found for record in configuration_records(one))
        texts["pairs.csv"] = _csv(record for one in found for record in pair_records(one))
    names = [PAGE, *sorted(texts), MARK]
    texts[PAGE] = page.html(chapters, [name for name in sorted(texts) if "/" not in name] + [f"{FIGURES}/"])
    texts[MARK] = json.dumps(_summary(chapters, names), indent=1, ensure_ascii=False, allow_nan=False)
    _place(out_dir, {name: texts[name] for name in names}, stale)
    return [out_dir / name for name in names]


def check_folder(out_dir: Path | str, results: Iterable[Path | str], *, force: bool = False) -> set[str]:
    """Makes sure that a report may go there; returns the names of the files of an earlier report in it.

    Raises:
        BadResult: it is no folder, or holds files that are neither an earlier report's nor among `results`.
        OSError: it cannot be read, or nothing can be written there.
    """
    out_dir = Path(out_dir)
    results = list(results)
    for path in (out_dir, *results):
        if "\0" in str(path):
            raise BadResult(f"{str(path)!r} cannot be the name of a file or folder: it has a null character")
    _check_room(out_dir)
    try:
        out_dir.stat()  # `exists` would also say no to a loop of links, and to a name that no folder can have
    except FileNotFoundError:
        return set()
    if not out_dir.is_dir():
        raise BadResult(f"{out_dir}: is a file, not a folder; name a folder that is new, empty or holds a report")
    ours = _earlier(out_dir / MARK)
    inputs = {Path(path).resolve() for path in results}
    top = [
        path for path in out_dir.iterdir() if path.name != FIGURES or not path.is_dir()
    ]  # no deeper: it may be a home
    inside = (out_dir / FIGURES).iterdir() if (out_dir / FIGURES).is_dir() else []
    present = {path.relative_to(out_dir).as_posix(): path for path in [*top, *inside]}
    strangers = sorted(name for name, path in present.items() if name not in ours and path.resolve() not in inputs)
    if strangers and not force:
        raise BadResult(
            f"{out_dir}: holds {strangers[0]!r}{f' and {len(strangers) - 1} more' if len(strangers) > 1 else ''} "
            "that no report wrote; name another folder, or add the report with --force (nothing of yours is removed)"
        )
    return ours & set(present)


def _check_room(out_dir: Path) -> None:
    """OSError where no folder can be made beside this one, before anything is worked out."""
    above = next(folder for folder in out_dir.absolute().parents if folder.exists())
    try:
        tempfile.TemporaryDirectory(dir=above).cleanup()
    except OSError as error:
        words = f"no folder can be written there ({error.strerror}); name another folder"
        raise OSError(error.errno, words, str(out_dir)) from None


def earlier_report(out_dir: Path | str) -> list[str]:
    """The traces that the report in a folder is on; [] if there is none."""
    summary = _summary_of(Path(out_dir) / MARK)
    return list(dict.fromkeys(str(one.get("trace") or one.get("machine")) for one in _sections_of(summary))) or [
        "other traces"
    ] * bool(summary)


def _opened(one: Mapping[str, Any]) -> MachineFile | Validation:
    if "machine" in one:
        return MachineFile(one["file"], one["sha256"], one["machine"], one["meanings"])
    return validation_of(one["file"], one["validation"])


def _check_same(out_dir: Path, here: Sequence[tuple[str, str, str]]) -> None:
    """A report may take the place of one made from files of the same names that were on no other traces or machines.

    here: file, what must be the same, and its name.
    """
    there = _sections_of(_summary_of(out_dir / MARK))
    files = {name for one in there for name in one.get("files") or []}
    traces = {one.get("trace_sha256") or one.get("machine"): one.get("trace") or one.get("machine") for one in there}
    new_files, new_traces = {file for file, *_ in here}, {same for _, same, _ in here}
    if not there or (files == new_files and set(traces) <= new_traces):
        return
    named = ", ".join(str(name) for name in dict.fromkeys(traces.values()))
    raise BadResult(
        f"{out_dir}: holds a report on {named} from {', '.join(sorted(map(str, files)))}, and this one is on "
        f"{', '.join(dict.fromkeys(name for *_, name in here))} from {', '.join(sorted(new_files))}; "
        "name another folder, or replace it with --force"
    )


def _earlier(mark: Path) -> set[str]:
    """The names that an earlier report says it wrote; none if the mark is not one of ours."""
    return {name for name in _summary_of(mark).get("files", []) if isinstance(name, str)}


def _summary_of(mark: Path) -> dict[str, Any]:
    """The summary that an earlier report left; {} if the mark is not one of ours."""
    try:
        summary = json.loads(mark.read_bytes()) if mark.is_file() else None
    except (ValueError, RecursionError):
        return {}
    if not isinstance(summary, dict) or summary.get("format") != "slotwise.report":
        return {}
    return summary if isinstance(summary.get("files"), list) else {}


def _sections_of(summary: dict[str, Any]) -> list[dict[str, Any]]:
    found = summary.get("sections")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _place(out_dir: Path, texts: dict[str, str | bytes], stale: set[str]) -> None:
    """All parts into a folder beside `out_dir`; then it becomes `out_dir`, or its files replace the old ones."""
    parent = out_dir.resolve().parent
    parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{out_dir.resolve().name[:32]}-", dir=parent))
    try:
        beside.chmod(0o777 & ~_umask())
        for name, text in texts.items():
            path = beside / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        if not out_dir.exists():
            beside.rename(out_dir)
            return
        for name in texts:
            (out_dir / name).parent.mkdir(exist_ok=True)
            (beside / name).replace(out_dir / name)
        for name in stale - set(texts):
            (out_dir / name).unlink()
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _csv(records: Iterable[dict[str, Any]]) -> str:
    """Records -> CSV with the union of their keys as columns; null and nan are empty."""
    import io

    records = list(records)
    columns = list(dict.fromkeys(name for record in records for name in record))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(["" if _none(record.get(name)) else record[name] for name in columns] for record in records)
    return out.getvalue()


def _summary(chapters: Sequence[Any], names: list[str]) -> dict[str, Any]:
    """What programs read; also the mark of a folder of ours."""
    about = [
        one.provenance
        | {
            "title": one.title,
            "options": dict(one.options),
            "answer": one.answer,
            **dict.fromkeys(one.kind.split(" and "), True),
            one.noun: [_known(record) for record in one.records],
            **{name: [_known(record) for record in found] for name, found in one.also.items()},
        }
        for one in chapters
    ]
    return {
        "format": "slotwise.report",
        "version": 1,
        "written_by": f"slotwise {version('slotwise')}",
        "simulated": any("simulated" in one.kind for one in chapters),
        "measured": any("measured" in one.kind for one in chapters),
        "page": PAGE,
        "files": names,
        "sections": about,
    }


def _known(record: dict[str, Any]) -> dict[str, Any]:
    return {name: None if _none(value) else value for name, value in record.items()}


def _none(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
