"""The figures of a section or of runs, and those of the main part: hits against slots, their price, the bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from . import figures_measured, metrics
from .charts import against_size
from .curves import bytes_per_load, curves_of, drawn_looks, foresight, less, slug, whole
from .figures_lookahead import lookahead
from .figures_run import layers, phases, warmup
from .figures_timeline import timelines
from .ropes import side_by_side
from .runs import Runs
from .sections import Section
from .style import LIGHT, Panel, Picture, bound_name, drawn, look_of, short

Part = Callable[[Section, str], Iterator[Picture]]


def figures(section: Section, prefix: str = "") -> dict[str, list[Picture]]:
    """Every figure by part of the page; a part without data is empty. `prefix` sets the files of a section apart."""
    parts: dict[str, Part] = {
        "capacity": capacity, "lookahead": lookahead, "layers": layers, "warmup": warmup, "phases": phases,
    }  # fmt: skip
    return {name: drawn(lambda part=part: list(part(section, prefix))) for name, part in parts.items()}


def measured_figures(runs: Runs, prefix: str = "") -> dict[str, list[Picture]]:
    """The same of runs."""
    speed = (figures_measured.speed, figures_measured.time)
    drawers = {
        "speed": speed, "bandwidth": (figures_measured.bandwidths,), "drops": (figures_measured.drops,),
        "timeline": (timelines,),
    }  # fmt: skip
    return {
        name: drawn(lambda draws=draws: [picture for draw in draws for picture in draw(runs, prefix)])
        for name, draws in drawers.items()
    }


def capacity(section: Section, prefix: str) -> Iterator[Picture]:
    """Hit rate against slots and VRAM with what it costs beside it, at each look-ahead."""
    per_load = bytes_per_load(section)
    unknown = section.first["bytes_moved"] is None
    rates = {
        look: curves_of(section, look, metrics.hit_rate, bounds=True) | foresight(section, look)
        for look in section.looks
    }
    values = [100 * v for curves in rates.values() for curve in curves.values() for v in curve.values() if v == v]
    least = max(0, min(values, default=0) - 4)
    for look in drawn_looks(section):
        at, name = section.look_name(look), slug(section, look)
        yield against_size(
            section, f"{prefix}hit-rate-{name}", f"Hit rate, {at}", rates[look],
            label="hit rate, % of demands", ylim=(least, 106), cycle_at="top",
            caption="Share of demanded experts that were resident when their tick began."
            + (" The bound does not prefetch, so look-ahead may pass it." if look.width and section.bound else ""),
        )  # fmt: skip
        yield against_size(
            section, f"{prefix}loads-{name}", f"Loads per token, {at}",
            curves_of(section, look, whole(metrics.loads_per_token)),
            unit="", label="rows loaded per token", bytes_per_unit=per_load, cycle_at="top",
            caption="What the hits cost: rows copied from host memory, for demands and for predictions."
            + (" Row size unknown, so no bytes." if unknown else ""),
        )  # fmt: skip
        if not unknown and not per_load:
            yield against_size(
                section, f"{prefix}bytes-{name}", f"Bytes per token, {at}",
                curves_of(section, look, lambda row: whole(metrics.bytes_per_token)(row) / 2**20),
                unit="", label="MiB moved per token",
                caption="Bytes over the link, rows to scratch or staging included.",
            )  # fmt: skip
    yield from _distance(section, prefix)
    yield from _trade(section, prefix)


def _distance(section: Section, prefix: str) -> Iterator[Picture]:
    """Differences that the hit-rate axis is too coarse for: to the bound if there is one, else to lru."""
    base = section.bound or section.reference
    rates = curves_of(section, section.plain, metrics.hit_rate, bounds=True)
    if not base or base not in rates:
        return
    others = {policy: curve for policy, curve in rates.items() if policy in section.policies and policy != base}
    curves = less(others, lambda _, size: rates[base].get(size))
    whole_run = section.first["phase"] == "all"
    what = ("the bound" if whole_run else f"{base} over the whole run") if section.bound else base
    near = (
        " Near zero no other eviction order can help much." if whole_run else " It does not bound one phase by itself."
    )
    if curves:
        yield against_size(
            section, f"{prefix}distance", f"Distance to {what}, {section.look_name(section.plain)}", curves,
            unit="points", label="points of hit rate",
            caption=f"Hit rate less that of {what}." + (near if section.bound else ""),
        )  # fmt: skip


def _trade(section: Section, prefix: str) -> Iterator[Picture]:
    """Hit rate against loads at one size: one mark per policy and look-ahead, joined by policy."""
    from matplotlib.lines import Line2D
    from matplotlib.transforms import offset_copy

    size, plain, styles, looks = section.shown, section.plain, look_of(section), drawn_looks(section)
    marks = {
        policy: [
            (look, row) for look in looks if policy in section.field(look) and (row := section.row(policy, size, look))
        ]
        for policy in section.policies
    }
    marks = {policy: found for policy, found in marks.items() if found}
    best = {policy: max(metrics.hit_rate(row) for _, row in found) for policy, found in marks.items()}
    marks = {policy: marks[policy] for policy in sorted(marks, key=lambda policy: -best[policy])}
    if sum(map(len, marks.values())) < 2:
        return
    bound = section.row(section.bound, size, plain)
    wide = [section.look_name(look) for look in looks if look != plain]
    key = (
        f"filled: {section.look_name(plain)}; open, joined to it: {', '.join(wide)}"
        if wide
        else section.look_name(plain)
    )
    panel = Panel(
        section,
        f"What a hit costs, {section.where(size)}",
        legend=[*map(short, marks), *[bound_name(bound["policy"], bound["phase"]) for _ in [bound] if bound]],
    )
    handles, told = [], []
    places = {
        (policy, look): (whole(metrics.loads_per_token)(row), 100 * metrics.hit_rate(row))
        for policy, found in marks.items()
        for look, row in found
    }
    drawn_at = side_by_side(places)
    for policy, found in marks.items():
        how = {"color": styles[policy]["color"], "marker": styles[policy]["marker"], "markersize": 7}
        joined = zip(*(places[policy, look] for look, _ in found), strict=True)
        panel.axes.plot(*joined, color=how["color"], linewidth=0.8)
        for look, _ in found:
            (x, y), aside = drawn_at[policy, look]
            at = offset_copy(panel.axes.transData, panel.figure, aside * how["markersize"], units="points")
            fill = how["color"] if look == plain else LIGHT["paper"]
            panel.axes.plot(x, y, linestyle="", markeredgewidth=1.3, markerfacecolor=fill, transform=at, **how)
            x, y = places[policy, look]
            told.append(f"{policy} at {section.look_name(look)}: {y:.1f} % for {metrics.number(x)} loads a token")
        handles.append(Line2D([], [], linestyle="", label=short(policy), **{**how, "markersize": 6}))
    if bound:
        panel.axes.axhline(100 * metrics.hit_rate(bound), **styles[bound["policy"]])
        handles.append(Line2D([], [], label=bound_name(bound["policy"], bound["phase"]), **styles[bound["policy"]]))
    panel.axes.margins(0.09)
    panel.axes.set_xlabel("rows loaded per token")
    panel.axes.set_ylabel("hit rate, % of demands")
    panel.legend(handles)
    rows = any(aside for _, aside in drawn_at.values())
    yield panel.picture(
        f"{prefix}trade", alt=f"{panel.title}. {'; '.join(told)}.", note=key,
        caption="Up is better, left is cheaper: what hits more by moving more lies up and to the right. "
        f"{key.capitalize()}.{' Marks that touch in a row share one place.' * rows}",
    )  # fmt: skip
