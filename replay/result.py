"""What a replay found: counts as integers, rates at the edge."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from .price import Price


@dataclass(frozen=True, repr=False)
class Result:
    """One configuration replayed.

    identity and options say what ran; `counters` {name: int or None}, `by_layer` {name: [n_layers]}, `by_phase`
    {phase: {name: int}}, `by_request` {"request": [...], name: [...]}, `along` {"window_steps": int, "first_step":
    [...], name: [...]}; the last three also count `tokens` (of verify steps, the accepted ones). Bytes are None where
    the row size is unknown, `pollution` without a shadow run, `price` without a machine.
    """

    identity: dict[str, Any]
    options: dict[str, Any]
    counters: dict[str, Any]
    by_layer: dict[str, Any]
    by_phase: dict[str, dict[str, Any]]
    by_request: dict[str, Any]
    along: dict[str, Any]
    token_cycle_bytes: int | None
    plan_sha256: str | None
    seconds: float
    price: Price | None = None

    def between(self, without: Result, ceiling: Result) -> Result:
        """The same, its price beside those of the run without look-ahead and of the oracle's."""
        assert self.price is not None
        used = self.counters["prefetch_hits"] + self.counters["used_late"]
        price = replace(
            self.price,
            without=without.price,
            ceiling=ceiling.price,
            used=used,
            loaded=self.counters["loads_speculative"],
        )
        return replace(self, price=price)

    @property
    def rates(self) -> dict[str, float]:
        """Rates of the whole run; nan where the denominator is 0 or unknown."""
        return rates_of(self.counters, self.identity["n_tokens_counted"])

    def to_dict(self) -> dict[str, Any]:
        """The object that `slotwise replay --json` prints; nan becomes null."""
        rates = {name: None if math.isnan(value) else value for name, value in self.rates.items()}
        nested = {"counters": self.counters, "by_layer": self.by_layer, "by_phase": self.by_phase}
        nested |= {"by_request": self.by_request, "along": self.along, "rates": rates}
        tail = {"token_cycle_bytes": self.token_cycle_bytes, "plan_sha256": self.plan_sha256, "seconds": self.seconds}
        tail |= {"price": self.price.to_dict() if self.price else None}
        return {**self.identity, **self.options, **nested, **tail}

    def to_row(self) -> dict[str, Any]:
        """One row of a sweep's result file: identity, options and counters flat, the rest nested."""
        row = {**self.identity, **self.options, **self.counters, "token_cycle_bytes": self.token_cycle_bytes}
        row |= {"plan_sha256": self.plan_sha256, "seconds": self.seconds}
        return row | {
            "by_layer": self.by_layer,
            "by_phase": self.by_phase,
            "by_request": self.by_request,
            "along": self.along,
            "price": self.price.to_dict() if self.price else None,
        }

    def to_polars(self):
        """The counters of every layer as a polars data frame, one row per layer."""
        from slotwise.traces.tidy import frame

        columns = {name: values for name, values in self.by_layer.items() if values is not None}
        layers = list(range(len(columns["demands"])))
        return frame({"layer": layers, **columns})

    def _pools(self) -> str:
        """What the size that was asked for became: slots, and the VRAM that they take."""
        options = self.options
        slots, by_layer, n_bytes = options["slots"], options["slots_by_layer"], options["capacity_bytes"]
        if by_layer:
            got = f"{min(by_layer)} to {max(by_layer)} slots, by layer"
        elif slots is None:
            got = "as many rows as fit, for they differ in size"
        else:
            got = f"{slots} slots {'per layer' if options['scope'] == 'layer' else 'in all'}"
        unknown = "rows differ in size" if self.token_cycle_bytes else "row size unknown"
        asked = "" if options["slots_asked"] == str(slots) else f" (asked for: {options['slots_asked']})"
        return f"pools{asked}: {got}; " + (f"{_size(n_bytes)} of VRAM" if n_bytes is not None else unknown)

    def __repr__(self) -> str:
        c, rates = self.counters, self.rates
        size = f"{self.options['slots']} slots" if self.options["slots"] is not None else self.options["slots_asked"]
        options, identity = self.options, self.identity
        what = f"{options['policy']} on {identity['trace']}: {size} of {identity['n_experts']} experts"
        how = f"{options['scope']} scope, {options['contract']} contract, width {options['width']}"
        hits = f"hit rate {_percent(rates['hit_rate'])} ({c['hits']:,} of {c['demands']:,} demands)"
        loads = f"{_number(rates['loads_per_token'])} loads per token, yield {_number(rates['yield'])} hits per load"
        lines = [f"{what} x {identity['n_layers']} layers, {how}", f"  {self._pools()}", f"  {hits}; {loads}"]
        if c["predictions"]:
            lines.append(
                f"  predictions {c['predictions']:,}: {c['loads_speculative']:,} loaded ({c['prefetch_hits']:,} hit, "
                f"{c['used_late']:,} late, {c['wasted']:,} wasted), {c['redundant']:,} redundant, "
                f"{c['dropped_guard'] + c['dropped_no_victim'] + c['dropped_throttle']:,} dropped"
                + (f", {c['invalid']:,} invalid (repeated, or no expert of the trace)" if c["invalid"] else "")
            )
        return "\n".join(lines)


def _size(n_bytes: int) -> str:
    """Bytes in binary units: 1536 -> '1.5 KiB'."""
    power = min(4, max(0, (n_bytes.bit_length() - 1) // 10))
    value, unit = n_bytes / 1024**power, ("bytes", "KiB", "MiB", "GiB", "TiB")[power]
    return f"{value:,.0f} {unit}" if not power or value >= 100 else f"{value:.3g} {unit}"


def rates_of(c: dict[str, Any], n_tokens: int) -> dict[str, float]:
    """Rates from counts: hit_rate = hits / demands, yield = hits / fills, loads per token = fills / tokens, used and
    wasted of the speculative loads, compulsory of the misses, redundant and dropped of the predictions."""
    dropped = c["dropped_guard"] + c["dropped_no_victim"] + c["dropped_throttle"] + c["failed_prediction"]
    return {
        "hit_rate": _ratio(c["hits"], c["demands"]),
        "prefetch_hit_rate": _ratio(c["prefetch_hits"], c["demands"]),
        "compulsory_share": _ratio(c["compulsory"], c["misses"]),
        "yield": _ratio(c["hits"], c["fills"]),
        "used_share": _ratio(c["prefetch_hits"] + c["used_late"], c["loads_speculative"]),
        "wasted_share": _ratio(c["wasted"], c["loads_speculative"]),
        "redundant_share": _ratio(c["redundant"], c["predictions"]),
        "dropped_share": _ratio(dropped, c["predictions"]),
        "misses_per_token": _ratio(c["misses"], n_tokens),
        "loads_per_token": _ratio(c["fills"], n_tokens),
        "bytes_per_token": math.nan if c["bytes_moved"] is None else _ratio(c["bytes_moved"], n_tokens),
    }


def _ratio(above: int, below: int) -> float:
    return above / below if below else math.nan


def _percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.2f} %"


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"
