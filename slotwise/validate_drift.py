"""By how much two calibrations of a machine differ: in what they measured, and in the prices that come of it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from slotwise.replay.machine import Machine
from slotwise.replay.result import Result

HOST = "ids_s", "policy_s", "submit_hot_s", "submit_cold_s", "submit_merge_s", "submit_next_s", "merge_s"


def drift_by_part(one: Machine, other: Machine) -> dict[str, float]:
    """By which share a second calibration is above the first, by what it measured."""
    found = {}
    for chain in ("hot", "cold"):
        cells = [
            b / a - 1
            for first, second in zip(one.sheets, other.sheets, strict=True)
            if first.chain == chain
            for a, b in zip(sum(first.seconds, ()), sum(second.seconds, ()), strict=True)
        ]
        found[chain] = statistics.median(cells)
    row = next(sheet.row_bytes for sheet in one.sheets)
    link = [m["copy_demand_row_s"] + row / m["copy_demand_bytes_per_s"] for m in (one, other)]
    host = [sum(m[name] for name in HOST) for m in (one, other)]
    return found | {"link": link[1] / link[0] - 1, "host": host[1] / host[0] - 1}


def price_drift(laws: Sequence[Result], others: Sequence[Result]) -> float:
    """The median share by which the prices of the same configurations differ; they came of two calibrations."""
    pairs = [(law.price, other.price) for law, other in zip(laws, others, strict=True)]
    return statistics.median(abs(b.tokens_per_s / a.tokens_per_s - 1) for a, b in pairs if a and b)
