"""`lag_prefetch="auto"`: the lag of speculative loads that a machine implies, before anything is replayed.

An expected tick serves one token whose top_k experts hit in the share of experts that have slots, with nothing else on
the link; a batch of `width` speculative rows lands after batch_s + width * (row_s + row_bytes / bytes_per_s).
The lag is the number of ticks that this takes, begun ones counted whole, less the tick in which the batch is started.
"""

from __future__ import annotations

import math
from typing import Any

from .errors import BadOption
from .machine import Machine
from .options import Options
from .price_tables import at_tokens, pack, sheets_for
from .pricing import Pricing
from .sizes import Size


def settled(options: Options, trace: Any, pricing: Pricing | None) -> Options:
    """The options with a number in place of `auto`. Raises BadOption where no machine says it."""
    if options.lag_prefetch != "auto":
        return options
    if pricing is None:
        raise BadOption("lag_prefetch='auto': it follows from a machine file; give machine, or a number of ticks")
    rows = options.rows_of(trace)
    if rows is None:
        raise BadOption(
            "lag_prefetch='auto': the trace does not record how large a row is; give row_bytes, or a number of ticks"
        )
    if not options.width:
        return options.but(lag_prefetch=0, lag_auto=True)
    machine, row_bytes = pricing.known, max(rows)
    landing = machine["copy_ahead_batch_s"] + options.width * machine.row_s("ahead", row_bytes)
    tick = expected_tick_s(machine, options, trace, row_bytes, pricing)
    return options.but(lag_prefetch=max(0, math.ceil(landing / tick) - 1), lag_auto=True)


def expected_tick_s(machine: Machine, options: Options, trace: Any, row_bytes: int, pricing: Pricing) -> float:
    """Seconds of a tick of one token that looks ahead, as the walk counts them, in means and undisturbed."""
    hits = trace.top_k * _resident(options.size(trace), trace, options.rows_of(trace) or ())
    misses = trace.top_k - hits
    hot_s, cold_s, fetched_s = _chain_s(machine, "hot", row_bytes, hits, pricing), 0.0, 0.0
    if options.miss == "fetch":
        fetched_s = machine["copy_demand_batch_s"] + misses * machine.row_s("demand", row_bytes)
        fetched_s += _chain_s(machine, "hot", row_bytes, misses, pricing)
    else:
        cold_s = _chain_s(machine, "cold", row_bytes, misses, pricing)
    chains_s = hot_s + cold_s if pricing.overlap == "off" else max(hot_s, cold_s)
    submit_s = machine["submit_cold_s"] + machine["submit_hot_s"] + 2 * machine["submit_batch_s"]
    submit_s += (misses + options.width) * machine["submit_load_s"] + pricing.policy_of(options)[2]
    device_s = machine["merge_s"] + trace.top_k * machine["merge_pair_s"]
    device_s += machine["dense_s"] + pricing.dense_us * 1e-6
    return (
        machine["ids_s"] + pricing.policy_of(options)[1] + max(submit_s, chains_s, fetched_s)
        + machine["submit_merge_s"] + max(machine["submit_next_s"], device_s)
    )  # fmt: skip


def _resident(size: Size, trace: Any, rows: tuple[int, ...]) -> float:
    """The share of the experts that have slots, over all layers."""
    if size.pool_bytes is not None:
        return min(1.0, size.pool_bytes / (trace.n_experts * sum(rows)))
    return min(1.0, sum(size.slots) / (trace.n_experts * trace.n_layers))


def _chain_s(machine: Machine, chain: str, row_bytes: int, rows: float, pricing: Pricing) -> float:
    """Seconds of a chain for so many rows of one token, in the mean; none for none."""
    found, _ = sheets_for(machine, chain, row_bytes, pricing.cpu_threads or machine.cpu_threads)
    table, shape = pack([[found]])
    return min(1.0, rows) * float(at_tokens(table, shape, 0, 0, 1, max(1.0, rows), 1.0, 0))
