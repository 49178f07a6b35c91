"""A few ticks of a run along time: the host, both chains and the copies, with overlap above without."""

from __future__ import annotations

from collections.abc import Iterator

from . import metrics
from .figures_measured import COLOURS
from .groups import patches
from .rows import Row
from .runs import Runs
from .style import LIGHT, Panel, Picture, short

TIMELINES, TICKS = 4, 10  # configurations that are drawn, and ticks of each
LANES = ("host", "hot", "cold", "copies")


def timelines(runs: Runs, prefix: str) -> Iterator[Picture]:
    """A few ticks from the middle of the run: the host, both chains and the copies along time, on above off."""
    sides = runs.configurations
    names = [name for name, rows in sides.items() if any(row["stretch"]["ticks"] for row in rows.values())]
    for number, name in enumerate(names[:TIMELINES], 1):
        rows = {side: row for side, row in sides[name].items() if row["stretch"]["ticks"]}
        more = f" The first {TIMELINES} of {len(names)} configurations." if len(names) > TIMELINES else ""
        yield _timeline(runs, f"{prefix}timeline-{number}", name, rows, more)


def _timeline(runs: Runs, file: str, name: str, rows: dict[str, Row], more: str) -> Picture:
    kept = {side: row["stretch"]["ticks"][:TICKS] for side, row in rows.items()}
    late = [("awaited copies", *COLOURS["late_s"])] if any(t["late"] for ticks in kept.values() for t in ticks) else []
    parts = [("policy", "c3", ""), *late, ("merge", "good", ""), ("hot chain", "c1", ""), ("cold chain", "c4", "")]
    parts.append(("copies", "c2", ""))
    how = {
        word: {"facecolor": LIGHT[c], "hatch": h or None, "edgecolor": LIGHT["paper"], "linewidth": 0}
        for word, c, h in parts
    }
    step, first, last = (kept[next(iter(kept))][i][key] for i, key in ((0, "step"), (0, "layer"), (-1, "layer")))
    panel = Panel(
        runs, f"Timeline: step {step}, layers {first} to {last}", height=1.02 * len(rows) + 0.1, left=0.95,
        legend=[part[0] for part in parts], right=0.15,
    )  # fmt: skip
    axes, ticks_at, told = panel.axes, [], []
    end = max(ticks[-1]["at_s"] + ticks[-1]["total_s"] for ticks in kept.values())
    for block, (side, ticks) in enumerate(kept.items()):
        lanes = {lane: block * 5.1 + i + 0.5 for i, lane in enumerate(LANES)}
        ticks_at += [(y, f"{side}: {lane}") for lane, y in lanes.items()]
        for tick in ticks:
            at = tick["at_s"]
            ended = at + tick["total_s"]
            axes.vlines(1e3 * at, block * 5.1, block * 5.1 + 4, color=LIGHT["grey2"], linewidth=0.6, zorder=1)
            spans = [
                ("host", "policy", at, tick["policy_s"]),
                ("host", "merge", ended - tick["merge_s"], tick["merge_s"]),
                *(("host", "awaited copies", span["at_s"], span["seconds"]) for span in tick["late"]),
                *(("hot", "hot chain", span["at_s"], span["seconds"]) for span in tick["hot"]),
                *(("cold", "cold chain", span["at_s"], span["seconds"]) for span in tick["cold"]),
            ]  # fmt: skip
            for lane, word, begins, seconds in spans:
                if seconds:
                    axes.broken_barh([(1e3 * begins, 1e3 * seconds)], (lanes[lane] - 0.38, 0.76), **how[word])
        stop = ticks[-1]["at_s"] + ticks[-1]["total_s"]
        copies = [copy for copy in rows[side]["stretch"]["copies"] if copy["at_s"] < stop]
        spans = [(1e3 * max(0, c["at_s"]), 1e3 * min(c["seconds"], stop - c["at_s"])) for c in copies]
        axes.broken_barh(spans, (lanes["copies"] - 0.38, 0.76), **how["copies"])
        told.append(f"overlap {side}: {len(ticks)} ticks in {metrics.number(1e3 * stop)} ms, {len(copies)} copies")
    axes.set_xlim(0, 1e3 * end)
    axes.set_ylim(5.1 * len(rows) - 1, -0.1)
    axes.set_yticks([y for y, _ in ticks_at], [label for _, label in ticks_at], fontsize=7.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False)
    axes.set_xlabel("ms from the first of these ticks on")
    panel.legend(patches(parts))
    return panel.picture(
        file, alt=f"{panel.title}, {name}. {'; '.join(told)}.", note=short(name, 60),
        caption=f"{name}: from the middle of the run that was timed tick by tick; a line marks where a tick begins. "
        "`slotwise run --timeline FILE` writes all of it for Perfetto." + more,
    )  # fmt: skip
