"""Sections -> tables of text, for the page and its Markdown twin."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from . import metrics
from .curves import base_row, ranked, whole
from .rows import OPTIONS, Row
from .sections import Look, Section, is_bound
from .verdict import FAR_FEWER, NEARLY, Verdict, verdicts

Cell = tuple[str, ...]  # lines; the first is what counts
NONE: Cell = (metrics.DASH,)
MOST_ROWS = 400  # of the table of everything; the CSV has all


@dataclass(frozen=True)
class Table:
    """Text, ready to be set. The first `words` columns hold words, the others numbers.

    label: where the numbers come from, if it is not where those of its chapter do.
    """

    title: str
    columns: list[str]
    rows: list[list[Cell]]
    words: int
    note: str
    label: str = ""


def table(title: str, rows: Iterable[dict[str, Cell]], *, words: int, note: str, label: str = "") -> Table:
    """A table of `rows` without the columns that say nothing in any row."""
    rows = list(rows)
    columns = [name for i, name in enumerate(rows[0]) if i < words or any(row[name] != NONE for row in rows)]
    return Table(title, columns, [[row[name] for name in columns] for row in rows], words, note, label)


def winners(section: Section) -> Table:
    """One line per size and look-ahead: who hits most, by how much, how far from the bound, at what cost."""
    notes = [f"SIMULATED, contract {section.first['contract']}. Points are percentage points of hit rate."]
    if section.bound:
        notes.append(
            "The bound is opt, without prefetch, so look-ahead may pass it."
            if section.first["phase"] == "all"
            else f"opt bounds the whole run, without prefetch; in {section.first['phase']} alone others may pass it."
        )
    if any(is_bound(row["policy"]) for row in section.rows):
        notes.append("Policies that know the future do not compete.")
    if section.field(section.plain) != section.policies:
        notes.append("At width 0 a guard changes nothing, so its policy stands for both.")
    found = list(verdicts(section))
    if any(verdict.cheaper for verdict in found):
        notes.append(
            f"Nearly the same, for far fewer loads: within {100 * NEARLY:.0f} points of the winner, "
            f"for at most {100 * FAR_FEWER:.0f} % of its loads."
        )
    rows = [_winner(section, verdict) for verdict in found]
    return table("Winner at each size", rows, words=3, note=" ".join(notes))


def _winner(section: Section, verdict: Verdict) -> dict[str, Cell]:
    row, size = verdict.winner, verdict.size
    reference = verdict.reference if verdict.reference is not row else None
    others, ahead = len(verdict.tied) - 1, verdict.requests_ahead()
    share = f"{100 * section.share(size):.3g} % of {section.keys}"
    times = [f"{verdict.loads_against(reference):.2f} × {section.reference}"] if reference else []
    asked = row["slots_asked"] or ""
    asked = [] if asked.endswith("%") or asked in ("", str(size)) else [f"for {asked}"]
    vram = [] if size.pool_bytes is None else [f"{metrics.size(size.pool_bytes)} of VRAM"]
    return {
        "slots": (str(size), share, *filter(None, [", ".join(vram + asked)])),
        "width": (look_word(section, verdict.look),),
        "winner": (row["policy"], *([f"and {others} more with equal hits"] if others else [])),
        "hit rate": (metrics.percent(metrics.hit_rate(row)),),
        "loads per token": (_loads(row), *_moved(row), *times),
        "nearly the same": _cheaper(verdict),
        "over the runner-up": _lead(verdict, verdict.runner_up, named=True),
        f"over {section.reference} at width 0": _lead(verdict, reference),
        "to the bound" if row["phase"] == "all" else "to opt over the whole run": _bound(verdict),
        "requests led": (f"{ahead[0]} of {ahead[1]}",) if ahead else NONE,
    }  # fmt: skip


def _bound(verdict: Verdict) -> Cell:
    bound = verdict.bound
    if bound is None:
        return NONE
    word = "bound" if bound["phase"] == "all" else bound["policy"]
    return (f"{metrics.points(verdict.lead(bound))} points", f"{word} {metrics.percent(metrics.hit_rate(bound))}")


def _lead(verdict: Verdict, other: Row | None, *, named: bool = False) -> Cell:
    if other is None:
        return NONE
    fewer = metrics.fewer_or_more(verdict.fewer(other))
    lines = [f"{other['policy']}, {_loads(other)} loads", fewer] if named else [fewer]
    return (f"{metrics.points(verdict.lead(other))} points", *lines)


def _loads(row: Row) -> str:
    return metrics.number(whole(metrics.loads_per_token)(row))


def _moved(row: Row) -> list[str]:
    """Bytes per token, if they are known."""
    moved = whole(metrics.bytes_per_token)(row)
    return [] if metrics.unknown(moved) else [metrics.size(moved)]


def _cheaper(verdict: Verdict) -> Cell:
    if not (row := verdict.cheaper):
        return NONE
    return (row["policy"], f"{metrics.percent(metrics.hit_rate(row))} for {_loads(row)} loads", *_moved(row))


def lookaheads(section: Section) -> Table | None:
    """What became of predictions at the shown size, by policy and look-ahead."""
    size = section.shown
    wide = [look for look in section.looks if look.width]
    rows = [_lookahead(section, look, row) for look in wide for row in ranked(section, size, look)]
    note = (
        f"SIMULATED, at {section.where(size)}. Used includes used late; loads neither used nor wasted were still "
        "waiting at the end. Other sizes: configurations.csv."
    )
    return table("Look-ahead in numbers", rows, words=2, note=note) if rows else None


def _lookahead(section: Section, look: Look, row: Row) -> dict[str, Cell]:
    base = base_row(section, row["policy"], section.shown)
    gain = metrics.hit_rate(row) - metrics.hit_rate(base) if base else None

    def part(name: str) -> Cell:
        return (metrics.percent(metrics.ratio(row[name], row["predictions"])),) if row[name] else NONE

    return {
        "policy": (row["policy"],),
        "width": (look_word(section, look),),
        "hit rate": (metrics.percent(metrics.hit_rate(row)),),
        "points over width 0": (metrics.points(gain),),
        "prefetch hits, of demands": (metrics.percent(metrics.prefetch_hit_rate(row)),),
        "speculative loads per token": (metrics.number(whole(metrics.speculative_loads_per_token)(row)),),
        "used, of those loads": (metrics.percent(metrics.used_share(row)),),
        "used late": (metrics.percent(metrics.used_late_share(row)),) if row["used_late"] else NONE,
        "wasted": (metrics.percent(metrics.wasted_share(row)),),
        "redundant, of predictions": part("redundant"),
        "dropped: guard": part("dropped_guard"),
        "dropped: no victim": part("dropped_no_victim"),
        "dropped: throttle": part("dropped_throttle"),
        "invalid": part("invalid"),
    }


def phases(section: Section) -> Table | None:
    """Prefill beside decode at the shown size, at no and at the best look-ahead."""
    if not all(any(row["by_phase"][phase]["demands"] for row in section.rows) for phase in ("prefill", "decode")):
        return None
    rows = []
    for look in dict.fromkeys((section.plain, section.best_look)):
        for row in ranked(section, section.shown, look):
            cells: dict[str, Cell] = {"policy": (row["policy"],), "width": (look_word(section, look),)}
            for phase in ("prefill", "decode"):
                counts = row["by_phase"][phase]
                loads = metrics.loads_per_token(counts, metrics.tokens_of(counts, row))
                cells[f"{phase}: hit rate"] = (metrics.percent(metrics.hit_rate(counts)),)
                cells[f"{phase}: loads per token"] = (metrics.number(loads),)
            rows.append(cells)
    note = f"SIMULATED, at {section.where(section.shown)}. Other sizes: phases.csv."
    return table("Prefill and decode in numbers", rows, words=2, note=note) if rows else None


def everything(section: Section) -> Table:
    """Every configuration, by size and look-ahead, most hits first."""
    ordered = sorted(
        section.at.items(), key=lambda item: (item[0].size.slots, item[0].look, -item[1]["hits"], item[1]["fills"])
    )
    rows = []
    for key, row in ordered[:MOST_ROWS]:
        values = metrics.rates(row, metrics.tokens_of(row, row))
        cells = {rate.title: (metrics.written(values[name], rate.unit),) for name, rate in metrics.RATES.items()}
        rows.append(
            {"policy": (row["policy"],), "width": (look_word(section, key.look),), "slots": (str(key.size),)} | cells
        )
    cut = f" The first {MOST_ROWS} of {len(ordered)}; configurations.csv has all." if len(ordered) > MOST_ROWS else ""
    title = f"All {len(ordered)} configurations" if len(ordered) > 1 else "The one configuration"
    return table(title, rows, words=2, note=f"SIMULATED.{cut}")


def options(section: Section) -> list[tuple[str, str]]:
    """Every option with its value, or its values where the rows differ; predictors of wider rows only."""
    out = []
    for name in OPTIONS:
        rows = [row for row in section.rows if row["width"] or name not in ("predictor", "horizon")]
        values = list(dict.fromkeys(row[name] for row in rows))
        if all(isinstance(value, (int, float)) for value in values):
            values.sort()
        out.append((name, ", ".join(map(_word, values)) or "not used at width 0"))
    return out


def look_word(section: Section, look: Look) -> str:
    """'4', or '4, previous' where the width alone does not tell."""
    if look in section.looks:
        return section.look_name(look).removeprefix("width ")
    return f"{look.width}, {look.predictor}"


def _word(value: Any) -> str:
    return metrics.DASH if value is None else str(value)
