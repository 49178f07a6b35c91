"""What a priced replay found: tokens per second and where the seconds went, with intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from . import price_link
from .intervals import interval, ratio_interval, resampled, units_of

PHASES = ("prefill", "decode")
CAUSES = (
    "both_s", "hot_alone_s", "cold_alone_s", "late_s", "host_s", "jitter_s", "policy_s", "merge_s", "dense_s", "ids_s",
    "step_s",
)  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class Price:
    """One replay in seconds of one machine.

    label: SIMULATED from a measured machine with sheets for these rows, else ESTIMATED. totals [2 phases, state] as
    `price_link` names it; step_* [steps]: seconds, tokens accepted, phase, request, demands, misses and bytes moved of
    every step, over all phases. `without` is the price of the same options at width 0, `ceiling` that of an oracle of
    the same width, and `used`, `loaded` are speculative loads of the phase: demanded in time or late, and all.
    """

    label: str
    options: dict[str, Any]
    phase: str
    totals: np.ndarray
    step_s: np.ndarray
    step_tokens: np.ndarray
    step_phase: np.ndarray
    step_request: np.ndarray
    step_demands: np.ndarray
    step_misses: np.ndarray
    step_bytes: np.ndarray
    without: Price | None = None
    ceiling: Price | None = None
    used: int = 0
    loaded: int = 0

    @cached_property
    def _mine(self) -> np.ndarray:
        """The steps of the phase that is reported."""
        return np.ones(len(self.step_s), bool) if self.phase == "all" else self.step_phase == PHASES.index(self.phase)

    def _total(self, *names: str) -> float:
        phases = [0, 1] if self.phase == "all" else [PHASES.index(self.phase)]
        return float(sum(self.totals[phases, getattr(price_link, name)].sum() for name in names))

    def only(self, steps: np.ndarray) -> Price:
        """Of these steps (bool [steps]) alone: speeds, intervals and comparisons. Causes and busy shares become nan,
        since they are summed over the run, and the runs beside it are left out."""
        kept = {name: getattr(self, name)[steps] for name in self.__dataclass_fields__ if name.startswith("step_")}
        return replace(self, totals=np.full_like(self.totals, math.nan), without=None, ceiling=None, **kept)

    # --- the headline ---

    @property
    def seconds(self) -> float:
        return float(self.step_s[self._mine].sum())

    @property
    def tokens(self) -> int:
        return int(self.step_tokens[self._mine].sum())

    @property
    def tokens_per_s(self) -> float:
        """Accepted tokens per second of the phase that is reported; nan without steps."""
        return self.tokens / self.seconds if self.seconds else math.nan

    @cached_property
    def units(self) -> np.ndarray:
        """What a bootstrap draws as a whole, for the steps of the phase that is reported."""
        return units_of(self.step_request[self._mine])

    @cached_property
    def intervals(self) -> dict[str, tuple[float, float] | None]:
        """95 % intervals of the headline figures, from a block bootstrap over requests, or over steps."""
        mine = self._mine
        found = {
            name: ratio_interval(above[mine], below[mine], self.units)
            for name, above, below in (
                ("tokens_per_s", self.step_tokens, self.step_s),
                ("hit_rate", self.step_demands - self.step_misses, self.step_demands),
                ("bytes_per_token", self.step_bytes, self.step_tokens),
            )
        }
        found["gain"] = self.compared(self.without)[1] if self.without else None
        return found

    def compared(self, other: Price) -> tuple[float, tuple[float, float] | None]:
        """Tokens per second here over those of another configuration of the same steps, with its paired interval."""
        mine = self._mine
        if not np.array_equal(mine, other._mine):
            raise ValueError("prices of different steps cannot be paired")
        ratio = self.tokens_per_s / other.tokens_per_s if other.seconds else math.nan
        if not len(self.units) or self.units.max() < 1:
            return ratio, None
        drawn = resampled(
            self.units, self.step_tokens[mine], self.step_s[mine], other.step_tokens[mine], other.step_s[mine]
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            return ratio, interval(drawn[:, 0] / drawn[:, 1] / (drawn[:, 2] / drawn[:, 3]))

    def percentile(self, *ranks: float) -> list[float]:
        """Seconds per output token at these percentiles, over decode steps: a step's seconds over its accepted tokens.

        A step that serves several requests gives each of them a token: its seconds count whole.
        """
        decode = self.step_phase == 1
        tokens = np.where(self.step_request[decode] < 0, 1, np.maximum(1, self.step_tokens[decode]))
        each = self.step_s[decode] / tokens
        return [float(np.percentile(each, rank)) if each.size else math.nan for rank in ranks]

    # --- where the time goes, and what prefetch is worth ---

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by cause; they add up to `seconds`."""
        return {name: self._total(name.upper()) for name in CAUSES}

    @property
    def busy(self) -> dict[str, float]:
        """The share of the time that each resource works."""
        seconds = self.seconds or math.nan
        return {name: self._total(f"{name.upper()}_BUSY") / seconds for name in ("link", "gpu", "cold", "host")}

    @property
    def late(self) -> dict[str, Any]:
        """Hits whose copy had not landed when their tick came, the ticks that waited for one, and how long."""
        ticks = self._total("LATE_TICKS")
        return {
            "late_hits": int(self._total("LATE_HITS")),
            "late_ticks": int(ticks),
            "lateness_mean_s": self._total("LATENESS") / ticks if ticks else 0.0,
            "lateness_worst_s": float(self.totals[0, price_link.WORST_LATENESS]),
            "diverted": int(self._total("DIVERTED")),
        }

    @property
    def at_once(self) -> dict[str, int]:
        """Ticks with work for both chains, that did it at once and one after the other."""
        return {"ticks_overlapped": int(self._total("OVERLAPPED")), "ticks_serial": int(self._total("SERIAL"))}

    @cached_property
    def line(self) -> tuple[float, float, float]:
        """(base_s, miss_s, share explained) of seconds = base + miss * misses over decode steps of one token."""
        one = (self.step_phase == 1) & (self.step_tokens == 1)
        x, y = self.step_misses[one], self.step_s[one]
        if x.size < 2 or x.min() == x.max():
            return math.nan, math.nan, math.nan
        slope = float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
        base = float(y.mean() - slope * x.mean())
        spread = float(((y - y.mean()) ** 2).sum())
        return base, slope, 1 - float(((y - base - slope * x) ** 2).sum()) / spread if spread else math.nan

    @property
    def precision(self) -> float:
        """Of the speculative loads, the share that was demanded before it left: precision on non-resident experts."""
        return self.used / self.loaded if self.loaded else math.nan

    @property
    def break_even_precision(self) -> float:
        """The precision at which look-ahead would cost what it saves on this machine; above 1 none can pay.

        One more used load saves what a miss costs, the slope of the run without look-ahead; what all loads cost is what
        the two runs differ by beyond that. So look-ahead pays exactly if the measured precision is above it.
        """
        if self.without is None or not self.loaded:
            return math.nan
        saved = self.without.line[1]
        return self.precision + (self.seconds - self.without.seconds) / (self.loaded * saved) if saved > 0 else math.nan

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists; what is unknown is None."""
        mine = self._mine
        p50, p95, p99 = self.percentile(50, 95, 99)
        base, slope, explained = self.line
        by_phase = {}
        for number, name in enumerate(PHASES):
            chosen = self.step_phase == number
            seconds, tokens = float(self.step_s[chosen].sum()), int(self.step_tokens[chosen].sum())
            by_phase[name] = {
                "tokens": tokens, "seconds": seconds, "tokens_per_s": tokens / seconds if seconds else None
            }  # fmt: skip
        bounds = {
            name: {"tokens_per_s": other.tokens_per_s, "tokens_per_s_interval": other.intervals["tokens_per_s"]}
            if other
            else None
            for name, other in (("without", self.without), ("ceiling", self.ceiling))
        }
        return plain(
            {
                "label": self.label, **self.options,
                "tokens": self.tokens, "seconds": self.seconds, "tokens_per_s": self.tokens_per_s,
                "tokens_per_s_interval": self.intervals["tokens_per_s"],
                "hit_rate_interval": self.intervals["hit_rate"],
                "bytes_per_token": float(self.step_bytes[mine].sum()) / self.tokens if self.tokens else math.nan,
                "bytes_per_token_interval": self.intervals["bytes_per_token"],
                "gain": self.compared(self.without)[0] if self.without else None,
                "gain_interval": self.intervals["gain"],
                "tpot_p50_s": p50, "tpot_p95_s": p95, "tpot_p99_s": p99,
                "parts": self.parts, "busy": self.busy, **self.late, **self.at_once,
                "base_s": base, "miss_s": slope, "explained": explained,
                "precision": self.precision, "break_even_precision": self.break_even_precision,
                **bounds, "by_phase": by_phase,
            }
        )  # fmt: skip


def plain(value: Any) -> Any:
    """nan and infinity as None, tuples as lists: what JSON can say."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
