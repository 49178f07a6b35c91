"""The rows of a section that were priced in one way on one machine, and what that says in sentences."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from . import metrics
from .curves import base_row
from .prices import SETTING, setting_of, told
from .rows import Row
from .sections import Key, Look, Section, Size

LITTLE = 0.005  # of tokens/s: closer than that nobody is faster


@dataclass(frozen=True, eq=False)
class Priced(Section):
    """A section whose rows have one price each, under "price"; `apart` says how it differs from its siblings."""

    apart: str = ""

    @property
    def label(self) -> str:
        return self.first["price"]["label"]

    @property
    def on(self) -> str:
        """The machine, and what sets this way of pricing apart."""
        return f"{self.first['price']['machine']}{self.apart}"

    @cached_property
    def reported(self) -> list[Key]:
        """The configurations that could be run, the fastest first."""
        found = [key for key in self.at if key.policy in self.policies and key.look in self.looks]
        found = [key for key in found if key.policy in self.field(key.look)]
        return sorted(found, key=lambda key: -speed(self.at[key]))

    def fastest(self, size: Size, look: Look | None = None) -> Key | None:
        """Of a size, and of one look-ahead if it is named."""
        return next((key for key in self.reported if key.size == size and look in (None, key.look)), None)

    def ceilings(self, look: Look) -> dict[Size, tuple[float, list[float] | None]]:
        """The most that any policy would reach with an oracle of that width, by size, with its interval."""
        out: dict[Size, tuple[float, list[float] | None]] = {}
        for key, row in self.at.items():
            bound = row["price"]["ceiling"]
            if key.look != look or not bound or bound["tokens_per_s"] is None:
                continue
            if key.size not in out or out[key.size][0] < bound["tokens_per_s"]:
                out[key.size] = bound["tokens_per_s"], bound["tokens_per_s_interval"]
        return out


def speed(row: Row) -> float:
    """Tokens per second; nan without steps."""
    value = row["price"]["tokens_per_s"]
    return float("nan") if value is None else value


def winner_speeds(part: Priced, policy: str, size: Size, look: Look) -> dict[str, Any]:
    """How fast a policy is at a size and look-ahead, and who is fastest there."""
    best = part.fastest(size, look)
    out: dict[str, Any] = {"price_label": part.label, "machine": part.first["price"]["machine"]}
    out["fastest"] = best.policy if best else None
    for prefix, row in (("", part.row(policy, size, look)), ("fastest_", part.at[best] if best else None)):
        price = row["price"] if row else {}
        low, high = price.get("tokens_per_s_interval") or (None, None)
        out |= {f"{prefix}tokens_per_s": price.get("tokens_per_s"), f"{prefix}tokens_per_s_low": low}
        out |= {f"{prefix}tokens_per_s_high": high}
    return out


def speed_told(row: Row) -> str:
    return told(row["price"]["tokens_per_s"], row["price"]["tokens_per_s_interval"])


def priced_of(section: Section) -> list[Priced]:
    """A part for each machine and way of pricing, in file order; [] where nothing was priced."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in section.rows:
        for price in row["prices"]:
            groups.setdefault(setting_of(price), []).append(row | {"price": price})
    names = list(SETTING)
    varying = [name for i, name in enumerate(names) if len({key[i] for key in groups}) > 1 and name != "machine"]
    words = {
        key: ", ".join(f"{name.replace('_', ' ')} {str(key[names.index(name)])[:10]}" for name in varying)
        for key in groups
    }
    parts = [Priced(rows, section.differs, f" ({words[key]})" if words[key] else "") for key, rows in groups.items()]
    return [part for part in parts if part.looks and any(speed(row) == speed(row) for row in part.rows)]


def answer(part: Priced) -> list[str]:
    """Who is fastest at the shown size, whether look-ahead pays there, and whether hits and speed agree."""
    size = part.shown
    plain, best = part.fastest(size, part.plain), part.fastest(size)
    if not best:
        return []
    out = [_fastest(part, plain)] if plain else []
    ahead = next((key for key in part.reported if key.size == size and key.look.width), None)
    if ahead and not part.plain.width:
        out.append(_ahead(part, ahead))
    hits = max((key for key in part.reported if key.size == size), key=lambda key: metrics.hit_rate(part.at[key]))
    if hits != best and speed(part.at[best]) > speed(part.at[hits]) * (1 + LITTLE):
        out.append(
            f"Hits and speed part ways: {_named(part, hits)} hits most, "
            f"{metrics.percent(metrics.hit_rate(part.at[hits]))}, at {speed_told(part.at[hits])} tokens/s; "
            f"{_named(part, best)} is faster with {metrics.percent(metrics.hit_rate(part.at[best]))}, at "
            f"{speed_told(part.at[best])}."
        )
    return out


def _named(part: Priced, key: Key) -> str:
    return f"{key.policy} at {part.look_name(key.look)}"


def _fastest(part: Priced, key: Key) -> str:
    row = part.at[key]
    text = (
        f"{part.label} on {part.on}: at {part.where(key.size)}, {part.look_name(key.look)}, {key.policy} is fastest, "
        f"{speed_told(row)} tokens/s"
    )
    lru = part.row(part.reference, key.size, key.look)
    if lru and key.policy != part.reference:
        text += f"; {part.reference} reaches {speed_told(lru)}"
    busiest = max(row["price"]["busy"], key=lambda name: row["price"]["busy"][name] or 0)
    share = metrics.percent(row["price"]["busy"][busiest], 0)
    names = {"link": "the link", "gpu": "the GPU", "cold": "the CPU", "host": "the host"}
    return f"{text}. Busiest is {names[busiest]}, {share} of the time."


def _ahead(part: Priced, key: Key) -> str:
    """Whether look-ahead pays: against the same policy without it, the break-even precision, the oracle's ceiling."""
    row, price = part.at[key], part.at[key]["price"]
    base = base_row(part, key.policy, key.size)
    gain = price["gain"] if price["gain"] is not None else speed(row) / speed(base) if base else None
    text = f"With look-ahead, {_named(part, key)} is fastest: {speed_told(row)} tokens/s"
    if gain is not None:
        text += f", {told(gain, price['gain_interval'], lambda value: f'{value:.3f}')} times what it reaches without"
    if price["precision"] is not None and price["break_even_precision"] is not None:
        pays = "above" if price["precision"] > price["break_even_precision"] else "below"
        even = price["break_even_precision"]
        text += (
            f". Of its speculative loads {metrics.percent(price['precision'])} are used, {pays} the break-even of "
            f"{metrics.percent(even)}" + (", which no predictor reaches" if even > 1 else "")
        )
    if price["ceiling"] and price["ceiling"]["tokens_per_s"] is not None:
        bound = price["ceiling"]
        text += f". An oracle of the same width: {told(bound['tokens_per_s'], bound['tokens_per_s_interval'])} tokens/s"
    return f"{text}."
