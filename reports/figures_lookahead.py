"""Figures of look-ahead: what it gains, what it costs, and what became of the predictions."""

from __future__ import annotations

import math
from collections.abc import Iterator

from . import metrics
from .charts import against_size, stacks
from .curves import base_row, curves_of, drawn_looks, less, ranked, slug, whole
from .ropes import roped, told
from .rows import Row
from .sections import Section
from .style import Panel, Picture, look_of, short

# What became of a prediction: name, its counters, colour, hatch. `redundant` and `invalid` close the sum.
OUTCOMES = [
    ("loaded, hit", ("prefetch_hits",), "good", ""),
    ("loaded, used late", ("used_late",), "fair", "////"),
    ("loaded, wasted", ("wasted",), "bad", ""),
    ("loaded, unresolved", ("unresolved",), "grey2", "...."),
    ("dropped: guard", ("dropped_guard",), "c3", ""),
    ("dropped: no victim", ("dropped_no_victim",), "c6", "////"),
    ("dropped: throttle", ("dropped_throttle", "failed_prediction"), "c4", "xxxx"),
    ("redundant", ("redundant",), "pale", ""),
    ("invalid", ("invalid",), "grey4", ""),
]
HITS = [("demand hits", "grey1", ""), ("prefetch hits", "good", ""), ("used late (a miss)", "fair", "////")]
MOST_BARS = 24


def lookahead(section: Section, prefix: str) -> Iterator[Picture]:
    """Nothing if only width 0 was run."""
    wide = [look for look in section.looks if look.width]
    if wide and not section.plain.width:
        yield from _gain_and_cost(section, prefix)
    if len(section.looks) > 2 and len({look.width for look in section.looks}) == len(section.looks):
        yield from _by_width(section, prefix)
    if wide:
        yield from _fates(section, prefix)


def _gain_and_cost(section: Section, prefix: str) -> Iterator[Picture]:
    loads = whole(metrics.loads_per_token)
    for look in (look for look in drawn_looks(section) if look.width):
        at, name = section.look_name(look), slug(section, look)

        def before(rate):
            return lambda policy, size: rate(row) if (row := base_row(section, policy, size)) else None

        gain = less(curves_of(section, look, metrics.hit_rate), before(metrics.hit_rate))
        cost = less(curves_of(section, look, loads), before(loads))
        if gain:
            yield against_size(
                section, f"{prefix}gain-{name}", f"Hit rate gained by look-ahead, {at}", gain,
                unit="points", label="points of hit rate over width 0",
                caption="Against the same policy without look-ahead. Below zero, predictions push out what is needed.",
            )  # fmt: skip
            yield against_size(
                section, f"{prefix}cost-{name}", f"Loads added by look-ahead, {at}", cost,
                unit="", label="rows per token over width 0",
                caption="Rows copied beyond those of the same policy without look-ahead: the price of the gain.",
            )  # fmt: skip


def _by_width(section: Section, prefix: str) -> Iterator[Picture]:
    """Hit rate and loads against width at the shown size; a guarded policy starts from its plain form."""
    from matplotlib.lines import Line2D

    size, styles = section.shown, look_of(section)
    for name, title, rate, scale, label in (
        ("widths", "Hit rate against width", metrics.hit_rate, 100, "hit rate, % of demands"),
        ("widths-loads", "Loads against width", whole(metrics.loads_per_token), 1, "rows loaded per token"),
    ):
        lines = {}
        for policy in section.policies:
            found = {look.width: section.row(policy, size, look) for look in section.looks if look.width}
            found = {0: base_row(section, policy, size)} | found if not section.plain.width else found
            if points := [(width, scale * rate(row)) for width, row in found.items() if row]:
                lines[policy] = points
        lines = dict(sorted(lines.items(), key=lambda line: -line[1][-1][1]))
        panel = Panel(section, f"{title}, {section.where(size)}", legend=list(map(short, lines)))
        widths = sorted({width for points in lines.values() for width, _ in points})
        rows = [[dict(points).get(width, math.nan) for width in widths] for points in lines.values()]
        for (policy, points), rope in zip(lines.items(), roped(rows), strict=True):
            panel.axes.plot(*zip(*points, strict=True), **{**styles[policy], **rope})
        handles = [Line2D([], [], label=short(policy), **styles[policy]) for policy in lines]
        panel.axes.set_xticks([look.width for look in section.looks])
        panel.axes.set_xlabel("width: predictions considered per token and layer")
        panel.axes.set_ylabel(label)
        panel.legend(handles)
        said = "; ".join(
            f"{policy}: " + ", ".join(f"{metrics.number(y)} at {x}" for x, y in points)
            for policy, points in lines.items()
        )
        yield panel.picture(
            f"{prefix}{name}",
            alt=f"{panel.title}. {said}.",
            caption="What a wider look-ahead buys, and beside it what it costs." + told(rows, list(lines)),
        )


def _outcomes(row: Row) -> list[int]:
    return [sum(row[counter] for counter in counters) for _, counters, _, _ in OUTCOMES]


def _fates(section: Section, prefix: str) -> Iterator[Picture]:
    wide = [look for look in section.looks if look.width][:MOST_BARS]
    bars: dict[str, Row] = {}
    for look in wide:
        for row in ranked(section, section.shown, look)[: max(1, MOST_BARS // len(wide))]:
            bars[
                row["policy"]
                if len(wide) == 1
                else f"{row['policy']} · {section.look_name(look).removeprefix('width ')}"
            ] = row
    if not bars:
        return
    where = section.where(section.shown) + (f", {section.look_name(wide[0])}" if len(wide) == 1 else "; policy · width")
    counters = ("hits_demand", "prefetch_hits", "used_late")
    yield stacks(
        section, f"{prefix}hits", "Where hits come from",
        {name: [100 * metrics.ratio(row[c], row["demands"]) for c in counters] for name, row in bars.items()},
        HITS, label="% of demands", note=where,
        caption=f"At {where}. A prefetch hit is the first demand of a row that look-ahead brought; its later hits are "
        "demand hits. A row still on its way is used late: a miss.",
    )  # fmt: skip
    yield stacks(
        section, f"{prefix}predictions", "What became of predictions",
        {name: [metrics.ratio(n, metrics.tokens_of(row, row)) for n in _outcomes(row)] for name, row in bars.items()},
        [(name, colour, hatch) for name, _, colour, hatch in OUTCOMES],
        label="predictions per token, all layers", note=where,
        caption=f"At {where}. Only what is loaded moves bytes. Redundant: already resident or on its way.",
    )  # fmt: skip
