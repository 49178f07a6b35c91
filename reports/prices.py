"""Prices in the rows of a sweep: their checks, and the section of what was priced in one way, on one machine."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from . import metrics
from .errors import BadResult

if TYPE_CHECKING:
    from .rows import Row

Price = dict[str, Any]
LABELS = ("SIMULATED", "ESTIMATED")
SETTING = {  # how it was priced; what differs in one of these is never drawn together
    "label": str, "machine": str, "machine_sha256": str, "machine_date": str, "overlap": str, "when_late": str,
    "dense_us": float, "cpu_threads": int, "max_queued": int, "spec_chunk": int, "split_share": float,
}  # fmt: skip
MAY_BE_NULL = {"max_queued", "spec_chunk", "split_share"}
CAUSES = {  # of the seconds: field -> name, colour, hatch
    "both_s": ("hot and cold at once", "c6", ""), "hot_alone_s": ("hot alone", "c1", ""),
    "cold_alone_s": ("cold alone", "c4", "...."), "late_s": ("awaited copies", "bad", "xxxx"),
    "host_s": ("host", "grey1", ""), "jitter_s": ("jitter", "grey4", ""), "policy_s": ("policy", "c3", ""),
    "merge_s": ("merge", "good", "////"), "dense_s": ("outside the experts", "c2", "\\\\\\\\"),
    "ids_s": ("ids to the host", "fair", ""), "step_s": ("between steps", "pale", ""),
}  # fmt: skip
BUSY = {"link": "link", "gpu": "GPU", "cold": "CPU", "host": "host"}
AMOUNTS = (
    "seconds tokens_per_s bytes_per_token gain tpot_p50_s tpot_p95_s tpot_p99_s lateness_mean_s lateness_worst_s "
    "precision"
).split()
FREE = ("break_even_precision", "base_s", "miss_s", "explained")  # of any sign
INTERVALS = ("tokens_per_s", "hit_rate", "bytes_per_token", "gain")
COUNTS = ("tokens", "late_hits", "late_ticks", "diverted")
MOST = 1e18
NEAR = 1e-6  # of the seconds, by which the sum of their causes may be off


def check_price(where: str, price: Any) -> None:
    """Types, signs and the sum of the causes. Raises BadResult: one line that names `where`, the value and its rule."""
    for name, kind in SETTING.items():
        value = price.get(name)
        known = isinstance(value, kind) and not isinstance(value, bool)
        if not known and not (value is None and name in MAY_BE_NULL):
            raise BadResult(f"{where}: price.{name} is {value!r}, but must be {kind.__name__}; no sweep result")
    if price["label"] not in LABELS:
        raise BadResult(f"{where}: price.label is {price['label']!r}, but must be {' or '.join(LABELS)}")
    for name in AMOUNTS:
        _number(where, name, price.get(name), 0)
    for name in FREE:
        _number(where, name, price.get(name), -MOST)
    for name in COUNTS:
        if not isinstance(price.get(name), int) or price[name] < 0:
            raise BadResult(f"{where}: price.{name} is {price.get(name)!r}, but must be 0 or more; no sweep result")
    bounds = [name for name in ("without", "ceiling") if _dict(where, name, price.get(name), may_be_null=True)]
    for name in bounds:
        _number(where, f"{name}.tokens_per_s", price[name].get("tokens_per_s"), 0)
    ends = {f"{name}_interval": price.get(f"{name}_interval") for name in INTERVALS}
    ends |= {f"{name}.tokens_per_s_interval": price[name].get("tokens_per_s_interval") for name in bounds}
    for name, each in ends.items():
        _interval(where, name, each)
    for name, keys in (("parts", CAUSES), ("busy", BUSY)):
        for key in keys:
            value = _dict(where, name, price.get(name)).get(key)
            _number(where, f"{name}.{key}", value, -NEAR * (price["seconds"] or 0))
    whole, seconds = sum(price["parts"][name] or 0 for name in CAUSES), price["seconds"] or 0
    if abs(whole - seconds) > NEAR * max(seconds, 1e-9):
        raise BadResult(f"{where}: price.seconds is {seconds}, but its parts add up to {whole}; the file is damaged")


def _number(where: str, name: str, value: Any, least: float) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= MOST:  # nan is neither
        raise BadResult(f"{where}: price.{name} is {value!r}, but must be a number from {least:g}; no sweep result")


def _dict(where: str, name: str, value: Any, *, may_be_null: bool = False) -> dict[str, Any]:
    if value is None and may_be_null:
        return {}
    if not isinstance(value, dict):
        raise BadResult(f"{where}: price.{name} is {value!r}, but must hold figures; no sweep result")
    return value


def _interval(where: str, name: str, value: Any) -> None:
    if value is None:
        return
    ends = value if isinstance(value, list) else []
    if len(ends) != 2 or not all(isinstance(end, float) and math.isfinite(end) for end in ends) or ends[0] > ends[1]:
        raise BadResult(f"{where}: price.{name} is {value!r}, but must be a lower and an upper end; no sweep result")


def setting_of(price: Price) -> tuple[Any, ...]:
    """What prices share that may be compared."""
    return tuple(price[name] for name in SETTING)


def told(value: Any, ends: Any = None, write: Any = metrics.number) -> str:
    """'12.3 (11.9 to 12.8)', or the value alone where nothing is known of how far it could be off."""
    text = write(value)
    return f"{text} ({write(ends[0])} to {write(ends[1])})" if ends else text


def price_records(rows: Iterable[Row]) -> Iterable[dict[str, Any]]:
    """A line per row and price: which row, how it was priced, and every figure with its interval."""
    for row in rows:
        for price in row["prices"]:
            head = {name: row[name] for name in ("trace", "policy", "slots", "slots_asked", "width", "predictor")}
            yield {
                **head, "contract": row["contract"], "scope": row["scope"], "horizon": row["horizon"],
                "hit_rate": metrics.hit_rate(row),
                **{name: value for name, value in price.items() if not isinstance(value, (dict, list))},
                **{
                    f"{name}_{end}": (price[f"{name}_interval"] or (None, None))[i]
                    for name in INTERVALS
                    for i, end in enumerate(("low", "high"))
                },
                **{f"part_{name}": price["parts"][name] for name in CAUSES},
                **{f"busy_{name}": price["busy"][name] for name in BUSY},
                **{f"{name}_tokens_per_s": (price[name] or {}).get("tokens_per_s") for name in ("without", "ceiling")},
            }  # fmt: skip
