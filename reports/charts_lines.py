"""Curves of what was measured, with the spread of each point, against any axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import metrics
from .ropes import roped, told
from .style import DASHES, LIGHT, MARKERS, Panel, Picture, Subject

MOST_TICKS = 9


class Curve(NamedTuple):
    """Points in order of x; `spread` is what the bars at each point reach up and down, empty for none."""

    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] = ()


def curves(
    subject: Subject, name: str, title: str, lines: Mapping[str, Curve], *, labels: tuple[str, str], caption: str,
    log: tuple[bool, bool] = (False, False), ticks: Sequence[float] = (), note: str = "",
) -> Picture:  # fmt: skip
    """`labels` of x and y, `log` which of them is logarithmic, `ticks` where x has its own."""
    from matplotlib.lines import Line2D

    panel = Panel(subject, title, legend=list(lines) if len(lines) > 1 else [])
    axes, handles, said = panel.axes, [], []
    ropes: list[dict[str, Any]] = [{} for _ in lines]
    if len({tuple(line.x) for line in lines.values()}) == 1:
        heights = [np.log(line.y) if log[1] else line.y for line in lines.values()]
        ropes = roped(heights)
        caption += told(heights, list(lines))
    for i, (text, line) in enumerate(lines.items()):
        how = {
            "color": LIGHT[f"c{i % 7}"], "marker": MARKERS[i % len(MARKERS)], "linestyle": DASHES[i // 7 % len(DASHES)],
            "markersize": 4, "markeredgecolor": LIGHT["paper"], "markeredgewidth": 0.4,
        }  # fmt: skip
        bars = _within(line) if log[1] else line.spread
        axes.errorbar(
            line.x, line.y, yerr=bars if len(line.spread) else None, elinewidth=0.9, capsize=2, **how | ropes[i]
        )
        handles.append(Line2D([], [], label=text, **how))
        ends = sorted({0, len(line.x) - 1})
        said.append(f"{text}: " + ", ".join(f"{_said(line, k)} at {metrics.number(line.x[k])}" for k in ends))
    for which, logarithmic in zip("xy", log, strict=True):
        if logarithmic:
            getattr(axes, f"set_{which}scale")("log")
        plain_numbers(getattr(axes, f"{which}axis"), logarithmic=logarithmic)
    if not log[1]:
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]) if any(min(line.y) < 0 for line in lines.values()) else 0)
    if ticks:
        every = -(-len(ticks) // MOST_TICKS)
        axes.set_xticks(ticks[::every], [metrics.number(tick) for tick in ticks[::every]])
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    if len(lines) > 1:
        panel.legend(handles)
    return panel.picture(
        name, alt=f"{title}, {labels[1]} by {labels[0]}. {'; '.join(said)}.", caption=caption, note=note
    )


def _said(line: Curve, k: int) -> str:
    return metrics.number(line.y[k]) + (f" ± {metrics.number(line.spread[k])}" if len(line.spread) else "")


def _within(line: Curve) -> list[list[float]]:
    """Bars that stay above 0, where a logarithm ends."""
    spread = line.spread
    return [[min(s, 0.9 * y) for y, s in zip(line.y, spread, strict=False)], list(spread)]


def plain_numbers(axis: Any, *, logarithmic: bool) -> None:
    """Labels without powers; of a logarithmic axis at 1, 2 and 5 times each power of ten, if these fit."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if logarithmic:
        low, high = axis.get_view_interval()
        axis.set_major_locator(LogLocator(10, subs=(1, 2, 5) if high / low < 200 else (1,), numticks=12))
        axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(FuncFormatter(lambda value, _: metrics.number(value)))
