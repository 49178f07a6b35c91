"""One thing against another at one size: a mark per policy and look-ahead, joined by policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from . import metrics
from .charts import SPAN
from .curves import drawn_looks
from .ropes import side_by_side
from .rows import Row
from .sections import Look, Section
from .style import LIGHT, Panel, Picture, bound_name, look_of, short

Places = Mapping[str, Mapping[Look, tuple[float, float]]]  # policy -> look-ahead -> x and y
MARK = 7  # points


def places_of(section: Section, at: Callable[[Row], tuple[float, float]], worth: Callable[[Row], float]) -> Places:
    """Where the policies that could win lie at the shown size, by `worth` of their best look-ahead downwards."""
    rows = {
        policy: {
            look: row
            for look in drawn_looks(section)
            if policy in section.field(look) and (row := section.row(policy, section.shown, look))
        }
        for policy in section.policies
    }
    best = {policy: max(map(worth, found.values())) for policy, found in rows.items() if found}
    order = sorted(best, key=lambda policy: -best[policy])
    return {policy: {look: at(row) for look, row in rows[policy].items()} for policy in order}


def joined(
    section: Section, name: str, title: str, places: Places, say: Callable[[float, float], str], *,
    labels: tuple[str, str], caption: str, bound: Row | None = None, note: str = "",
    spans: Mapping[tuple[str, Look], Sequence[float]] | None = None,
) -> Picture:  # fmt: skip
    """`labels` of x and y; `say` writes a place; `bound`: its hit rate is a line; `spans`: ends of intervals of y."""
    from matplotlib.lines import Line2D
    from matplotlib.transforms import offset_copy

    plain, styles = section.plain, look_of(section)
    wide = [section.look_name(look) for look in drawn_looks(section) if look != plain]
    key = section.look_name(plain)
    if wide:
        key = f"filled: {key}; open, joined to it: {', '.join(wide)}"
    futures = [bound_name(row["policy"], row["phase"]) for row in [bound] if row]
    panel = Panel(section, title, legend=[*map(short, places), *futures])
    handles, told = [], []
    flat = {(policy, look): at for policy, found in places.items() for look, at in found.items()}
    drawn_at = side_by_side(flat)
    for policy, found in places.items():
        how = {"color": styles[policy]["color"], "marker": styles[policy]["marker"], "markersize": MARK}
        panel.axes.plot(*zip(*found.values(), strict=True), color=how["color"], linewidth=0.8)
        for look in found:
            (x, y), aside = drawn_at[policy, look]
            at = offset_copy(panel.axes.transData, panel.figure, aside * MARK, units="points")
            if spans and (span := spans.get((policy, look))):
                panel.axes.plot((x, x), span, transform=at, **SPAN | {"color": how["color"], "zorder": 1.8})
                panel.axes.update_datalim([(x, end) for end in span])
            fill = how["color"] if look == plain else LIGHT["paper"]
            panel.axes.plot(x, y, linestyle="", markeredgewidth=1.3, markerfacecolor=fill, transform=at, **how)
            told.append(f"{policy} at {section.look_name(look)}: {say(*found[look])}")
        handles.append(Line2D([], [], linestyle="", label=short(policy), **{**how, "markersize": 6}))
    if bound:
        panel.axes.axhline(100 * metrics.hit_rate(bound), **styles[bound["policy"]])
        handles.append(Line2D([], [], label=futures[0], **styles[bound["policy"]]))
    panel.axes.margins(0.09)
    panel.axes.set_xlabel(labels[0])
    panel.axes.set_ylabel(labels[1])
    panel.legend(handles)
    rows = any(aside for _, aside in drawn_at.values())
    return panel.picture(
        name, alt=f"{panel.title}. {'; '.join(told)}.", note=f"{note} · {key}" if note else key,
        caption=f"{caption} {key.capitalize()}.{' Marks that touch in a row share one place.' * rows}",
    )  # fmt: skip
