"""Figures of what happens inside a run: by layer, along the steps, by phase."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from . import metrics
from .charts import against_size
from .curves import curves_of, ranked
from .heatmaps import heatmap
from .ropes import roped, told
from .rows import Row
from .sections import Section, base_name, size_of
from .style import LIGHT, Panel, Picture, bound_name, first_of, look_of, short

MOST = 12  # policies of a map
LINES, WINDOWS = 6, 30  # policies and marks that a time series bears
PHASES = {
    "prefill": "A prefill step carries many tokens and demands an expert once: its rate does not compare with decode.",
    "decode": "Steps of decode alone.",
}
OF_ONE_PHASE = " Opt makes the fewest misses over the whole run; it does not bound one phase by itself."
EDGE = {"markeredgecolor": LIGHT["paper"], "markeredgewidth": 0.3}
Counts = dict[str, np.ndarray]


def layers(section: Section, prefix: str) -> Iterator[Picture]:
    """Heatmaps of hit rate: layers by policies at one size, layers by sizes for the winner."""
    plain, size = section.plain, section.shown
    every, at = ranked(section, size, plain), section.look_name(plain)
    rows = every[:MOST]
    if section.first["n_layers"] < 2 or not rows:
        return
    winner = rows[0]["policy"]
    bound = section.row(section.bound, size, plain)
    word = "bound" if section.first["phase"] == "all" else "whole run"
    by_policy = {
        f"{row['policy']} ({word})" if row is bound else row["policy"]: row for row in ([bound] if bound else []) + rows
    }
    if len(by_policy) > 1:
        yield heatmap(
            section, f"{prefix}layers", f"Hit rate by layer, {section.where(size)}",
            {name: metrics.hit_rate(row["by_layer"]) for name, row in by_policy.items()}, ylabel="", note=at,
            caption=f"At {at}. A layer that is low in every line, the bound's too, is hard for any policy. "
            "What it does with more slots than the others, `slotwise.replay(..., slots=[one number per layer])` says."
            + first_of(len(rows), len(every), "policies"),
        )  # fmt: skip
    by_size = {str(at): row for at in section.sizes if (row := section.row(winner, at, plain))}
    if len(by_policy) > 1 and len(by_size) == 1:
        return  # the one line is in the other map
    yield heatmap(
        section, f"{prefix}layers-slots", f"Hit rate by layer and slots, {short(winner, 30)}",
        {name: metrics.hit_rate(row["by_layer"]) for name, row in by_size.items()},
        ylabel=f"slots {section.pool_word}", note=at,
        caption=f"The winner at {section.where(size)}, at every size.",
    )  # fmt: skip


def warmup(section: Section, prefix: str) -> Iterator[Picture]:
    """Hit rate in windows of steps, by policy and by size, and how the pool fills."""
    plain, size = section.plain, section.shown
    rows, note, styles = ranked(section, size, plain), section.look_name(plain), look_of(section)
    if not rows or len(rows[0]["along"]["first_step"]) < 3:
        return
    winner = rows[0]["policy"]
    chosen = rows[:LINES] + [row for row in rows[LINES:] if row["policy"] == section.reference]
    if bound := section.row(section.bound, size, plain):
        chosen = [bound, *chosen]
    names = {bound_name(row["policy"], row["phase"]) if row is bound else short(row["policy"]): row for row in chosen}
    yield _along(
        section, f"{prefix}warm-up", f"Hit rate along the run, {section.where(size)}",
        {name: (row, {**styles[row["policy"]], "markersize": 3.5}) for name, row in names.items()}, _hit_rate,
        note=note, caption="Each mark is the rate within its own window of steps, not since the start: a cumulative "
        "rate would hide where it levels off." + first_of(len(names) - bool(bound), len(rows), "policies"),
    )  # fmt: skip
    lines = _by_size(section, winner)
    if len(lines) > 1:
        downwards = dict(reversed(lines.items()))  # as the lines lie
        yield _along(
            section, f"{prefix}warm-up-slots", f"Hit rate along the run by slots, {short(winner, 28)}", downwards,
            _hit_rate, note=note, caption=f"The winner at {section.where(size)}, at every size.",
        )  # fmt: skip
    if all(row["phase"] == "all" and row["slots"] != 0 for row, _ in lines.values()):
        yield _along(
            section, f"{prefix}occupancy", f"Slots in use, {short(winner, 40)}", lines, _in_use(section), note=note,
            label="slots in use, %", top=103,
            caption="At the end of each window, all layers together. A pool is warm when it is full. " + (
                "This policy refuses loads, so slots stay free although there are misses."
                if "+gate" in winner or base_name(winner) == "static"
                else "One that never fills is larger than this trace asks for."
            ),
        )  # fmt: skip


def phases(section: Section, prefix: str) -> Iterator[Picture]:
    """Hit rate against slots in prefill and in decode, if the trace has both."""
    found = [phase for phase in PHASES if any(row["by_phase"][phase]["hits"] for row in section.rows)]
    for phase in found if len(found) == 2 else []:
        curves = curves_of(
            section, section.plain, lambda row, phase=phase: metrics.hit_rate(row["by_phase"][phase]), bounds=True
        )
        yield against_size(
            section, f"{prefix}{phase}", f"Hit rate in {phase}, {section.look_name(section.plain)}", curves,
            label=f"hit rate, % of demands in {phase}", ylim=(None, 106), cycle_at="top",
            caption=PHASES[phase] + OF_ONE_PHASE * bool(section.bound),
        )  # fmt: skip


def _by_size(section: Section, policy: str) -> dict[str, tuple[Row, dict[str, Any]]]:
    """Lines of one policy at up to eight sizes, dark (few slots) to bright."""
    import matplotlib

    sizes = section.sizes
    if len(sizes) > 8:
        sizes = [sizes[round(i * (len(sizes) - 1) / 7)] for i in range(8)]
    shades = matplotlib.colormaps["viridis"](np.linspace(0.1, 0.85, len(sizes)))
    rows = [section.row(policy, size, section.plain) for size in sizes]
    return {
        f"{size} slots": (row, {"color": shade, "marker": marker, "markersize": 3.5, **EDGE})
        for size, row, shade, marker in zip(sizes, rows, shades, "os^DvPX<", strict=False)
        if row
    }  # fmt: skip


def _windows(row: Row) -> tuple[np.ndarray, np.ndarray, Counts]:
    """(middle and end of each window in steps, counts in it), neighbours summed until at most WINDOWS are left."""
    along = row["along"]
    first = along["first_step"]
    starts = np.arange(0, len(first), -(-len(first) // WINDOWS))
    last = min(int(first[-1] + along["window_steps"]), row["steps"] or row["n_steps"])
    ends = np.append(first[starts[1:]], max(last, int(first[-1]) + 1))
    counts = {name: along[name] for name in metrics.COUNTERS}
    return (first[starts] + ends) / 2, ends, {name: np.add.reduceat(values, starts) for name, values in counts.items()}


def _hit_rate(counts: Counts, row: Row) -> np.ndarray:
    return 100 * metrics.hit_rate(counts)


def _in_use(section: Section) -> Callable[[Counts, Row], np.ndarray]:
    """Slots taken at the end of each window, in per cent: fills so far less everything that left."""
    pools = 1 if section.first["scope"] == "global" else section.first["n_layers"]

    def share(counts: Counts, row: Row) -> np.ndarray:
        held = np.cumsum(counts["fills"] - counts["evictions"] - counts["invalidated"] - counts["discarded"])
        return 100 * metrics.ratio(held, pools * size_of(row).slots)

    return share


def _along(
    section: Section, name: str, title: str, lines: dict[str, tuple[Row, dict[str, Any]]],
    value: Callable[[Counts, Row], np.ndarray], *, note: str, caption: str,
    label: str = "hit rate in the window, %", top: float | None = None,
) -> Picture:  # fmt: skip
    from matplotlib.lines import Line2D

    panel = Panel(section, title, legend=list(lines))
    found = [(_windows(row), row) for row, _ in lines.values()]
    values = [value(counts, row) for (_, _, counts), row in found]
    marked = {text: y for (text, (_, style)), y in zip(lines.items(), values, strict=True) if "marker" in style}
    if len({len(y) for y in marked.values()}) > 1:
        marked = {}
    ropes = dict(zip(marked, roped(list(marked.values())), strict=True))
    handles, said = [], []
    for (text, (_, style)), ((middles, ends, _), _), y in zip(lines.items(), found, values, strict=True):
        panel.axes.plot(ends if top else middles, y, **{**style, **ropes.get(text, {"zorder": 3})})
        handles.append(Line2D([], [], label=text, **style))
        said.append(f"{text}: {y[0]:.1f} % at first, {y[len(y) // 2]:.1f} % half-way, {y[-1]:.1f} % at the end")
    panel.axes.set_xlim(0, None)
    if top:
        panel.axes.set_ylim(0, top)
    panel.axes.set_xlabel("step (one forward pass of the model)")
    panel.axes.set_ylabel(label)
    panel.legend(handles)
    return panel.picture(
        name, alt=f"{title}. {'; '.join(said)}.", note=note, caption=caption + told(list(marked.values()), list(marked))
    )
