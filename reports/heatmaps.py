"""Hit rates by layer as a map of colours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from .charts import ROW, margin
from .sections import Section
from .style import LIGHT, Panel, Picture, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEAT = "cividis"  # even in lightness, and the same to colour-blind readers


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
    panel = Panel(section, title, height=min(4.6, max(0.9, 0.26 * len(rows))), left=margin(names, ylabel), right=0.75)
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
