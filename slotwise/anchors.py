"""Anchors: speeds that the user's own engine reached at some sizes set what a step and a miss cost there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slotwise.replay.errors import BadOption
from slotwise.replay.price import Price

MOST = 1e9  # tokens per second
EXAMPLE = "--anchor slots=0,tps=42.3 --anchor slots=124,tps=51.3"


@dataclass(frozen=True)
class Anchor:
    """One run of an engine: slots in each layer, and the tokens per second that it reached in decode.

    Raises BadOption where they cannot be.
    """

    slots: int
    tokens_per_s: float

    def __post_init__(self):
        if not (self.slots >= 0 and 0 < self.tokens_per_s <= MOST):
            raise BadOption(
                f"anchor slots={self.slots},tps={self.tokens_per_s:g}: slots are 0 or more, tokens per second above 0 "
                f"and at most {MOST:g}; give a speed that your engine reached"
            )

    @classmethod
    def of(cls, given: Anchor | str) -> Anchor:
        """From `slots=124,tps=51.3`."""
        if isinstance(given, Anchor):
            return given
        found = re.fullmatch(r"\s*slots\s*=\s*(\d{1,9})\s*,\s*tps\s*=\s*(\d+(?:\.\d+)?|\.\d+)\s*", str(given))
        if not found:
            raise BadOption(
                f"anchor {given!r}: write slots per layer and tokens per second, such as slots=124,tps=51.3"
            )
        return cls(int(found[1]), float(found[2]))


@dataclass(frozen=True)
class Fit:
    """Seconds of a step = base_s + miss_s * misses: solved for two anchors, least squares for more.

    points: slots, tokens_per_s, steps and misses per token of each anchor, and what the line gives there.
    """

    base_s: float
    miss_s: float
    policy: str
    points: tuple[dict[str, float], ...]

    def priced(self, price: Price) -> Price:
        """The same replay by this line: what loads, links and overlap cost beyond misses is not in it."""
        totals = np.full_like(price.totals, np.nan)
        step_s = self.base_s + self.miss_s * price.step_misses
        return replace(price, label="SIMULATED", totals=totals, step_s=step_s, without=None, ceiling=None)

    def to_dict(self) -> dict[str, Any]:
        return {"base_s": self.base_s, "miss_s": self.miss_s, "policy": self.policy, "points": list(self.points)}


def fit_anchors(given: Iterable[Anchor | str], policy: str, replayed: Callable[[int], Price]) -> Fit:
    """Fits the line through at least two anchors. replayed: the price of a replay of `policy` with so many slots.

    tokens/s = tokens / (steps * base + misses * cost), so seconds per token are linear in what is sought.
    Raises BadOption for anchors that do not tell base and cost, or tell negative ones.
    """
    anchors = [Anchor.of(each) for each in given]
    if len(anchors) < 2:
        raise BadOption(f"{len(anchors)} anchor: a line needs two runs of the same engine, such as {EXAMPLE}")
    rows = []
    for anchor in anchors:
        price = replayed(anchor.slots)
        mine = price.step_phase == 1
        tokens = int(price.step_tokens[mine].sum())
        if not tokens:
            raise BadOption("anchors are speeds of decode, and the trace has no decode steps")
        rows.append((float(mine.sum()) / tokens, float(price.step_misses[mine].sum()) / tokens))
    known, seconds = np.array(rows), np.array([1 / anchor.tokens_per_s for anchor in anchors])
    misses = known[:, 1]
    told = ", ".join(f"slots={a.slots}: {m:.2f} misses a token, {a.tokens_per_s:g} tokens/s"
                     for a, m in zip(anchors, misses, strict=True))  # fmt: skip
    if np.ptp(misses) <= 1e-9 * max(1.0, float(misses.max())):
        raise BadOption(f"anchors ({told}): {policy} misses alike there; give runs at sizes further apart")
    base, cost = map(float, np.linalg.lstsq(known, seconds, rcond=None)[0])
    if base <= 0 or cost <= 0:
        which = "a miss" if cost <= 0 else "a step without misses"
        raise BadOption(
            f"anchors ({told}): {which} would take {1e6 * (cost if cost <= 0 else base):.3g} us; "
            "are they runs of one engine on this workload, and is --anchor-policy what it runs?"
        )
    by_line = 1 / (known @ [base, cost])
    points = tuple(
        {"slots": a.slots, "tokens_per_s": a.tokens_per_s, "steps_per_token": float(row[0]),
         "misses_per_token": float(row[1]), "by_line": float(line)}
        for a, row, line in zip(anchors, rows, by_line, strict=True)
    )  # fmt: skip
    return Fit(base, cost, policy, points)
