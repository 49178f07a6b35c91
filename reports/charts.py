"""The kinds of chart that the figures are made of: values against pool size, stacked bars, heatmaps by layer."""

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
ROW = 34  # letters of a row's label
HEAT = "cividis"  # even in lightness, and the same to colour-blind readers


def against_size(
    section: Section, name: str, title: str, curves: Curves, *, unit: str = "%", label: str, caption: str,
    ylim: tuple[float | None, float | None] = (None, None), bytes_per_unit: float | None = None, cycle_at: str = "",
) -> Picture:  # fmt: skip
    """Values against pool size, one line per policy, VRAM on top; bars if there is one size only.

    Args:
        curves: in shares for unit "%" and "points"; the latter are differences and show the zero line.
        bytes_per_unit: adds a right-hand axis in bytes, if loads are proportional to bytes.
        cycle_at: where the label of the token cycle disturbs least, "top" or "bottom"; "" writes none.
    """
    from matplotlib.lines import Line2D

    scale = 100 if unit in ("%", "points") else 1
    sizes = [size for size in section.sizes if any(size in curve for curve in curves.values())]
    order = _from_the_right(curves, sizes)
    alt = f"{title}. {_told(section, curves, order, unit, sizes)}"
    if len(sizes) == 1:
        values = {policy: curves[policy][sizes[0]] * scale for policy in order}
        where = section.where(sizes[0])
        return _bars(section, name, title, values, label=label, caption=caption, alt=alt, unit=unit, where=where)
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
    return panel.picture(name, alt=alt, caption=caption + told(lines, ranked))


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
    label: str, caption: str, alt: str, unit: str, where: str,
) -> Picture:  # fmt: skip
    """One bar per policy with its value written at the end."""
    styles = look_of(section, values)
    names = [
        bound_name(policy, section.first["phase"]) if "marker" not in styles[policy] else short(policy, ROW)
        for policy in values
    ]
    panel = Panel(section, title, height=0.27 * len(values) + 0.1, left=_margin(names), right=0.62)
    axes = panel.axes
    axes.barh(
        range(len(values)), list(values.values()), height=0.66, color=[styles[policy]["color"] for policy in values]
    )
    write = {"points": lambda value: metrics.points(value / 100), "%": lambda value: metrics.percent(value / 100)}
    for y, value in enumerate(values.values()):
        text, side = write.get(unit, metrics.number)(value), -1 if value < 0 else 1
        axes.annotate(
            text, (0 if metrics.unknown(value) else value, y), xytext=(3 * side, 0), textcoords="offset points",
            va="center", ha="left" if side > 0 else "right", fontsize=8,
        )  # fmt: skip
    low, high = axes.get_xlim()
    axes.set_xlim(low * 1.25 if low < 0 else low, high)
    axes.set_yticks(range(len(values)), names, fontsize=8)
    axes.set_ylim(-0.6, len(values) - 0.4)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(label)
    return panel.picture(name, alt=alt, caption=f"At {where}. {caption}", note=where)


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
    panel = Panel(section, title, height=0.25 * len(bars) + 0.1, legend=legend, left=_margin(names))
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


def heatmap(
    section: Section,
    name: str,
    title: str,
    rows: Mapping[str, np.ndarray],
    *,
    ylabel: str,
    caption: str,
    note: str = "",
) -> Picture:
    """Hit rate by layer (columns) for each of `rows`, which hold one share per layer."""
    values = 100 * np.array(list(rows.values()), dtype=float)
    names = [short(text, ROW) for text in rows]
    panel = Panel(section, title, height=min(4.6, max(0.9, 0.26 * len(rows))), left=_margin(names, ylabel), right=0.75)
    axes: Axes = panel.axes
    known = values[~np.isnan(values)]
    low, high = (known.min(), known.max()) if known.size else (0.0, 100.0)
    mesh = axes.pcolormesh(
        np.ma.masked_invalid(values),
        cmap=HEAT,
        vmin=low,
        vmax=max(high, low + 1),
        edgecolors=LIGHT["paper"],
        linewidth=0.3,
    )
    axes.set_yticks(np.arange(len(rows)) + 0.5, names, fontsize=8)
    n_layers = values.shape[1]
    every = max(1, math.ceil(n_layers * 0.24 / panel.width_in))
    axes.set_xticks(
        np.arange(0, n_layers, every) + 0.5, [str(layer) for layer in range(0, n_layers, every)], fontsize=8
    )
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.tick_params(length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel("MoE layer (from 0)")
    axes.set_ylabel(ylabel, fontsize=8)
    box = axes.get_position()
    bar = panel.figure.colorbar(mesh, cax=panel.figure.add_axes((box.x1 + 0.02, box.y0, 0.018, box.height)))
    bar.set_label("hit rate, %", fontsize=8)
    bar.ax.tick_params(labelsize=7.5)
    bar.outline.set_visible(False)
    told = (
        "; ".join(
            f"{text}: {low:.1f} to {high:.1f} %"
            for text, low, high in zip(rows, np.nanmin(values, 1), np.nanmax(values, 1), strict=True)
        )
        if known.size == values.size
        else ""
    )
    return panel.picture(name, alt=f"{title}, lowest to highest layer. {told}.", caption=caption, note=note)


def _margin(names: Iterable[str], ylabel: str = "") -> float:
    """Inches that row labels need on the left."""
    return 0.2 + max((inches(name, 8) for name in names), default=0) + (0.2 if ylabel else 0)


def _told(section: Section, curves: Curves, order: Sequence[str], unit: str, sizes: Sequence[Size]) -> str:
    """The values at the shown size, best first, for the alternative text."""
    write = {"%": metrics.percent, "points": lambda value: f"{metrics.points(value)} points"}.get(unit, metrics.number)
    at = section.shown if section.shown in sizes else sizes[0]
    told = [f"{policy} {write(curves[policy][at])}" for policy in order if at in curves[policy]]
    return f"At {section.where(at)}: {', '.join(told)}."
