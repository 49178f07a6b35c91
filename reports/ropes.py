"""What lies on each other in a figure: lines become a rope, their colours and markers by turns, and marks a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

NEAR = 0.01  # of the height of all lines: closer than this for their whole length, two of them look like one
MARK = 0.025, 0.035  # of the width and the height of a figure: closer marks cover each other
DASH = 6  # of a rope's colours, in line widths


def look_alikes(lines: Sequence[Any]) -> list[list[int]]:
    """Groups of lines (equally long rows of values, nan where there is none), each near the first of its group."""
    values = np.array(lines, dtype=float)
    near = NEAR * (np.nanmax(values) - np.nanmin(values)) if not np.isnan(values).all() else 0
    groups: list[list[int]] = []
    for i, line in enumerate(values):
        for group in groups:
            if np.all(np.isnan(line - values[group[0]]) | (abs(line - values[group[0]]) <= near)):
                group.append(i)
                break
        else:
            groups.append([i])
    return groups


def roped(lines: Sequence[Any]) -> list[dict[str, Any]]:
    """What to change in the look of each line: nothing if it lies alone, else its dashes and markers by turns."""
    out: list[dict[str, Any]] = [{} for _ in lines]
    for group in look_alikes(lines):
        n, points = len(group), len(lines[group[0]])
        for turn, i in enumerate(group if n > 1 else []):
            dashes = ((n - turn) * DASH, (DASH, (n - 1) * DASH))
            out[i] = {
                "linestyle": dashes if turn else "-",
                "zorder": 2 + 0.1 * turn / n,
                "markevery": (turn % points, n),
            }
    return out


def told(lines: Sequence[Any], names: Sequence[str]) -> str:
    """A sentence about the ropes, '' if there is none."""
    ropes = [[names[i] for i in group] for group in look_alikes(lines) if len(group) > 1]
    return (
        " Lines of alternating colours lie on each other: "
        + "; ".join(f"{', '.join(rope[:-1])} and {rope[-1]}" for rope in ropes)
        + "."
        if ropes
        else ""
    )


def side_by_side(marks: Mapping[Any, tuple[float, float]]) -> dict[Any, tuple[tuple[float, float], float]]:
    """Where to draw each mark, and how far aside in its own widths: those that would cover each other form a row."""
    width, height = (max(along) - min(along) for along in zip(*marks.values(), strict=True))
    rows: dict[tuple[float, float], list[Any]] = {}
    for name, (x, y) in marks.items():
        near = (at for at in rows if abs(x - at[0]) <= MARK[0] * width and abs(y - at[1]) <= MARK[1] * height)
        rows.setdefault(next(near, (x, y)), []).append(name)
    return {name: (at, i - (len(row) - 1) / 2) for at, row in rows.items() for i, name in enumerate(row)}
