"""A machine file -> sentences, tables and records, and its chapter of the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from . import metrics
from .machines import SHARES, UNITS, MachineFile, by_rows, written
from .page import Chapter
from .style import Picture
from .tables import NONE, Cell, Table, table
from .terms import MACHINE_PARTS

MOST_ROWS = 400  # of a table; the CSV has all


def machine_chapter(machine: MachineFile, anchor: str, figures: dict[str, list[Picture]]) -> Chapter:
    found, kind = machine.found, machine.label.lower()
    extra = {"contention": [_beside(machine)], "wake": [_wake(machine)] if found["wake"] else []}
    parts = [(title, figures[key], extra.get(key, [])) for key, title in MACHINE_PARTS.items()]
    return Chapter(
        anchor, machine.title, _facts(machine), _answer(machine), _figures(machine),
        [part for part in parts if part[1] or part[2]], _cells(machine), _options(machine),
        list(figure_records(machine)),
        {"machine": machine.title, "machine_sha256": machine.sha256, "files": [machine.file]},
        kind, "machine", (f"machine {kind}",),
    )  # fmt: skip


def _facts(machine: MachineFile) -> list[tuple[str, str]]:
    found = machine.found
    libraries = ", ".join(f"{name} {version}" for name, version in found["libraries"].items())
    known = {
        "label": found["label"], "date": found["date"], "device": found["device"], "backend": found["backend"],
        "driver": found["driver"], "CPU": found["cpu"], "CPU threads": str(found["cpu_threads"]),
        "libraries": libraries, "restricted to": found["restricted_to"],
    }  # fmt: skip
    return [(name, value or "not recorded") for name, value in known.items() if value or name != "restricted to"]


def _answer(machine: MachineFile) -> list[str]:
    """What a row costs in each place, and who slows whom."""
    rate = {name: metrics.number(machine.value(name) / 1e9) for name in machine.meanings if "bytes_per_s" in name}
    rates = (
        f"{machine.label} on {machine.found['date']}: the link copies {rate['copy_demand_bytes_per_s']} GB/s, the cold "
        f"chain reads {rate['host_read_bytes_per_s']} GB/s, the hot chain {rate['device_read_bytes_per_s']} GB/s."
    )
    out = [rates]
    for size in machine.sizes:
        copy = machine.copies("demand", size)
        times = {"copied": (copy.y[0], copy.spread[0])}
        for chain, word in (("hot", "computed by the hot chain"), ("cold", "by the cold chain")):
            sheets = machine.sheets(chain, size)
            known = next(iter(sheets.values())) if sheets else []
            line = next(iter(by_rows(known).values()), None) or machine.chain(chain, size)
            times[word] = line.y[0], line.spread[0]
        said = [f"{word} in {metrics.number(us)} ± {metrics.number(off)} µs" for word, (us, off) in times.items()]
        out.append(f"One row of {metrics.size(size)} for one token is {', '.join(said)}.")
    shares = machine.found["contention"][-1]
    kept = [f"the {who} keeps {metrics.percent(shares[key]['value'], 0)} of its speed while {what}"
            for key, (who, what) in SHARES.items()]  # fmt: skip
    out.append(f"With {shares['threads']} CPU thread{'s' * (shares['threads'] > 1)} {', '.join(kept)}.")
    return out


def _every(machine: MachineFile) -> dict[str, tuple[Mapping[str, float], str, str]]:
    """Value and spread, unit and meaning of all figures."""
    usual = {name: (machine.found["figures"][name], *about) for name, about in machine.meanings.items()}
    return usual | machine.more


def _figures(machine: MachineFile) -> Table:
    rows = []
    for name, (figure, unit, meaning) in _every(machine).items():
        source = machine.found["sources"].get(name)
        rows.append(
            {
                "figure": (name,), "what it is": (meaning, *([str(source)] if source else [])),
                "unit": (UNITS[unit][0],), "value": (written(figure["value"], unit),),
                "spread": (f"± {written(figure['spread'], unit)}",),
            }
        )  # fmt: skip
    note = f"{machine.label}. Spread: the standard deviation of single measurements, in the same unit."
    return table("All figures", rows, words=3, note=note)


def _beside(machine: MachineFile) -> Table:
    rows: list[dict[str, Cell]] = [
        {
            "CPU threads": (str(each["threads"]),),
            **{f"{who}, while {what}": _with(each[key]["value"], each[key]["spread"])
               for key, (who, what) in SHARES.items()},
        }
        for each in machine.found["contention"]
    ]  # fmt: skip
    return table("Beside each other, of the speed alone", rows, words=1, note=f"{machine.label}. %, and its spread.")


def _with(value: float, spread: float) -> Cell:
    return (metrics.percent(value), f"± {metrics.number(100 * spread)}")


def _wake(machine: MachineFile) -> Table:
    rows: list[dict[str, Cell]] = [
        {
            "gap, ms": (metrics.number(1e3 * each["gap_s"]),),
            "later by, µs": (metrics.number(1e6 * each["seconds"]),),
            "spread": (f"± {metrics.number(1e6 * each['spread_s'])}",),
        }
        for each in machine.found["wake"]
    ]
    return table("Waking up of the cold chain", rows, words=1, note=f"{machine.label}.")


def _cells(machine: MachineFile) -> Table:
    """Every point of the curves."""
    rows: list[dict[str, Cell]] = [
        {
            "chain": (cell["chain"],), "rows of": (metrics.size(cell["row_bytes"]),),
            "threads": (str(cell["threads"]),) if cell["threads"] else NONE, "tokens": (str(cell["tokens"]),),
            "rows": (str(cell["rows"]),), "tokens a row": (metrics.number(cell["pairs_per_row"]),),
            "µs": (metrics.number(1e6 * cell["value"]),), "spread": (f"± {metrics.number(1e6 * cell['spread'])}",),
            "reads GB/s": (metrics.number(cell["rows"] * cell["row_bytes"] / cell["value"] / 1e9),),
        }
        for cell in _sheet_records(machine)
    ]  # fmt: skip
    if not rows:
        rows = [{"chain": ("none",), "what holds": ("base, and bytes over a rate: the figures above",)}]
        return table("Measured points of the chains", rows, words=2, note=f"{machine.label}.")
    cut = f" The first {MOST_ROWS} of {len(rows)}; machine.csv has all." if len(rows) > MOST_ROWS else ""
    title = f"All {len(rows)} measured points of the chains"
    return table(title, rows[:MOST_ROWS], words=2, note=f"{machine.label}.{cut}")


def _options(machine: MachineFile) -> list[tuple[str, str]]:
    """What the measurement was asked for."""
    asked = machine.found["details"].get("asked")
    known = asked if isinstance(asked, dict) else {}
    return [(str(name), metrics.DASH if value is None else str(value)) for name, value in known.items()]


def figure_records(machine: MachineFile) -> Iterator[dict[str, Any]]:
    """A line per figure."""
    for name, (figure, unit, meaning) in _every(machine).items():
        yield {
            "label": machine.label, "machine": machine.title, "what": "figure", "name": name,
            "value": figure["value"], "spread": figure["spread"], "unit": unit, "meaning": meaning,
        }  # fmt: skip


def machine_records(machine: MachineFile) -> Iterator[dict[str, Any]]:
    """The same, then a line per point of the curves, per gap, and per share and number of threads."""
    yield from figure_records(machine)
    head = {"label": machine.label, "machine": machine.title}
    yield from ({**head, **cell} for cell in _sheet_records(machine))
    for each in machine.found["wake"]:
        yield {**head, "what": "wake", "gap_s": each["gap_s"], "value": each["seconds"], "spread": each["spread_s"],
               "unit": "seconds"}  # fmt: skip
    for each in machine.found["contention"]:
        for key in SHARES:
            yield {**head, "what": "contention", "name": key, "threads": each["threads"], **each[key],
                   "unit": "of its speed alone"}  # fmt: skip


def _sheet_records(machine: MachineFile) -> Iterator[dict[str, Any]]:
    for sheet in machine.found["sheets"]:
        for rows, seconds, spreads in zip(sheet["rows"], sheet["seconds"], sheet["spread_s"], strict=True):
            for pairs, value, spread in zip(sheet["pairs_per_row"], seconds, spreads, strict=True):
                yield {
                    "what": "sheet", **{name: sheet[name] for name in ("chain", "row_bytes", "threads", "tokens")},
                    "rows": rows, "pairs_per_row": pairs, "value": value, "spread": spread, "unit": "seconds",
                }  # fmt: skip
