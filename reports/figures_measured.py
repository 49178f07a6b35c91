"""Figures of runs: speed with its interval, where the time went, bandwidths against ceilings, drops by reason."""

from __future__ import annotations

from collections.abc import Iterator

from . import metrics
from .figures_lookahead import OUTCOMES
from .groups import Groups, patches
from .rows import Row
from .runs import ENGINES, PARTS, Runs
from .style import LIGHT, Picture, first_of

MOST = 12  # configurations of one figure; the tables have all
SIDES = {"on": ("c0", ""), "off": ("grey2", "////"), "auto": ("c2", "....")}
COLOURS = {
    "both_s": ("c6", ""), "hot_alone_s": ("c1", ""), "cold_alone_s": ("c4", "...."), "late_s": ("bad", "xxxx"),
    "policy_s": ("c3", ""), "merge_s": ("good", "////"), "rest_s": ("grey1", ""), "between_s": ("pale", "\\\\\\\\"),
}  # fmt: skip


def shown(runs: Runs) -> dict[str, dict[str, Row]]:
    """The configurations that figures show."""
    return dict(list(runs.configurations.items())[:MOST])


def _cut(runs: Runs) -> str:
    return first_of(MOST, len(runs.configurations), "configurations")


def speed(runs: Runs, prefix: str) -> Iterator[Picture]:
    """Tokens per second of each configuration, overlap on above off, with the range of the repeats."""
    sides = shown(runs)
    if not any(row["timing"]["tokens_per_s"] for rows in sides.values() for row in rows.values()):
        return
    groups = Groups(
        runs, "Tokens per second", {name: [f"overlap {side}" for side in rows] for name, rows in sides.items()},
        right=1.12,
    )  # fmt: skip
    told = []
    for name, rows in sides.items():
        for i, (side, row) in enumerate(rows.items()):
            timing = row["timing"]
            rate = timing["tokens_per_s"] or 0.0
            low, high = timing["tokens_per_s_range"] or (rate, rate)
            groups.bar(name, i, 0, rate, *SIDES[side])
            if timing["repeats"] > 1:
                groups.axes.errorbar(
                    rate, groups.at[name, i], xerr=[[rate - low], [high - rate]], color=LIGHT["ink"], capsize=2.5,
                    elinewidth=1, capthick=1,
                )  # fmt: skip
            groups.said(name, i, high, rate_said(row))
            told.append(f"{name}, overlap {side}: {rate_said(row)}")
    groups.axes.set_xlim(0, None)
    groups.axes.set_xlabel("tokens/s (median of the runs; the mark spans all of them)")
    yield groups.panel.picture(
        f"{prefix}speed", alt=f"Tokens per second. {'; '.join(told)}.",
        caption="Runs of all sides take turns. " + intervals_said(runs) + _cut(runs),
    )  # fmt: skip


def rate_said(row: Row) -> str:
    """'194 (184 to 196)', or the one figure of a single run."""
    timing = row["timing"]
    rate = metrics.number(timing["tokens_per_s"])
    if timing["repeats"] < 2 or not timing["tokens_per_s_range"]:
        return f"{rate} (one run)"
    low, high = map(metrics.number, timing["tokens_per_s_range"])
    return f"{rate} ({low} to {high})"


def intervals_said(runs: Runs) -> str:
    """What the intervals are worth: the range of n runs holds the median of all such runs with 1 - 2^(1 - n)."""
    repeats = sorted({row["timing"]["repeats"] for row in runs.rows})
    if repeats == [1]:
        return "One run of each says nothing about how far the next would be off: --repeats 5 gives intervals."
    chance = metrics.percent(1 - 2.0 ** (1 - max(2, repeats[0])))
    runs_of = f"{repeats[0]} runs" if len(repeats) == 1 else f"{max(2, repeats[0])} runs"
    return f"The range of {runs_of} holds the median of many with a chance of {chance}, if nothing drifts meanwhile."


def time(runs: Runs, prefix: str) -> Iterator[Picture]:
    """Where the time of a step went, each moment counted once."""
    sides = {name: {side: row for side, row in rows.items() if row["timing"]["steps"]}
             for name, rows in shown(runs).items()}  # fmt: skip
    sides = {name: rows for name, rows in sides.items() if rows}
    if not sides:
        return
    every = [row["timing"]["parts"] for rows in sides.values() for row in rows.values()]
    used = [part for part in PARTS if any(each[part] for each in every)]
    parts = [(PARTS[part], *COLOURS[part]) for part in used]
    groups = Groups(
        runs, "Where the time went", {name: [f"overlap {side}" for side in rows] for name, rows in sides.items()},
        legend=[part[0] for part in parts], right=0.75,
    )  # fmt: skip
    told = []
    for name, rows in sides.items():
        for i, (side, row) in enumerate(rows.items()):
            start, words = 0.0, []
            for part, (word, colour, hatch) in zip(used, parts, strict=True):
                length = 1e3 * row["timing"]["parts"][part] / row["timing"]["steps"]
                groups.bar(name, i, start, length, colour, hatch)
                start += length
                words.append(f"{word} {metrics.number(length)}")
            groups.said(name, i, start, f"{metrics.number(start)} ms")
            told.append(f"{name}, overlap {side}: {', '.join(words)}")
    groups.axes.set_xlim(0, None)
    groups.axes.set_xlabel("ms of a step, on average, in the run timed tick by tick")
    groups.panel.legend(patches(parts))
    yield groups.panel.picture(
        f"{prefix}time", alt=f"Where the time went, ms of a step. {'; '.join(told)}.",
        caption="Each moment counts once, so parts add up. Awaited copies: the hot chain waited for a row. Rest: "
        "dispatch, look-ahead, threads that wake. Between ticks: norms, what stands for attention, and what --check "
        "looks at. The timed run looks at every tick, so it is mostly slower than the rest." + _cut(runs),
    )  # fmt: skip


def bandwidths(runs: Runs, prefix: str) -> Iterator[Picture]:
    """Copies, cold and hot chain as shares of the ceilings that the same run measured."""
    colours = {"copies": ("c2", ""), "cold chain": ("c4", "...."), "hot chain": ("c1", "")}
    bars = {}
    for name, rows in shown(runs).items():
        lines = [(side, row, *engine) for engine in ENGINES for side, row in rows.items()]
        lines = [line for line in lines if line[1]["achieved"][line[3]] and line[1]["ceilings"][line[4]]]
        if lines:
            bars[name] = lines
    if not bars:
        return
    groups = Groups(
        runs, "Bandwidth, of the ceiling in the same run",
        {name: [f"{engine}, {side}" for side, _, engine, *_ in lines] for name, lines in bars.items()}, right=1.3,
    )  # fmt: skip
    told = []
    for name, lines in bars.items():
        for i, (side, row, engine, achieved, ceiling) in enumerate(lines):
            rate, best = row["achieved"][achieved], row["ceilings"][ceiling]
            groups.bar(name, i, 0, 100 * rate / best, *colours[engine])
            text = f"{gb(rate)} of {gb(best)} GB/s"
            groups.said(name, i, 100 * rate / best, text)
            told.append(f"{name}, {engine}, overlap {side}: {text}")
    groups.of_whole("% of the ceiling")
    yield groups.panel.picture(
        f"{prefix}bandwidth", alt=f"Bandwidths. {'; '.join(told)}.",
        caption="Achieved: bytes over the seconds in which they moved or were read; a row counts once, however many "
        "tokens it had. Ceilings: batches of rows of this size; reads by the cold chain's threads; reads of device "
        "memory. " + above_said(runs) + _cut(runs),
    )  # fmt: skip


def gb(rate: float | None) -> str:
    """Bytes per second in GB/s."""
    return metrics.DASH if rate is None else metrics.number(rate / 1e9)


def above_said(runs: Runs) -> str:
    """How more than a ceiling can be: rows come from a cache that it was measured without, or others were at work."""
    above = any(
        (row["achieved"][achieved] or 0) > (row["ceilings"][ceiling] or float("inf"))
        for row in runs.rows
        for _, achieved, ceiling in ENGINES
    )
    if not above:
        return ""
    stored, cache = (runs.first["ceilings"].get(name) for name in ("store_bytes", "l3_bytes"))
    if stored and cache and stored < 4 * cache:
        sizes = f"{metrics.size(stored)} of rows and {metrics.size(cache)} of L3 cache"
        return f"More than 100 %: with {sizes} many rows are read from the cache. "
    return "More than 100 %: something else used the machine while the ceiling was measured. "


def drops(runs: Runs, prefix: str) -> Iterator[Picture]:
    """What became of predictions, drops by their reason."""
    rows = {name: next(iter(sides.values())) for name, sides in shown(runs).items()}
    rows = {name: row for name, row in rows.items() if row["predictions"]}
    if not rows:
        return
    used = [one for one in OUTCOMES if any(row[counter] for row in rows.values() for counter in one[1])]
    groups = Groups(
        runs, "What became of predictions", {name: [""] for name in rows}, legend=[one[0] for one in used], right=0.3,
    )  # fmt: skip
    told = []
    for name, row in rows.items():
        start, words = 0.0, []
        for word, counters, colour, hatch in used:
            length = 100 * metrics.ratio(sum(row[counter] for counter in counters), row["predictions"])
            groups.bar(name, 0, start, length, colour, hatch)
            start += length
            words.append(f"{word} {length:.1f} %")
        told.append(f"{name}: {', '.join(words)}")
    groups.axes.set_xlim(0, 100)
    groups.axes.set_xlabel("% of predictions considered")
    groups.panel.legend(patches([(word, colour, hatch) for word, _, colour, hatch in used]))
    yield groups.panel.picture(
        f"{prefix}drops", alt=f"What became of predictions. {'; '.join(told)}.",
        caption="Drops are predictions that were refused a slot: nothing was copied for them. Overlap on and off "
        "decide alike, so one bar stands for both." + _cut(runs),
    )  # fmt: skip
