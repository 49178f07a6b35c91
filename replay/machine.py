"""The machine file: what pricing knows of a machine. The only place that defines, reads, checks and writes it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

from slotwise.traces.files import beside, check_source

from .errors import BadOption
from .machine_figures import BESIDE, FIGURES, POLICY_FIGURES, SHARES, Contention, Entries, Figure, Sheet, Wake

FORMAT, VERSION = "slotwise.machine", 3
LABELS = ("MEASURED", "ESTIMATED")
NEEDED = ("label", "name", "date", "cpu_threads", "figures", "contention")
MOST_FILE_BYTES = 64 << 20


@dataclass(frozen=True)
class Machine:
    """All figures of a machine. `read_machine` and `write_machine` are its file, `check_machine` its rules.

    label: MEASURED or ESTIMATED. sources: where a figure comes from, by its name. restricted_to: what a measurement
    held back, in words. policies: policy_s and policy_ahead_s by `PolicySpec.family`, where `figures` has those
    of lru. overlap: all of BESIDE, or none. details: whatever else is worth keeping; pricing does not read it.
    """

    label: str
    name: str
    date: str
    cpu_threads: int
    figures: Mapping[str, Figure]
    sheets: tuple[Sheet, ...] = ()
    wake: tuple[Wake, ...] = ()
    contention: tuple[Contention, ...] = ()
    backend: str | None = None
    device: str | None = None
    driver: str | None = None
    cpu: str | None = None
    libraries: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    restricted_to: str | None = None
    policies: Mapping[str, Mapping[str, Figure]] = field(default_factory=dict)
    overlap: Mapping[str, Figure] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> float:
        """The value of a figure."""
        return self.figures[name].value

    def policy(self, family: str) -> tuple[str, float, float]:
        """Whose figures there are for a family, its own or lru's: then its policy_s and policy_ahead_s."""
        own = self.policies.get(family)
        figures = self.figures if own is None else own
        demand, ahead = (figures[name].value for name in POLICY_FIGURES)
        return "lru" if own is None else family, demand, ahead

    @property
    def beside(self) -> tuple[float, float, float]:
        """hot_with_cold, cold_with_hot and overlap_s; nothing of it where nobody measured it."""
        hot, cold, seconds = (self.overlap[name].value for name in BESIDE) if self.overlap else (1.0, 1.0, 0.0)
        return hot, cold, seconds

    def row_s(self, kind: str, row_bytes: int) -> float:
        """Seconds of the link for one row of a batch: `demand`, `ahead`, or `computed` on the CPU at the same time."""
        beyond = self["copy_ahead_row_s" if kind == "ahead" else "copy_demand_row_s"]
        return beyond + row_bytes / self[f"copy_{kind}_bytes_per_s"]

    def to_dict(self) -> dict[str, Any]:
        """The object in the file."""
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    @cached_property
    def sha256(self) -> str:
        """Of its content, whatever the file's spaces."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()


# --- the file ---


def read_machine(path: str | Path) -> Machine:
    """Reads and checks a machine file. Raises BadOption naming the file, the figure, its value and its range."""
    path = Path(path)
    check_source(path)
    if path.stat().st_size > MOST_FILE_BYTES:
        raise BadOption(f"{path}: has {path.stat().st_size} bytes; a machine file has at most {MOST_FILE_BYTES}")
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise BadOption(f"{path}: is no machine file ({error}); `slotwise machine` writes one") from error
    return machine_of(found, str(path))


def write_machine(machine: Machine, path: str | Path, *, force: bool = False) -> Path:
    """Checks it, writes beside and renames. Raises BadOption if the file exists and `force` is not given."""
    path = Path(path)
    machine_of(json.loads(json.dumps(machine.to_dict())), path.name)
    if path.exists() and not force:
        raise BadOption(f"{path} exists; --force replaces it")
    with beside(path) as temporary:
        temporary.write_text(json.dumps(machine.to_dict(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return path


def machine_of(found: Any, where: str) -> Machine:
    """A Machine from the object in a file, which `where` names in errors."""
    say = Entries(where)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise BadOption(f"{where}: is no machine file: its format is not {FORMAT!r}; `slotwise machine` writes one")
    if found.get("version") != VERSION:
        raise BadOption(
            f"{where}: version {found.get('version')!r} of {FORMAT}; this program reads version {VERSION}: make the "
            "file again with `slotwise calibrate` or `slotwise machine`"
        )
    if missing := [name for name in NEEDED if found.get(name) is None]:
        raise BadOption(
            f"{where}: {missing[0]} is missing; make the file again with `slotwise calibrate` or `slotwise machine`"
        )
    known = {"format", "version", *Machine.__dataclass_fields__}
    if unknown := sorted(set(found) - known):
        raise BadOption(f"{where}: unknown entry {unknown[0]!r}; known: {', '.join(sorted(known))}")
    if found.get("label") not in LABELS:
        raise BadOption(f"{where}: label {found.get('label')!r}: it is {' or '.join(LABELS)}")
    texts = {
        name: say.text(name, found.get(name), needed=name == "name")
        for name in ("name", "backend", "device", "driver", "cpu", "restricted_to")
    }
    try:
        date.fromisoformat(found.get("date", ""))
    except (TypeError, ValueError):
        raise BadOption(f"{where}: date {found.get('date')!r}: it is written as 2026-01-31") from None
    figures = say.table("figures", found.get("figures"))
    if unknown := sorted(set(figures) - set(FIGURES)):
        raise BadOption(f"{where}: unknown figure {unknown[0]!r}; known: {', '.join(FIGURES)}")
    policies = say.table("policies", found.get("policies", {}))
    sheets = say.each("sheets", found.get("sheets", []), say.sheet)
    keys = [(sheet.chain, sheet.row_bytes, sheet.tokens, sheet.threads) for sheet in sheets]
    if twice := [key for key in keys if keys.count(key) > 1]:
        chain, row_bytes, tokens, threads = twice[0]
        raise BadOption(
            f"{where}: two sheets of the {chain} chain for rows of {row_bytes} bytes, {tokens} tokens and threads "
            f"{threads}; keep one"
        )
    wake = say.each("wake", found.get("wake", []), say.wake)
    say.rising("wake", "gap_s", [each.gap_s for each in wake])
    contention = say.each("contention", found.get("contention", []), say.contention)
    say.rising("contention", "threads", [each.threads for each in contention])
    if not contention:
        raise BadOption(f"{where}: contention is missing: a list of {{threads, {', '.join(SHARES)}}}")
    return Machine(
        label=found["label"], date=found["date"], cpu_threads=say.whole("cpu_threads", found.get("cpu_threads"), 4096),
        figures={name: say.figure(f"figure {name}", figures.get(name), FIGURES[name]) for name in FIGURES},
        policies={name: say.policy(f"policy {name}", each) for name, each in policies.items()},
        overlap=say.beside("overlap", found["overlap"]) if found.get("overlap", {}) != {} else {},
        sheets=sheets, wake=wake, contention=contention, libraries=say.table("libraries", found.get("libraries", {})),
        sources=say.table("sources", found.get("sources", {})), details=say.table("details", found.get("details", {})),
        **texts,
    )  # fmt: skip


def check_machine(machine: Machine) -> Machine:
    """The same machine. Raises BadOption as reading its file would."""
    return machine_of(json.loads(json.dumps(machine.to_dict())), machine.name)
