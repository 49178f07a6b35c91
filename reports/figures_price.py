"""Figures of prices: tokens per second, against hits, seconds by cause, precision beside break-even, the link."""

from __future__ import annotations

from collections.abc import Iterator

from . import metrics
from .charts import against_size, stacks
from .charts_joined import joined, places_of
from .curves import curves_of, drawn_looks, slug
from .groups import Groups
from .priced import Priced, speed
from .prices import CAUSES
from .sections import Key
from .style import Picture, first_of

MOST = 16  # bars of one figure; the tables have all
MOST_PRECISION = 1.3  # of the axis: a break-even above is written, not drawn to its end
BOTH = {"precision": ("c0", ""), "break-even": ("grey2", "////")}
INTERVALS = (
    "The marks span 95 % of what other samples of the same workload would give; the machine's figures are not in them."
)


def priced_figures(part: Priced, prefix: str) -> Iterator[Picture]:
    """Every figure of the prices of a section."""
    for look in drawn_looks(part):
        at = part.look_name(look)
        curves = curves_of(part, look, speed)
        ends = {
            policy: {size: row["price"]["tokens_per_s_interval"] for size in curve
                     if (row := part.row(policy, size, look)) and row["price"]["tokens_per_s_interval"]}
            for policy, curve in curves.items()
        }  # fmt: skip
        if not look.width and part.bound:
            curves["victims by opt"] = curves_of(part, look, speed, bounds=True).get(part.bound, {})
        if ceiling := part.ceilings(look):
            curves[f"ceiling: oracle, {at}"] = {size: value for size, (value, _) in ceiling.items()}
        yield against_size(
            part, f"{prefix}speed-{slug(part, look)}", f"Tokens per second, {at}",
            {policy: curve for policy, curve in curves.items() if curve}, unit="", label="tokens/s", spans=ends,
            cycle_at="top", note=part.on,
            caption=INTERVALS + (" The ceiling: the best policy with an oracle of this width." if ceiling else ""),
        )  # fmt: skip
    yield from _against_hits(part, prefix)
    yield from _causes(part, prefix)
    yield from _precision(part, prefix)
    for look in dict.fromkeys((part.plain, part.best_look)):
        busy = curves_of(part, look, lambda row: _known(row["price"]["busy"]["link"]))
        yield against_size(
            part, f"{prefix}link-{slug(part, look)}", f"Link busy, {part.look_name(look)}", busy,
            label="link busy, % of the time", ylim=(0, 104), note=part.on,
            caption="A link that is busy all the time gives nothing for more hits: loads wait in its queue.",
        )  # fmt: skip


def _known(value: float | None) -> float:
    return float("nan") if value is None else value


def _against_hits(part: Priced, prefix: str) -> Iterator[Picture]:
    """Hit rate against tokens/s at one size."""
    places = places_of(part, lambda row: (100 * metrics.hit_rate(row), speed(row)), speed)
    if sum(map(len, places.values())) < 2:
        return
    spans = {
        (policy, look): row["price"]["tokens_per_s_interval"]
        for policy, found in places.items()
        for look in found
        if (row := part.row(policy, part.shown, look)) and row["price"]["tokens_per_s_interval"]
    }
    yield joined(
        part, f"{prefix}hits-speed", f"Hits and tokens/s, {part.where(part.shown)}", places,
        lambda x, y: f"{x:.1f} % of demands hit, {metrics.number(y)} tokens/s",
        labels=("hit rate, % of demands", "tokens/s"), spans=spans, note=part.on,
        caption="A line that falls to the right: more hits, and slower, because the loads that bring them cost more "
        "than the misses that they save.",
    )  # fmt: skip


def shown_keys(part: Priced) -> list[Key]:
    """Configurations of the shown size, the fastest first."""
    return [key for key in part.reported if key.size == part.shown and key.look in drawn_looks(part)]


def named(part: Priced, key: Key) -> str:
    return f"{key.policy}, {part.look_name(key.look)}" if len(part.looks) > 1 else key.policy


def _causes(part: Priced, prefix: str) -> Iterator[Picture]:
    """Where the time of a token goes."""
    keys = shown_keys(part)
    rows = {named(part, key): part.at[key] for key in keys[:MOST]}
    rows = {name: row["price"] for name, row in rows.items() if row["price"]["tokens"]}
    if rows:
        yield stacks(
            part, f"{prefix}causes", f"Where the time goes, {part.where(part.shown)}",
            {name: [1e3 * (price["parts"][cause] or 0) / price["tokens"] for cause in CAUSES]
             for name, price in rows.items()},
            list(CAUSES.values()), label="ms a token, on average", note=part.on,
            caption="Each moment counts once, so parts add up; the fastest is on top. Awaited copies: the hot chain "
            "waits for a row that is still on its way." + first_of(MOST, len(keys), "configurations"),
        )  # fmt: skip


def _precision(part: Priced, prefix: str) -> Iterator[Picture]:
    """What share of the speculative loads is used, beside the share that would have to be."""
    rows = {named(part, key): part.at[key] for key in shown_keys(part) if key.look.width}
    rows = {name: row for name, row in rows.items() if row["price"]["break_even_precision"] is not None}
    if not rows:
        return
    groups = Groups(
        part, f"Precision and break-even, {part.where(part.shown)}", {name: list(BOTH) for name in rows}, right=1.0,
    )  # fmt: skip
    told = []
    for name, row in rows.items():
        values = row["price"]["precision"], row["price"]["break_even_precision"]
        for i, (value, look) in enumerate(zip(values, BOTH.values(), strict=True)):
            drawn = 100 * min(max(value, 0), MOST_PRECISION)
            groups.bar(name, i, 0, drawn, *look)
            groups.said(name, i, drawn, metrics.percent(value))
        told.append(f"{name}: {metrics.percent(values[0])} used, {metrics.percent(values[1])} needed")
    groups.of_whole("% of speculative loads")
    groups.axes.set_xlim(0, 100 * MOST_PRECISION)
    yield groups.panel.picture(
        f"{prefix}break-even", alt=f"Precision of speculative loads. {'; '.join(told)}.", note=part.on,
        caption="Look-ahead pays where precision, the share of its loads that is used, is above the break-even. A "
        "break-even above 100 %: no predictor pays on this machine.",
    )  # fmt: skip
