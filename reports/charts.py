"""The kinds of chart that most figures are made of: values against pool size, and stacked bars."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from . import metrics
from .ropes import NEAR, roped, told
from .sections import Section, Size
from .style import LIGHT, Panel, Picture, bound_name, inches, look_of, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curves = Mapping[str, Mapping[Size, float]]  # policy -> size -> value
Spans = Mapping[str, Mapping[Size, Sequence[float]]]  # policy -> size -> lower and upper end
ROW = 34  # letters of a row's label
SIDE = 2.2  # points between the intervals of two lines
SPAN = {"linewidth": 0.9, "marker": "_", "markersize": 3.5, "markeredgewidth": 0.9, "zorder": 2.5}


def against_size(
    section: Section, name: str, title: str, curves: Curves, *, unit: str = "%", label: str, caption: str,
    ylim: tuple[float | None, float | None] = (None, None), bytes_per_unit: float | None = None, cycle_at: str = "",
    spans: Spans | None = None, note: str = "",
) -> Picture:  # fmt: skip
    """Values against pool size, one line per policy, VRAM on top; bars if there is one size only.

    Args:
        curves: in shares for unit "%" and "points"; the latter are differences and show the zero line.
        bytes_per_unit: adds a right-hand axis in bytes, if loads are proportional to bytes.
        cycle_at: where the label of the token cycle disturbs least, "top" or "bottom"; "" writes none.
        spans: intervals, in the unit of the axis, drawn side by side at the lines.
        note: joins the foot.
    """
    from matplotlib.lines import Line2D
    from matplotlib.transforms import offset_copy

    scale = 100 if unit in ("%", "points") else 1
    sizes = [size for size in section.sizes if any(size in curve for curve in curves.values())]
    order = _from_the_right(curves, sizes)
    alt = f"{title}. {_told(section, curves, order, unit, sizes)}"
    if len(sizes) == 1:
        values = {policy: curves[policy][sizes[0]] * scale for policy in order}
        where = section.where(sizes[0])
        ends = {policy: at[sizes[0]] for policy, at in (spans or {}).items() if sizes[0] in at}
        return _bars(
            section, name, title, values, label=label, caption=caption, alt=alt, unit=unit, where=where, ends=ends,
            note=note,
        )  # fmt: skip
    styles = look_of(section, curves)
    names = [
        bound_name(policy, section.first["phase"]) if "marker" not in styles[policy] else short(policy)
        for policy in order
    ]
    known = any(size.pool_bytes is not None for size in sizes)
    panel = Panel(section, title, legend=names, top=0.75 if known else 0.52, right=0.75 if bytes_per_unit else 0.22)
    axes, handles = panel.axes, []
    ranked = [policy for policy in order if "marker" in styles[policy]]
    lines = [[curves[policy].get(size, math.nan) * scale for size in sizes] for policy in ranked]
    ropes = dict(zip(ranked, roped(lines), strict=True))
    for policy, text in zip(order, names, strict=True):
        points = [(size.slots, curves[policy][size] * scale) for size in sizes if size in curves[policy]]
        axes.plot(
            *zip(*points, strict=True),
            **{"zorder": 2 if policy in ropes else 3, **styles[policy], **ropes.get(policy, {})},
        )
        handles.append(Line2D([], [], label=text, **styles[policy]))
    for i, (policy, ends) in enumerate((spans or {}).items()):
        aside = offset_copy(axes.transData, panel.figure, SIDE * (i - (len(spans or {}) - 1) / 2), units="points")
        for size, (low, high) in ends.items():
            axes.plot((size.slots, size.slots), (low, high), transform=aside, **SPAN, color=styles[policy]["color"])
            axes.update_datalim([(size.slots, low), (size.slots, high)])
    axes.autoscale_view()
    if sizes[0].slots > 0 and sizes[-1].slots / sizes[0].slots >= 40:
        axes.set_xscale("log", base=2)
    _size_axes(panel, section, sizes)
    axes.set_ylabel(label)
    if unit == "points":
        axes.axhline(0, color=LIGHT["ink"], linewidth=1.0, zorder=1.5)
    axes.set_ylim(*ylim)
    if unit == "" and all(value >= 0 for curve in curves.values() for value in curve.values()):
        axes.set_ylim(bottom=0)
    if cycle_at and ylim[1] is None:  # room for its label
        low, high = axes.get_ylim()
        axes.set_ylim(top=high + 0.06 * (high - low))
    _mark_cycle(axes, section, cycle_at)
    if bytes_per_unit:
        mib = bytes_per_unit / 2**20
        other = axes.secondary_yaxis(
            "right", functions=(lambda loads: np.multiply(loads, mib), lambda moved: np.divide(moved, mib))
        )
        other.set_ylabel("MiB moved per token")
        other.spines["right"].set_visible(False)
    panel.legend(handles)
    return panel.picture(name, alt=alt, caption=caption + told(lines, ranked), note=note)


def _from_the_right(curves: Curves, sizes: Sequence[Size]) -> list[str]:
    """Policies from the highest line to the lowest at the right edge, where the eye leaves the lines for the legend.

    Lines that are one there to the eye are told apart by the next size to the left.
    """
    known = [value for curve in curves.values() for value in curve.values() if value == value]
    step = NEAR * (max(known, default=0) - min(known, default=0)) or 1
    places = {
        policy: [
            round(value / step) if (value := curve.get(size, math.nan)) == value else -math.inf
            for size in reversed(sizes)
        ]
        for policy, curve in curves.items()
    }
    return sorted(curves, key=lambda policy: [-place for place in places[policy]])


def _mark_cycle(axes: Axes, section: Section, at: str) -> None:
    """A dotted line at one token cycle, if it is in sight, with a level label on its roomier side."""
    low, high = axes.get_xlim()
    if not low < section.cycle_slots < high:
        return
    axes.axvline(section.cycle_slots, color=LIGHT["grey2"], linewidth=1.0, linestyle=(0, (1, 2)), zorder=1)
    if at:
        cycle, left = section.first["token_cycle_bytes"], axes.transAxes.inverted().transform(
            axes.transData.transform((section.cycle_slots, axes.get_ylim()[0])))[0] < 0.5  # fmt: skip
        text = "one token cycle" + (f", T = {metrics.size(cycle)}" if cycle else "")
        axes.annotate(
            text, (section.cycle_slots, int(at == "top")), xycoords=("data", "axes fraction"),
            xytext=(3 if left else -3, -2 if at == "top" else 2), textcoords="offset points",
            va=at, ha="left" if left else "right", fontsize=7, color=LIGHT["muted"],
        )  # fmt: skip


def _size_axes(panel: Panel, section: Section, sizes: Sequence[Size]) -> None:
    """Slots below, VRAM above: a tick at each size that was run, labelled as far as the labels fit."""
    axes = panel.axes
    low, high = axes.get_xlim()
    log = axes.get_xscale() == "log"
    if not log:
        axes.set_xlim(0, high)
    (low, high), at = axes.get_xlim(), (math.log2 if log else float)
    places = [panel.width_in * (at(size.slots) - at(low)) / (at(high) - at(low)) for size in sizes]
    ticks = [size.slots for size in sizes]
    axes.set_xticks(ticks, _fitting([str(size) for size in sizes], places, 9))
    axes.minorticks_off()
    axes.set_xlabel(f"slots {section.pool_word} (of {section.keys} experts)")
    top = axes.secondary_xaxis("top")
    top.spines["top"].set_visible(False)
    if all(size.pool_bytes is None for size in sizes):
        top.set_xticks([])
        top.set_xlabel(no_vram(section), fontsize=8, color=LIGHT["muted"])
        return
    top.set_xticks(ticks, _fitting([metrics.size(size.pool_bytes) for size in sizes], places, 8), fontsize=8)
    top.set_xlabel("pool VRAM, all layers together", fontsize=8)


def no_vram(section: Section) -> str:
    """Why no bytes stand at the sizes: rows may be of known but different sizes, in a pool of slots for any of them."""
    return f"pool VRAM: {'rows differ in size' if section.first['token_cycle_bytes'] else 'row size unknown'}"


def _fitting(labels: Sequence[str], places: Sequence[float], points: float) -> list[str]:
    """The labels that fit side by side at `places`, from the last down; "" for the others. Inches throughout."""
    out, free = [], math.inf
    for text, place in zip(reversed(labels), reversed(places), strict=True):
        half = inches(text, points) / 2
        fits = place + half <= free
        out.append(text if fits else "")
        free = place - half - 0.07 if fits else free
    return out[::-1]


def _bars(
    section: Section, name: str, title: str, values: dict[str, float], *,
    label: str, caption: str, alt: str, unit: str, where: str, ends: Mapping[str, Sequence[float]], note: str,
) -> Picture:  # fmt: skip
    """One bar per policy with its value written at the end."""
    styles = look_of(section, values)
    names = [
        bound_name(policy, section.first["phase"]) if "marker" not in styles[policy] else short(policy, ROW)
        for policy in values
    ]
    panel = Panel(section, title, height=0.27 * len(values) + 0.1, left=margin(names), right=0.62)
    axes = panel.axes
    axes.barh(
        range(len(values)), list(values.values()), height=0.66, color=[styles[policy]["color"] for policy in values]
    )
    write = {"points": lambda value: metrics.points(value / 100), "%": lambda value: metrics.percent(value / 100)}
    for y, (policy, value) in enumerate(values.items()):
        span = ends.get(policy, ())
        axes.plot(span, [y] * len(span), **SPAN | {"color": LIGHT["ink"], "marker": "|", "markersize": 6})
        text, side = write.get(unit, metrics.number)(value), -1 if value < 0 else 1
        axes.annotate(
            text, (max([0 if metrics.unknown(value) else value, *span]), y), xytext=(3 * side, 0),
            textcoords="offset points", va="center", ha="left" if side > 0 else "right", fontsize=8,
        )  # fmt: skip
    low, high = axes.get_xlim()
    axes.set_xlim(low * 1.25 if low < 0 else low, high)
    axes.set_yticks(range(len(values)), names, fontsize=8)
    axes.set_ylim(-0.6, len(values) - 0.4)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(label)
    return panel.picture(name, alt=alt, caption=f"At {where}. {caption}", note=f"{where} · {note}" if note else where)


def stacks(
    section: Section,
    name: str,
    title: str,
    bars: Mapping[str, Sequence[float]],
    parts: Sequence[tuple[str, str, str]],
    *,
    label: str,
    caption: str,
    note: str = "",
) -> Picture:
    """Stacked bars. `bars`: label -> value per part; `parts`: (name, colour, hatch), left out if zero in every bar."""
    from matplotlib.patches import Patch

    used = [i for i in range(len(parts)) if any(values[i] > 0 for values in bars.values())] or [0]
    legend = [parts[i][0] for i in used]
    names = [short(text, ROW) for text in bars]
    panel = Panel(section, title, height=0.25 * len(bars) + 0.1, legend=legend, left=margin(names))
    axes, handles, start = panel.axes, [], np.zeros(len(bars))
    for i in used:
        text, colour, hatch = parts[i]
        length = np.array([values[i] for values in bars.values()])
        how = {"facecolor": LIGHT[colour], "hatch": hatch or None, "edgecolor": LIGHT["paper"], "linewidth": 0.4}
        axes.barh(range(len(bars)), length, left=start, height=0.72, **how)
        handles.append(Patch(label=text, **how))
        start = start + length
    axes.set_yticks(range(len(bars)), names, fontsize=7.5)
    axes.set_ylim(-0.6, len(bars) - 0.4)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(label)
    panel.legend(handles)
    told = "; ".join(
        f"{bar}: " + ", ".join(f"{parts[i][0]} {metrics.number(values[i])}" for i in used)
        for bar, values in list(bars.items())[:8]
    )
    return panel.picture(name, alt=f"{title}, {label}. {told}.", caption=caption, note=note)


def margin(names: Iterable[str], ylabel: str = "") -> float:
    """Inches that row labels need on the left."""
    return 0.2 + max((inches(name, 8) for name in names), default=0) + (0.2 if ylabel else 0)


def _told(section: Section, curves: Curves, order: Sequence[str], unit: str, sizes: Sequence[Size]) -> str:
    """The values at the shown size, best first, for the alternative text."""
    write = {"%": metrics.percent, "points": lambda value: f"{metrics.points(value)} points"}.get(unit, metrics.number)
    at = section.shown if section.shown in sizes else sizes[0]
    told = [f"{policy} {write(curves[policy][at])}" for policy in order if at in curves[policy]]
    return f"At {section.where(at)}: {', '.join(told)}."
