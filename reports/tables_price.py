"""Tables of prices: tokens per second with intervals, latency, awaited hits, break-even, and who is busy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import metrics
from .figures_price import shown_keys
from .priced import Priced
from .prices import BUSY, SETTING
from .sections import Key
from .tables import NONE, Cell, Table, look_word, table

MOST_ROWS = 400  # of the table of everything; the CSV has all


def speeds(part: Priced) -> Table:
    """The configurations of the shown size."""
    note = (
        f"{part.label} on {part.on}, at {part.where(part.shown)}. Intervals: 95 %, of other samples of the same "
        "workload. Gain: over the same run without look-ahead. TPOT: time per output token, over decode steps. "
        "Awaited: hits whose copy had not landed, and how long their ticks waited on average."
    )
    return _table(part, "Prices", shown_keys(part), note)


def everything(part: Priced) -> Table:
    """All configurations, by size."""
    keys = sorted(part.reported, key=lambda key: key.size.slots)
    cut = f" The first {MOST_ROWS} of {len(keys)}; prices.csv has all." if len(keys) > MOST_ROWS else ""
    return _table(
        part, f"Prices of all {len(keys)} configurations", keys[:MOST_ROWS], f"{part.label} on {part.on}.{cut}"
    )


def _table(part: Priced, title: str, keys: Sequence[Key], note: str) -> Table:
    return table(title, [_line(part, key) for key in keys], words=2, note=note, label=part.label.lower())


def _line(part: Priced, key: Key) -> dict[str, Cell]:
    row, price = part.at[key], part.at[key]["price"]
    bound = price["ceiling"] or {}
    ahead = bool(key.look.width)
    return {
        "policy": (key.policy,),
        "width": (look_word(part, key.look),),
        "slots": (str(key.size),),
        "tokens/s": _with(price["tokens_per_s"], price["tokens_per_s_interval"]),
        "hit rate": _with(metrics.hit_rate(row), price["hit_rate_interval"], metrics.percent),
        "gain": _with(price["gain"], price["gain_interval"], lambda value: f"{value:.3f}"),
        "ceiling (oracle)": _with(bound.get("tokens_per_s"), bound.get("tokens_per_s_interval")),
        "TPOT p50": (_ms(price["tpot_p50_s"]),),
        "p95": (_ms(price["tpot_p95_s"]),),
        "p99": (_ms(price["tpot_p99_s"]),),
        "awaited hits": (metrics.number(price["late_hits"]), f"{_ms(price['lateness_mean_s'])} each")
        if price["late_hits"] else NONE,
        "precision": (metrics.percent(price["precision"]),) if ahead else NONE,
        "break-even": (metrics.percent(price["break_even_precision"]),) if ahead else NONE,
        **{f"{word} busy": (metrics.percent(price["busy"][name], 0),) for name, word in BUSY.items()},
    }  # fmt: skip


def _with(value: Any, ends: Any, write: Any = metrics.number) -> Cell:
    """A figure, its interval below it."""
    if metrics.unknown(value):
        return NONE
    return (write(value), f"{write(ends[0])} to {write(ends[1])}") if ends else (write(value),)


def _ms(seconds: float | None) -> str:
    return metrics.DASH if seconds is None else f"{metrics.number(1e3 * seconds)} ms"


def options(part: Priced) -> list[tuple[str, str]]:
    """How it was priced."""
    price = part.first["price"]
    return [(name, metrics.DASH if price[name] is None else str(price[name])) for name in SETTING]
