"""Rates: one function each, with its formula, computed from counters at the edge so that counts stay counts.

A *counters* argument `c` maps counter names to numbers or equally long arrays. `tokens` is the number of tokens that
the counters cover. A zero denominator, or a count that was not taken (null), gives nan, and nan prints as a dash.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

Counters = Mapping[str, Any]
DASH = "–"
COUNTERS = (
    "demands hits hits_demand prefetch_hits misses compulsory loads_demand bypassed gated throttled late streamed "
    "predictions invalid redundant dropped_guard dropped_no_victim dropped_throttle loads_speculative used_late wasted "
    "unresolved loads_initial evictions evicted_by_demand evicted_by_prefetch fills residents in_flight discarded "
    "invalidated failed failed_demand failed_prediction routed"
).split()
NULLABLE = ("pollution", "bytes_loaded", "bytes_moved")  # null: not asked for, or the row size is unknown
DROPS = ("dropped_guard", "dropped_no_victim", "dropped_throttle", "failed_prediction")


def ratio(part: Any, whole: Any) -> Any:
    """part / whole, elementwise; nan where whole is zero or either is unknown. A float for scalars."""
    part, whole = np.asarray(part, dtype=float), np.asarray(whole, dtype=float)
    shape = np.broadcast_shapes(part.shape, whole.shape)
    out = np.divide(part, whole, out=np.full(shape, math.nan), where=whole != 0)
    return float(out) if not shape else out


def tokens_of(c: Counters, row: Mapping[str, Any]) -> Any:
    """Tokens that `c` covers: n_tokens_counted of a whole row, `tokens` of a phase, a request or a window of one.

    In verify steps these are the accepted ones: the rows that were rejected were routed and demanded, and gave nothing.
    """
    return row["n_tokens_counted"] if c is row else c["tokens"]


def hit_rate(c: Counters, tokens: Any = None) -> Any:
    """hits / demands: the share of demanded experts that were resident when their tick began."""
    return ratio(c["hits"], c["demands"])


def prefetch_hit_rate(c: Counters, tokens: Any = None) -> Any:
    """prefetch_hits / demands: the share of demands that found a row brought by look-ahead and not used before."""
    return ratio(c["prefetch_hits"], c["demands"])


def compulsory_share(c: Counters, tokens: Any = None) -> Any:
    """compulsory / misses: the share of misses that were an expert's first demand."""
    return ratio(c["compulsory"], c["misses"])


def misses_per_token(c: Counters, tokens: Any) -> Any:
    """misses / tokens: rows that the cold chain computes (or a fetch brings) for one token."""
    return ratio(c["misses"], tokens)


def loads_per_token(c: Counters, tokens: Any) -> Any:
    """fills / tokens: rows copied into slots for one token, for a demand, a prediction or at the start."""
    return ratio(c["fills"], tokens)


def speculative_loads_per_token(c: Counters, tokens: Any) -> Any:
    """loads_speculative / tokens: rows copied into slots for a prediction, for one token."""
    return ratio(c["loads_speculative"], tokens)


def bytes_per_token(c: Counters, tokens: Any) -> Any:
    """bytes_moved / tokens: bytes over the link for one token, staging included. nan if the row size is unknown."""
    return ratio(c["bytes_moved"], tokens)


def evictions_per_token(c: Counters, tokens: Any) -> Any:
    """evictions / tokens."""
    return ratio(c["evictions"], tokens)


def hits_per_load(c: Counters, tokens: Any = None) -> Any:
    """hits / fills, the *yield*: how often a copied row was hit."""
    return ratio(c["hits"], c["fills"])


def used_share(c: Counters, tokens: Any = None) -> Any:
    """(prefetch_hits + used_late) / loads_speculative: speculative loads that were demanded before they left."""
    return ratio(np.add(c["prefetch_hits"], c["used_late"]), c["loads_speculative"])


def used_late_share(c: Counters, tokens: Any = None) -> Any:
    """used_late / loads_speculative: demanded while still on the way, so the demand missed."""
    return ratio(c["used_late"], c["loads_speculative"])


def wasted_share(c: Counters, tokens: Any = None) -> Any:
    """wasted / loads_speculative: speculative loads that left before anybody demanded them."""
    return ratio(c["wasted"], c["loads_speculative"])


def redundant_share(c: Counters, tokens: Any = None) -> Any:
    """redundant / predictions: predictions of an expert that was already there or on its way."""
    return ratio(c["redundant"], c["predictions"])


def dropped_share(c: Counters, tokens: Any = None) -> Any:
    """(dropped_guard + dropped_no_victim + dropped_throttle + failed_prediction) / predictions: refused a slot."""
    return ratio(sum(np.asarray(c[name]) for name in DROPS), c["predictions"])


def pollution_share(c: Counters, tokens: Any = None) -> Any:
    """pollution / misses: misses that the same policy without prefetch would have hit. nan without the shadow run."""
    return ratio(c["pollution"], c["misses"])


def fewer_misses(c: Counters, reference: Counters) -> float:
    """1 - misses / reference misses: 0.1 is ten per cent fewer misses than the reference on the same demands."""
    return 1 - ratio(c["misses"], reference["misses"])


def unavoidable_share(c: Counters, bound: Counters) -> float:
    """bound misses / misses: the share of the misses that no eviction policy avoids without prefetch."""
    return ratio(bound["misses"], c["misses"])


class Rate(NamedTuple):
    """A rate with the way it is written."""

    of: Callable[..., Any]
    title: str
    unit: str  # "%", "" or "B"


RATES = {
    rate.of.__name__: rate
    for rate in (
        Rate(hit_rate, "hit rate", "%"),
        Rate(prefetch_hit_rate, "prefetch hits", "%"),
        Rate(compulsory_share, "compulsory misses", "%"),
        Rate(misses_per_token, "misses per token", ""),
        Rate(loads_per_token, "loads per token", ""),
        Rate(speculative_loads_per_token, "speculative loads per token", ""),
        Rate(bytes_per_token, "bytes per token", "B"),
        Rate(evictions_per_token, "evictions per token", ""),
        Rate(hits_per_load, "hits per load", ""),
        Rate(used_share, "used", "%"),
        Rate(used_late_share, "used late", "%"),
        Rate(wasted_share, "wasted", "%"),
        Rate(redundant_share, "redundant", "%"),
        Rate(dropped_share, "dropped", "%"),
        Rate(pollution_share, "pollution", "%"),
    )
}


def rates(c: Counters, tokens: Any) -> dict[str, Any]:
    """Every rate of `c` by name."""
    return {name: rate.of(c, tokens) for name, rate in RATES.items()}


# ---- how figures are written: one place, so that page, Markdown and terminal agree


def percent(value: Any, digits: int = 1) -> str:
    """0.7123 -> '71.2 %'. What only rounding would make 100 % or 0 % is written '>99.9 %' or '<0.1 %'."""
    if unknown(value):
        return DASH
    text, least = f"{100 * value:.{digits}f} %", 10**-digits
    if value < 1 and text.startswith("100"):
        return f">{100 - least:.{digits}f} %"
    if value > 0 and float(text[:-2]) == 0:
        return f"<{least:.{digits}f} %"
    return text


def points(value: Any) -> str:
    """A difference of two rates in percentage points, signed: 0.023 -> '+2.30'."""
    if unknown(value):
        return DASH
    return f"{100 * value:+.2f}".replace("-", "−") if abs(value) >= 5e-5 else "0"


def fewer_or_more(share: Any) -> str:
    """`fewer_misses` in words: 0.084 -> '8.4 % fewer misses', -0.01 -> '1.0 % more misses'."""
    if unknown(share):
        return DASH
    return f"{percent(abs(share))} {'fewer' if share > 0 else 'more'} misses" if share else "equal misses"


def number(value: Any) -> str:
    """Three significant digits, thousands set apart: 12.3, 0.0421, 1,234."""
    if unknown(value):
        return DASH
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    magnitude = math.floor(math.log10(abs(value)))
    return f"{value:,.{max(0, 2 - magnitude)}f}"


def size(n_bytes: Any) -> str:
    """Bytes in binary units: 1536 -> '1.5 KiB'."""
    if unknown(n_bytes):
        return DASH
    value, unit = float(n_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1023.5 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or abs(value) >= 100 else f"{value:.3g} {unit}"


def written(value: Any, unit: str) -> str:
    """`value` in the form that its unit asks for."""
    return {"%": percent, "points": points, "B": size, "": number}[unit](value)


def unknown(value: Any) -> bool:
    """Null, or not a number."""
    return value is None or math.isnan(value)
