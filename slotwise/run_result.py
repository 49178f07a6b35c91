"""What came out of runs -> one plain row for each side: options, counters, seconds, bandwidths beside ceilings."""

from __future__ import annotations

import os
import platform
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from slotwise.executor.drive import Driven
from slotwise.executor.errors import CheckFailed
from slotwise.executor.executor import Executor
from slotwise.executor.timing import TickTimes, overlap_efficiency, stretch, summary
from slotwise.executor.watch import Watch
from slotwise.policies.layout import COUNTERS
from slotwise.replay.tally import MOVED
from slotwise.traces import Trace

_STEPS = ("seconds", "step_p50_s", "step_p95_s", "step_p99_s")


class Outcome(NamedTuple):
    """One run of one side. `ticks` is None unless it was timed tick by tick."""

    counters: dict[str, Any]
    plan_sha256: str | None
    failures: list[dict[str, Any]]
    ticks: list[TickTimes] | None
    timing: dict[str, Any]
    requests: int
    broken: dict[str, Any] | None  # after how many steps it broke off, and why
    outputs_sha256: str | None
    largest_error: float | None


def outcome(executor: Executor, driven: Driven, watch: Watch | None) -> Outcome:
    """Of an executor that has nothing left to do."""
    transfers = executor.transfers
    timing = summary(executor.ticks or [], driven.step_s, driven.tokens) | {
        "diverted": executor.dispatcher.diverted,
        "reader_waits": executor.backend.reader_waits,
        "copies": transfers.n_copies,
        "copy_batches": transfers.n_batches,
        "bytes_copied": transfers.bytes_copied,
        "bytes_padded": transfers.bytes_padded,
        "hurried": transfers.hurried,
        "overtaken": transfers.overtaken,
        "requeued": transfers.requeued,
        "ticks_overlapped": executor.dispatcher.overlapped,
        "ticks_serial": executor.dispatcher.serial,
        "bytes_hot": executor.dispatcher.bytes_hot,
        "bytes_cold": executor.dispatcher.bytes_cold,
    }
    return Outcome(
        counters=executor.pool.counters | _bytes(executor) | {"pollution": None},
        plan_sha256=executor.plan_hash.hexdigest() if executor.plan_hash else None,
        failures=executor.failures,
        ticks=executor.ticks,
        timing=timing,
        requests=len(driven.requests),
        broken={"steps": len(driven.step_s), "error": driven.broken} if driven.broken else None,
        outputs_sha256=watch.outputs_sha256 if watch else None,
        largest_error=watch.largest_error if watch and watch.n_sampled else None,
    )


def _bytes(executor: Executor) -> dict[str, int]:
    """As a replay counts them; one of a split dispatch, which is no part of the plan, is a replay with `miss=cpu`."""
    counts, rows = executor.pool.buffer.counters, executor.store.row_bytes

    def of(*names: str) -> int:
        return sum(int(counts[:, COUNTERS.index(name)] @ rows) for name in names)

    loaded = of("fills")
    return {
        "bytes_loaded": loaded,
        "bytes_moved": loaded + of(*MOVED["fetch" if executor.dispatcher.miss == "fetch" else "cpu"]),
    }


def machine() -> str:
    """Processor and cores, in words."""
    about = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    name = next((line.split(":")[1].strip() for line in about if line.startswith("model name")), platform.processor())
    return f"{name or platform.machine()}, {len(os.sched_getaffinity(0))} logical cores"


def hold_together(outcomes: list[Outcome]) -> None:
    """Raises CheckFailed unless all runs decided the same, and computed the same bytes where the same chain did."""
    whole = [one for one in outcomes if not (one.broken or one.failures)]
    for one in whole[1:]:
        if (one.counters, one.plan_sha256) != (whole[0].counters, whole[0].plan_sha256):
            raise CheckFailed("two runs of one configuration decided differently")
        if one.outputs_sha256 != whole[0].outputs_sha256 and not (
            one.timing["diverted"] or whole[0].timing["diverted"]
        ):
            raise CheckFailed(
                "two runs of one configuration computed different outputs: in one of them a row was not there in time"
            )


def row(
    trace: Trace,
    options: dict[str, Any],
    settings: dict[str, Any],
    side: str,
    outcomes: dict[str, list[Outcome]],
    ceilings: dict[str, Any],
    cycle: int,
) -> dict[str, Any]:
    """One side as `--json` prints it and `-o` keeps it. Of its runs the last was timed tick by tick, the others not.

    options: as a replay records them; settings: what only a run has, without side and machine; cycle: the
    bytes that one token touches.
    `tokens_per_s` is the median of the runs that were not, with the list of all and their range. `achieved` is bytes
    over the seconds in which they moved or were read, in the timed run; a row counts once, however many tokens it had,
    and copies that only pad the link count.
    """
    mine = outcomes[side]
    first, timed = mine[0], mine[-1]
    plain = [one.timing for one in mine if one.ticks is None and not one.broken] or [first.timing]
    rates = [timing["tokens_per_s"] for timing in plain if timing["tokens_per_s"]]
    timing = timed.timing | {name: first.timing[name] for name in ("steps", "tokens")}
    timing |= {name: statistics.median(one[name] for one in plain) for name in _STEPS}
    timing |= {
        "repeats": len(plain),
        "timed_s": timed.timing["seconds"] if timed.ticks else 0.0,
        "tokens_per_s": statistics.median(rates) if rates else None,
        "tokens_per_s_range": [min(rates), max(rates)] if rates else None,
        "tokens_per_s_runs": rates,
        "overlap_efficiency": None,
    }
    if len(outcomes) == 2 and not settings["incomplete"]:
        on, off = (outcomes[overlap][-1].ticks or [] for overlap in ("on", "off"))
        timing["overlap_efficiency"] = overlap_efficiency(on, off)
    ticks = timed.ticks or []
    copied = sum(n_bytes for tick in ticks for _, _, n_bytes in tick.copies)
    achieved = {
        "copies_per_s": _per_s(copied, timing["copies_s"]),
        "cold_per_s": _per_s(timing["bytes_cold"], timing["cold_s"]),
        "hot_per_s": _per_s(timing["bytes_hot"], timing["hot_s"]),
    }
    counters = first.counters
    if options["miss"] == "split":  # what it fetched beside the plan counts as moved
        counters = counters | {"bytes_moved": first.timing["bytes_copied"]}
    return {
        "measured": True,
        "trace": trace.name, "trace_sha256": trace.sha256, "content_sha256": trace.content_sha256,
        "model": trace.model, "n_layers": trace.n_layers, "n_experts": trace.n_experts, "top_k": trace.top_k,
        "n_tokens": timing["tokens"], "n_tokens_counted": timing["tokens"], "n_steps": timing["steps"],
        "n_requests": first.requests, **options,
        "overlap": side, "machine": machine(), **settings, "counters": counters,
        "token_cycle_bytes": cycle,
        "plan_sha256": first.plan_sha256, "seconds": timing["seconds"], "failures": first.failures,
        "largest_error": timed.largest_error,
        "timing": timing, "achieved": achieved, "ceilings": ceilings, "stretch": stretch(ticks),
    }  # fmt: skip


def _per_s(n_bytes: int, seconds: float) -> float | None:
    return n_bytes / seconds if n_bytes and seconds else None
