"""What to run in so much VRAM on a machine: every candidate priced, the best one against what it is to beat."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from slotwise.policies.errors import BadPolicy
from slotwise.replay.errors import BadOption
from slotwise.replay.machine import Machine
from slotwise.replay.options import Options
from slotwise.replay.price import Price, plain
from slotwise.replay.pricing import Pricing
from slotwise.replay.result import Result
from slotwise.replay.run import run as replay_run
from slotwise.replay.sizes import parse_bytes
from slotwise.traces import Trace, open_trace

from .callable_file import callable_as_its_function

POLICIES = ("lru", "lfru", "lfru(half_life=16)", "lru+gate", "lfru+guard")
GIB = 1 << 30
SHARES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)  # of the pools that fit: the curve around them
FLAT = 0.01  # of tokens/s for a further GiB: less is not worth buying
Progress = Callable[[int, int, str], None]


def advise(
    trace: Trace | str | Path,
    machine: Machine | str | Path,
    vram: int | str,
    *,
    headroom: int | str = "900MiB",
    policies: Iterable[str] = POLICIES,
    widths: Iterable[int] | None = None,
    dense_us: float = 0.0,
    phase: str = "decode",
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, Any]:
    """The policy and width of most tokens per second in `vram` bytes less `headroom`, by prices of this trace.

    vram: what is free for experts once dense weights and the context have theirs, such as "8GiB". widths: by default
    0, and 4 where the trace has predictions. The other keywords are those of `slotwise.replay`; `row_bytes` where the
    trace does not say. progress: called with (prices done, prices in all, what).
    Everything holds for our executor: another engine has another overhead. All candidates are tried on the trace that
    the answer is for, so the best of many looks a little better than it is.
    Raises BadTrace, BadPolicy or BadOption.
    """
    opened = trace if isinstance(trace, Trace) else open_trace(trace)
    room = parse_bytes(vram) - parse_bytes(headroom)
    given = Options.of(slots=0, phase=phase, **options)
    rows = given.rows_of(opened)
    if rows is None:
        raise BadOption("the trace does not record how large a row is; give row_bytes")
    if room < sum(rows):
        raise BadOption(
            f"vram={vram} less headroom={headroom} leaves {max(0, room):,} bytes: a slot in each layer takes "
            f"{sum(rows):,}"
        )
    pricing = Pricing(machine, dense_us=dense_us, bounds=False)
    tried = sorted(set(widths if widths is not None else (0, min(4, opened.predicted_width))))
    grid = [(policy, each) for policy in policies for each in tried]
    most = opened.n_experts * sum(rows)
    room = min(room, most)
    sizes = sorted({min(max(int(room * share), sum(rows)), most) for share in SHARES})  # a slot a layer at least
    done, total = 0, len(grid) + len(sizes) + 4

    def price(what: str, ask: Options, bounds: bool = False) -> Result:
        nonlocal done
        if progress:
            progress(done, total, what)
        done += 1
        of = Pricing(pricing.known, dense_us=dense_us, bounds=bounds)
        return replay_run(opened, ask, pricing=of)

    found: list[tuple[str, int, Result]] = []
    refused: dict[str, str] = {}
    for policy, each in grid:
        try:
            ask = Options.of(policy=policy, vram=room, width=each, phase=phase, **options)
            found.append((policy, each, price(f"{policy}, width {each}", ask)))
        except BadPolicy as wrong:  # a guard has nothing to guard at width 0, and the like
            refused[f"{policy}, width {each}"] = str(wrong)
    if not found:
        raise BadOption(f"no candidate can be priced: {next(iter(refused.values()), 'name policies and widths')}")
    if not _of(found[0][2]).tokens:
        raise BadOption(f"the trace has no {phase} steps: use phase all")
    found.sort(key=lambda one: -_of(one[2]).tokens_per_s)
    asks = [Options.of(policy=policy, vram=room, width=each, phase=phase, **options) for policy, each, _ in found]
    ahead = next((price("look-ahead with its bounds", ask, bounds=True) for ask in asks if ask.width), None)
    empty = {"policy": "lru", "slots": 0, "phase": phase, **options}
    others = {
        "all_cpu": price("all on the CPU", Options.of(**empty | {"miss": "cpu"})),
        "no_cache": price("every row fetched", Options.of(**empty | {"miss": "fetch"})),
        "bound": price("the bound opt", Options.of(policy="opt", vram=room, phase=phase, **options)),
    }
    curve = [(size, price(f"{size / GIB:.1f} GiB", asks[0].but(vram=size))) for size in sizes]
    return plain(_advice(opened, rows, vram, headroom, room, pricing, found, refused, ahead, others, curve))


def _advice(
    trace: Trace, rows: tuple[int, ...], vram: int | str, headroom: int | str, room: int, pricing: Pricing,
    found: list[tuple[str, int, Result]], refused: dict[str, str], ahead: Result | None, others: dict[str, Result],
    curve: list[tuple[int, Result]],
) -> dict[str, Any]:  # fmt: skip
    """The answer as plain numbers."""
    best = found[0][2]
    price, slots = _of(best), best.options["slots"]
    cycle = trace.top_k * sum(rows)
    points = [
        {"pool_bytes": size, "slots": one.options["slots"], **_speed(_of(one)), "per_gib": None, "share_per_gib": None}
        for size, one in curve
    ]
    for here, after in pairwise(points):
        gained = (after["tokens_per_s"] - here["tokens_per_s"]) / ((after["pool_bytes"] - here["pool_bytes"]) / GIB)
        here |= {"per_gib": gained, "share_per_gib": gained / here["tokens_per_s"]}
    flat = next((one["pool_bytes"] for one in points if (one["share_per_gib"] or 0) < FLAT), None)
    warnings = []
    if room < cycle:
        warnings.append(
            f"the pools hold {room:,} bytes, less than a token cycle of {cycle:,} ({trace.top_k} rows in each layer): "
            "what a token needs pushes out what the next one needs"
        )
    still = next((one for _, width, one in found if not width), None)
    prefetch = None
    if ahead and still:
        ratio, interval = _of(ahead).compared(_of(still))
        prefetch = {
            "policy": ahead.options["policy"], "width": ahead.options["width"],
            "gain": ratio, "gain_interval": interval,
            "pays": ratio > 1 and interval is not None and interval[0] > 1,
            "precision": _of(ahead).precision, "break_even_precision": _of(ahead).break_even_precision,
            "ceiling": _speed(ceiling) if (ceiling := _of(ahead).ceiling) else None,
        }  # fmt: skip
    against = {}
    for name, one in others.items():
        ratio, interval = price.compared(_of(one))
        against[name] = {**_speed(_of(one)), "times": ratio, "times_interval": interval}
    return {
        "label": price.label, "machine": pricing.known.name, "trace": trace.name, "phase": best.options["phase"],
        "vram": parse_bytes(vram), "headroom": parse_bytes(headroom), "pool_bytes": room, "row_bytes": rows[0],
        "policy": best.options["policy"], "slots": slots, "width": best.options["width"], **_speed(price),
        "hit_rate": best.rates["hit_rate"], "busy": price.busy, "against": against, "prefetch": prefetch,
        "token_cycle_bytes": cycle, "warnings": warnings,
        "curve": points, "flat_from_bytes": flat,
        "candidates": [{"policy": policy, "width": width, **_speed(_of(one))} for policy, width, one in found],
        "refused": refused,
    }  # fmt: skip


def _of(result: Result) -> Price:
    assert result.price is not None
    return result.price


def _speed(price: Price) -> dict[str, Any]:
    return {"tokens_per_s": price.tokens_per_s, "tokens_per_s_interval": price.intervals["tokens_per_s"]}


callable_as_its_function(__name__)
