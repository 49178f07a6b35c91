"""The figures of a section or of runs, and those of the main part: hits against slots, their price, the bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from . import figures_measured, metrics
from .charts import against_size
from .charts_joined import joined, places_of
from .curves import bytes_per_load, curves_of, drawn_looks, foresight, less, slug, whole
from .figures_lookahead import lookahead
from .figures_price import priced_figures
from .figures_run import layers, phases, warmup
from .figures_timeline import timelines
from .priced import priced_of
from .runs import Runs
from .sections import Section
from .style import Picture, drawn

Part = Callable[[Section, str], Iterator[Picture]]


def figures(section: Section, prefix: str = "") -> dict[str, list[Picture]]:
    """Every figure by part of the page; a part without data is empty. `prefix` sets the files of a section apart."""
    parts: dict[str, Part] = {
        "capacity": capacity, "lookahead": lookahead, "layers": layers, "warmup": warmup, "phases": phases,
    }  # fmt: skip
    out = {name: drawn(lambda part=part: list(part(section, prefix))) for name, part in parts.items()}
    for i, prices in enumerate(priced_of(section)):
        apart = f"{prefix}price-{i + 1}-" if i else f"{prefix}price-"
        out[f"prices-{i}"] = drawn(lambda prices=prices, apart=apart: list(priced_figures(prices, apart)))
    return out


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
    size, plain = section.shown, section.plain
    places = places_of(
        section, lambda row: (whole(metrics.loads_per_token)(row), 100 * metrics.hit_rate(row)), metrics.hit_rate
    )
    if sum(map(len, places.values())) < 2:
        return
    yield joined(
        section, f"{prefix}trade", f"What a hit costs, {section.where(size)}", places,
        lambda x, y: f"{y:.1f} % for {metrics.number(x)} loads a token",
        labels=("rows loaded per token", "hit rate, % of demands"), bound=section.row(section.bound, size, plain),
        caption="Up is better, left is cheaper: what hits more by moving more lies up and to the right.",
    )  # fmt: skip
