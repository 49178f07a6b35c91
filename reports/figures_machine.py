"""Figures of a machine file: both chains, copies, waking up, and what they leave each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import frexp
from typing import Any

from . import metrics
from .charts_lines import Curve, curves
from .groups import Groups
from .machines import BESIDE, ROWS, SHARES, MachineFile, by_rows, by_tokens, decoding
from .style import LIGHT, Picture, drawn

SPREAD = "Bars: the standard deviation of single measurements."
KINDS = {"demand": "demand loads", "ahead": "speculative loads"}
COLOURS = {
    "cold_with_link": ("c4", "...."),
    "cold_with_own": ("c4", "xx"),
    "link_with_cold": ("c2", ""),
    "hot_with_link": ("c1", ""),
}
COLOURS |= {"hot_with_cold": COLOURS["hot_with_link"], "cold_with_hot": COLOURS["cold_with_link"]}


def machine_figures(machine: MachineFile, prefix: str = "") -> dict[str, list[Picture]]:
    """Every figure by part of the page; a part without data is empty."""
    parts = {"chains": chains, "copies": copies, "wake": wake, "contention": contention}
    return {name: drawn(lambda draw=draw: list(draw(machine, prefix))) for name, draw in parts.items()}


def _doubling(lines: Mapping[str, Curve]) -> list[float]:
    """The knots of all curves that are powers of two, so that their numbers find room."""
    return sorted({x for line in lines.values() for x in line.x if frexp(x)[0] == 0.5})


def chains(machine: MachineFile, prefix: str) -> Iterator[Picture]:
    """Time of the hot and of the cold chain, by rows and by tokens, for each size of row."""
    for row_bytes in machine.sizes:
        size = metrics.size(row_bytes)
        for chain in ("hot", "cold"):
            found = machine.sheets(chain, row_bytes)
            for threads, sheets in found.items():
                of = f", {threads} thread{'s' * (threads > 1)}" if threads else ""
                slug = f"{prefix}{chain}-{row_bytes}" + (f"-{threads}" if len(found) > 1 else "")
                lines = by_rows(sheets)
                yield curves(
                    machine, f"{slug}-rows", f"{chain.capitalize()} chain by rows of {size}{of}", lines,
                    labels=("rows (experts) of a tick", "µs"), log=(True, True), ticks=_doubling(lines),
                    caption=f"From the start of the work to its end; each row serves one token. {SPREAD}",
                )  # fmt: skip
                if lines := by_tokens(sheets):
                    yield curves(
                        machine, f"{slug}-tokens", f"{chain.capitalize()} chain by tokens, rows of {size}{of}", lines,
                        labels=("tokens that each row serves", "µs"), log=(True, True), ticks=_doubling(lines),
                        caption=f"In steps of {decoding(sheets)[-1]['tokens']} tokens, and of more where a row serves "
                        f"more. Flat: reading the row takes longest. Rising: computing does. {SPREAD}",
                    )  # fmt: skip
    if not machine.found["sheets"]:
        for chain in ("hot", "cold"):
            lines = {f"rows of {metrics.size(size)}": machine.chain(chain, size) for size in machine.sizes}
            yield curves(
                machine, f"{prefix}{chain}-rates", f"{chain.capitalize()} chain by rows, from its rates", lines,
                labels=("rows (experts) of a tick, one token each", "µs"), log=(True, True), ticks=ROWS,
                caption=f"The file has no measured curves: base, and bytes over a rate. {SPREAD}",
            )  # fmt: skip


def copies(machine: MachineFile, prefix: str) -> Iterator[Picture]:
    """Time of a batch of copies by its rows."""
    for row_bytes in machine.sizes:
        lines = {text: machine.copies(kind, row_bytes) for kind, text in KINDS.items()}
        yield curves(
            machine, f"{prefix}copies-{row_bytes}", f"A batch of copies, rows of {metrics.size(row_bytes)}", lines,
            labels=("rows of the batch", "µs"), log=(True, True), ticks=ROWS,
            caption=f"Start of the batch, and for each row its start and its bytes. {SPREAD}",
        )  # fmt: skip


def wake(machine: MachineFile, prefix: str) -> Iterator[Picture]:
    """How much later the cold chain begins after it had nothing to do."""
    found = machine.found["wake"]
    if not found:
        return
    gaps = [1e3 * each["gap_s"] for each in found]
    line = Curve(gaps, [1e6 * each["seconds"] for each in found], [1e6 * each["spread_s"] for each in found])
    yield curves(
        machine, f"{prefix}wake", "Waking up of the cold chain", {"after a gap": line},
        labels=("gap without work, ms", "later by, µs"), log=(True, False), ticks=gaps,
        caption=f"Beyond the start of a chain that is awake. {SPREAD}",
    )  # fmt: skip


def contention(machine: MachineFile, prefix: str) -> Iterator[Picture]:
    """Shares of their speeds alone, by CPU threads."""
    found = [(_threads(each), each, SHARES) for each in machine.found["contention"]]
    if at_once := machine.found.get("overlap"):
        found.append(("both chains at once", at_once, BESIDE))
    shown = {name: [f"{who}, while {what}" for who, what in keys.values()] for name, _, keys in found}
    groups = Groups(machine, "Beside each other", shown, right=0.95)
    told = []
    for name, each, keys in found:
        for i, key in enumerate(keys):
            value, spread = 100 * each[key]["value"], 100 * each[key]["spread"]
            groups.bar(name, i, 0, value, *COLOURS[key])
            groups.axes.errorbar(value, groups.at[name, i], xerr=spread, color=LIGHT["ink"], capsize=2.5, elinewidth=1)
            text = f"{metrics.number(value)} ± {metrics.number(spread)} %" if spread else f"{metrics.number(value)} %"
            groups.said(name, i, value + spread, text)
            told.append(f"{name}, {shown[name][i]}: {text}")
    groups.of_whole("% of the speed alone", 105)
    yield groups.panel.picture(
        f"{prefix}contention", alt=f"Speed beside each other. {'; '.join(told)}.",
        caption=f"Copies and both chains share the memory of the host or the device. {SPREAD}",
    )  # fmt: skip


def _threads(each: Mapping[str, Any]) -> str:
    return f"{each['threads']} CPU thread{'s' * (each['threads'] > 1)}"
