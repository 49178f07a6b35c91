"""Horizontal bars in groups: what figures of runs are made of, since a configuration's name is longer than a margin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .style import LIGHT, Panel, Subject, inches, short

BEHIND = {"facecolor": LIGHT["paper"], "edgecolor": "none", "pad": 0.8}  # letters that lines pass behind
LINE, HEAD = 0.2, 0.24  # inches of a bar and of a configuration's name above its bars


class Groups:
    """A panel of horizontal bars in groups: a configuration's name above, its bars below, a label beside each."""

    def __init__(self, runs: Subject, title: str, groups: Mapping[str, Sequence[str]], *, legend: Sequence[str] = (),
                 right: float = 0.2):  # fmt: skip
        self.at: dict[tuple[str, int], float] = {}
        heads, labels, down = [], [], 0.0
        for name, lines in groups.items():
            heads.append((name, down + HEAD / 2))
            down += HEAD
            for i, label in enumerate(lines):
                self.at[name, i] = down + LINE / 2
                labels.append((down + LINE / 2, label))
                down += LINE
            down += 0.05
        left = 0.14 + max(inches(label, 8) for _, label in labels) + 0.1
        self.panel = Panel(runs, title, height=down, left=left, right=right, legend=legend)
        axes = self.axes = self.panel.axes
        axes.set_ylim(down, 0)
        axes.set_yticks([y for y, _ in labels], [label for _, label in labels], fontsize=8)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        for name, y in heads:
            axes.annotate(
                short(name, 72), (0, y), xycoords=("axes fraction", "data"), xytext=(2, -1), fontsize=7.8, bbox=BEHIND,
                textcoords="offset points", va="center", fontweight="bold",
            )  # fmt: skip

    def bar(self, group: str, line: int, start: float, length: float, colour: str, hatch: str = "") -> None:
        self.axes.barh(
            self.at[group, line], length, left=start, height=LINE * 0.78, facecolor=LIGHT[colour], hatch=hatch or None,
            edgecolor=LIGHT["paper"], linewidth=0.4,
        )  # fmt: skip

    def said(self, group: str, line: int, value: float, text: str) -> None:
        """A text behind the end of a bar."""
        self.axes.annotate(text, (value, self.at[group, line]), xytext=(4, -0.5), textcoords="offset points",
                           va="center", fontsize=7.5, bbox=BEHIND)  # fmt: skip

    def of_whole(self, label: str, least: float = 100) -> None:
        """Percentages: a line at 100, and an axis from 0 to `least` or further."""
        self.axes.axvline(100, color=LIGHT["ink"], linewidth=1, linestyle=(0, (4, 2)), zorder=1.5)
        self.axes.set_xlim(0, max(least, self.axes.get_xlim()[1]))
        self.axes.set_xlabel(label)


def patches(parts: Sequence[tuple[str, str, str]]) -> list[Any]:
    from matplotlib.patches import Patch

    return [
        Patch(label=name, facecolor=LIGHT[colour], hatch=hatch or None, edgecolor=LIGHT["paper"], linewidth=0.4)
        for name, colour, hatch in parts
    ]
