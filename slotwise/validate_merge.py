"""Several validations as one: other traces, other rows, other machines, and a verdict over all configurations."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from math import comb
from typing import Any

import numpy as np

from .validate_judge import concluded, doubts_of

OF_A_PART = (
    "rows", "trace", "content_sha256", "machine", "machine_sha256", "machine_date", "backend", "device", "processor",
    "restricted_to", "options", "verdict", "blocks", "blocks_dropped", "noise_floor", "drift",
)  # fmt: skip


def merge_validations(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What `slotwise.validate` returns, of all configurations of `results`; `parts` says what each of them was, and
    `part` of a configuration which of these it is from, from 1 on.

    Errors, strata and pairs are taken together, and the line that prices are held against is each result's own. Ranks
    are compared within a result. Where a machine was calibrated again after the last of its results, that counts for
    all of its results.
    """
    rows, pairs, doubts = [], [], []
    drifts = {
        one["machine_sha256"]: max(each["drift"] for each in results if _same(each, one) and each["drift"] is not None)
        for one in results
        if one["drift"] is not None
    }
    for number, one in enumerate(results, 1):
        labels = [row["label"] for row in one["configurations"]]
        drift = drifts.get(one["machine_sha256"])
        said = doubts_of(one["blocks"] - one["blocks_dropped"], one["noise_floor"], drift, labels)
        doubts += [f"part {number}, {one['rows']}, {one['trace']}: {doubt}" for doubt in said]
        pairs += [
            {**pair, "first": pair["first"] + len(rows), "second": pair["second"] + len(rows)}
            for pair in one["pairs"]["each"]
        ]
        rows += [{"part": number, **row} for row in one["configurations"]]
    measured = np.array([row["measured"] for row in rows])
    lines = np.array([row["baseline"] for row in rows]) / measured - 1
    ranked = [(one["kendall_tau"], comb(len(one["configurations"]), 2)) for one in results]
    ranked = [(tau, n) for tau, n in ranked if tau is not None]
    return {
        **results[0],
        **concluded(
            np.array([row["error"] for row in rows]), lines, [row["stratum"] for row in rows], pairs, doubts
        ),
        "blocks": min(one["blocks"] for one in results),
        "blocks_dropped": sum(one["blocks_dropped"] for one in results),
        "noise_floor": max(one["noise_floor"] for one in results),
        "drift": max(drifts.values(), default=None),
        "kendall_tau": sum(tau * n for tau, n in ranked) / sum(n for _, n in ranked) if ranked else None,
        "terms": {
            name: statistics.median(row["terms"][name]["predicted"] - row["terms"][name]["measured"] for row in rows)
            for name in results[0]["terms"]
        },
        **{name: ", ".join(dict.fromkeys(one[name] for one in results)) for name in ("rows", "trace", "machine")},
        "configurations": rows,
        "parts": [{name: one[name] for name in OF_A_PART} for one in results],
        "each_block": [block for one in results for block in one["each_block"]],
    }  # fmt: skip


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one["machine_sha256"] == other["machine_sha256"]
