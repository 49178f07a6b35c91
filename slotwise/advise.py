"""What to run in so much VRAM on a machine: every candidate priced, the best one against what it is to beat."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from slotwise.policies import parse_policy
from slotwise.policies.errors import BadPolicy
from slotwise.replay.errors import BadOption
from slotwise.replay.machine import Machine
from slotwise.replay.options import Options
from slotwise.replay.price import plain
from slotwise.replay.pricing import Pricing
from slotwise.reports.metrics import size
from slotwise.traces import Trace, open_trace

from .advise_memory import Memory, as_rows, memory_of, told_short
from .advise_parts import gained, speed, warm_up
from .advise_slots import allocate, layer_curves, sizes_of
from .advise_study import Candidate, Progress, Ranking, Study, price_of
from .advise_words import sentences
from .anchors import Anchor, fit_anchors
from .callable_file import callable_as_its_function
from .engine_flags import flags_for

POLICIES = ("lru", "lfru", "lfru(half_life=16)", "lru+gate", "lfru+guard")
SCOPES, OVERLAPS = ("layer", "global"), ("on", "off")
WIDTH = 4  # tried beside 0 where somebody predicts
GIB = 1 << 30
SHARES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)  # of the pools that fit: the curve around them
FLAT = 0.01  # of tokens/s for a further GiB: less is not worth buying


def advise(
    trace: Trace | str | Path,
    machine: Machine | str | Path,
    vram: int | str,
    *,
    headroom: int | str = "900MiB",
    context_bytes: int | str | None = None,
    gguf: str | Path | None = None,
    ctx: int | None = None,
    kv_type: str | None = None,
    draft: str | Path | None = None,
    anchors: Iterable[Anchor | str] = (),
    anchor_policy: str | None = None,
    policies: Iterable[str] = POLICIES,
    widths: Iterable[int] | None = None,
    scopes: Iterable[str] = SCOPES,
    overlaps: Iterable[str] = OVERLAPS,
    dense_us: float = 0.0,
    phase: str = "decode",
    output: str | Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, Any]:
    """The policy, scope, width and overlap of most tokens per second in `vram` bytes, by prices of this trace.

    They are chosen on the first part of the trace, and every speed told is of the rest, where it is long enough.

    vram: what is free, such as "8GiB": for experts alone, or with gguf for the whole model. From it go headroom,
    context_bytes, and with gguf (the model's file, of which only the header is read) its dense weights, the context of
    ctx tokens whose keys and values are kv_type (default f16), and the model of draft with its own.
    anchors: at least two speeds of the user's engine, such as "slots=124,tps=51.3" (slots in each layer, decode), from
    which come the seconds of a step and of a miss; anchor_policy (default lru) is what it runs. Candidates differ by
    their misses alone then, and widths are 0 unless given. Without anchors everything holds for our executor.
    widths: by default 0, and 4 where there are predictions. output: also write a page there; an existing file is
    replaced only with force. The other keywords are those of `slotwise.replay`; `row_bytes` where the trace does not
    say. progress: called with (prices done, prices in all, what).
    Raises BadTrace, BadPolicy, BadOption, BadExecutor (of a GGUF file) or BadResult (of the page).
    """
    if output is not None:
        from slotwise.reports.advice import check_page

        check_page(output, force=force, read=[f for f in (trace, machine, gguf, draft) if isinstance(f, str | Path)])
    if "scope" in options:
        raise BadOption(f"scope={options['scope']!r}: several are tried; give scopes=({options['scope']!r},)")
    policies, anchors = list(policies), list(anchors)
    if anchor_policy is not None and not anchors:
        raise BadOption(f"anchor_policy={anchor_policy!r}: it is what the engine of anchors runs; give anchors with it")
    anchor_policy = anchor_policy or "lru"
    if options.get("steps") == 0:
        raise BadOption("steps=0: there is nothing to price; give at least 1, or leave it out for all of them")
    for name in [*policies, anchor_policy]:
        if parse_policy(name).policy.needs_future:
            raise BadPolicy(f"{name} needs to know the future, so no engine can run it; opt is told of as the bound")
    opened = trace if isinstance(trace, Trace) else open_trace(trace)
    memory = memory_of(
        opened, vram, headroom, context=context_bytes, gguf=gguf, ctx=ctx, kv_type=kv_type, draft=draft
    )  # fmt: skip
    if memory.rows:
        if options.get("row_bytes") is not None:
            raise BadOption(
                f"row_bytes={options['row_bytes']}: the header of gguf says how large rows are; leave it out"
            )
        opened = opened.with_row_bytes(memory.rows)
    rows = Options.of(slots=0, phase=phase, **options).rows_of(opened)
    if rows is None:
        raise BadOption("the trace does not record how large a row is; give row_bytes, or gguf")
    if memory.room < sum(rows):
        raise BadOption(told_short(memory, sum(rows)))
    room = min(memory.room, opened.n_experts * sum(rows))
    study = Study(opened, Pricing(machine).known, dense_us, progress)
    given = {"phase": phase, **options}
    if anchors:
        if phase != "decode":
            raise BadOption(f"phase={phase!r}: anchors are speeds of decode; leave them out, or price decode")
        none = Options.of(policy=anchor_policy, slots=0, **given)

        def at(slots: int):
            if slots > opened.n_experts:
                raise BadOption(f"anchor slots={slots}: slots in each layer, and one has {opened.n_experts} experts")
            return price_of(study.replay(f"anchor, {slots} slots", none.but(slots=slots)))

        study.fit = fit_anchors(anchors, anchor_policy, at)
        overlaps = ("on",)  # a line in misses knows no other
    predicting = opened.predicted_width or options.get("predictor", "trace") not in ("trace", "none")
    usual = (0,) if anchors or not predicting else (0, min(WIDTH, opened.predicted_width or WIDTH))
    wanted = [*(int(room * share) for share in SHARES), room + GIB]
    sizes = sorted({min(max(size, sum(rows)), opened.n_experts * sum(rows)) for size in wanted})
    study.total = len(sizes) + len(sizes_of(opened.n_experts)) + 5 + study.done
    tried = sorted(set(usual if widths is None else widths))
    found, refused = study.candidates(policies, tried, scopes, overlaps, {"vram": room, **given})
    ranking = Ranking.of(found)
    best = ranking.candidates[0]
    against = _against(study, ranking, best, given, refused)
    resident = room == opened.n_experts * sum(rows) and best.ask.reset == "persistent"
    prefetch = None if resident else _prefetch(study, ranking, best)
    curve, flat = _curve(study, ranking, best, sizes)
    advice = plain(
        {
            "format": "slotwise.advice", "version": 1,
            **_headline(study, ranking, best, memory, room, rows),
            "against": against, "all_resident": resident, "prefetch": prefetch, "curve": curve, "flat_from_bytes": flat,
            "by_layer": _by_layer(study, ranking, rows),
            "candidates": ranking.rows(), "refused": refused,
        }
    )  # fmt: skip
    advice["answer"] = sentences(advice)
    if output is not None:
        from slotwise.reports.advice import write_page

        write_page(advice, output, force=force)
    return advice


def _headline(
    study: Study, ranking: Ranking, best: Candidate, memory: Memory, room: int, rows: tuple[int, ...]
) -> dict[str, Any]:
    """What to run, how fast that is, and what it stands on."""
    price, spec, options = ranking.judged(best.price), best.ask.spec, best.result.options
    cycle = study.trace.top_k * sum(rows)
    warnings = list(memory.warnings)
    if room < cycle:
        warnings.append(
            f"the pools hold {room:,} bytes, less than a token cycle of {cycle:,} ({study.trace.top_k} rows in each "
            "layer): what a token needs pushes out what the next one needs"
        )
    if ranking.parts.by is None:
        warnings.append(
            "the trace is too short to hold a part of it out: the answer was chosen on the steps that it is for, so it "
            "looks a little better than it is"
        )
    if best.ask.verify_tokens > 1:
        warnings.append(
            "verify steps hold the tokens that follow in the trace in place of rejected ones, which is optimistic"
        )
    each = min(study.trace.n_experts, room // sum(rows))
    return {
        "label": price.label, "machine": study.machine.name, "trace": study.trace.name,
        "trace_sha256": study.trace.sha256, "model": study.trace.model, "n_layers": study.trace.n_layers,
        "n_experts": study.trace.n_experts, "top_k": study.trace.top_k, "phase": best.ask.phase,
        "priced_by": "anchors" if study.fit else "machine", "anchors": study.fit.to_dict() if study.fit else None,
        "memory": as_rows(memory), "sum": memory.told(), "pool_bytes": room, "row_bytes": list(rows),
        "token_cycle_bytes": cycle, "layer_slots": each,
        **best.named(), "gate": spec.gate is not None, "guard": spec.guard is not None,
        "slots": options["slots"], "slots_by_layer": options["slots_by_layer"],
        "verify_tokens": best.ask.verify_tokens, "accept": best.ask.accept,
        **speed(price), "hit_rate": 1 - float(price.step_misses.sum() / price.step_demands.sum()),
        "hit_rate_interval": price.intervals["hit_rate"], "busy": best.price.busy,
        "held_out": ranking.parts.to_dict(), "warm_up": warm_up(best.price, best.ask.reset),
        "warnings": warnings,
        "flags": flags_for(slots=each, pool_bytes=room, width=best.width, overlap=best.overlap),
    }  # fmt: skip


def _against(
    study: Study, ranking: Ranking, best: Candidate, given: dict[str, Any], refused: dict[str, str]
) -> dict[str, Any]:
    """The best one's speed over those of no cache, of the CPU alone and of the bound."""
    empty = {**given, "policy": "lru", "slots": 0}
    asks = {"all_cpu": ("all on the CPU", Options.of(**empty | {"miss": "cpu"}))}
    if not study.fit:  # anchors say what a miss costs, not what it would if every row were fetched
        asks["no_cache"] = ("every row fetched", Options.of(**empty | {"miss": "fetch"}))
    asks["bound"] = ("the bound opt", Options.of(**given, policy="opt", vram=best.ask.vram, scope=best.scope))
    out = {}
    for name, (what, ask) in asks.items():
        try:
            price = ranking.judged(price_of(study.replay(what, ask, overlap=best.overlap)))
        except BadPolicy as wrong:  # the bound of a pool of bytes is not known
            refused[what] = str(wrong)
            continue
        ratio, interval = ranking.judged(best.price).compared(price)
        out[name] = {**speed(price), "times": ratio, "times_interval": interval}
    return out


def _prefetch(study: Study, ranking: Ranking, best: Candidate) -> dict[str, Any] | None:
    """Whether look-ahead pays on this machine, and the precision from which it would.

    The fastest candidate that looks ahead is held against the fastest that does not. Where none was tried, the best
    one is given the trace's predictions, or an oracle's if it has none: then the answer is what could be had at most.
    """
    ahead = None if study.fit else ranking.best(lambda one: one.width > 0)
    still = ranking.best(lambda one: not one.width)
    trace = study.trace
    ask, overlap = best.ask, best.overlap
    if ahead:
        ask, overlap = ahead.ask, ahead.overlap
    elif not ask.width:
        real = trace.predicted_width > 0
        width = min(WIDTH, trace.predicted_width) if real else WIDTH
        ask = ask.but(width=width, predictor="trace" if real else "oracle")
    try:
        result = study.replay("look-ahead with its bounds", ask, overlap=overlap, bounds=True, by_machine=True)
    except BadPolicy:
        return None
    price = price_of(result)
    beside = still.price if ahead and still else price.without
    if beside is None:
        return None
    ratio, interval = ranking.judged(price).compared(ranking.judged(beside))
    ceiling = None
    if price.ceiling:
        gain, between = ranking.judged(price.ceiling).compared(ranking.judged(beside))
        ceiling = {**speed(ranking.judged(price.ceiling)), "gain": gain, "gain_interval": between}
    return {
        "label": price.label, "policy": ask.policy, "width": ask.width, "predictor": ask.predictor, "scope": ask.scope,
        "gain": ratio, "gain_interval": interval, "pays": interval is not None and interval[0] > 1,
        "precision": price.precision, "break_even_precision": price.break_even_precision, "ceiling": ceiling,
    }  # fmt: skip


def _curve(study: Study, ranking: Ranking, best: Candidate, sizes: list[int]) -> tuple[list[dict[str, Any]], int]:
    """Speed along the size of the pools, what a GiB more brings up to the next size, and from where on that is next to
    nothing all the way."""
    results = [study.replay(size(each), best.ask.but(vram=each), overlap=best.overlap) for each in sizes]
    prices = [ranking.judged(price_of(one)) for one in results]
    points = [
        {"pool_bytes": each, "slots": one.options["slots"], **speed(price), "per_gib": None, "per_gib_interval": None,
         "share_per_gib": None}
        for each, one, price in zip(sizes, results, prices, strict=True)
    ]  # fmt: skip
    for at, (here, after) in enumerate(pairwise(points)):
        gib = (after["pool_bytes"] - here["pool_bytes"]) / GIB
        gain, interval = gained(prices[at], prices[at + 1])
        here["per_gib"] = gain / gib
        here["per_gib_interval"] = None if interval is None else [one / gib for one in interval]
        here["share_per_gib"] = gain / gib / here["tokens_per_s"]
    steep = [at for at, one in enumerate(points) if (one["share_per_gib"] or 0) >= FLAT]
    return points, points[steep[-1] + 1 if steep else 0]["pool_bytes"]


def _by_layer(study: Study, ranking: Ranking, rows: tuple[int, ...]) -> dict[str, Any] | None:
    """Slots that differ by layer, divided by the hits of the steps that choose, against as many bytes evenly.

    None without pools per layer, or without steps held out to judge on.
    """
    even = ranking.best(lambda one: one.scope == "layer")
    if even is None or ranking.parts.by is None:
        return None
    first = int(ranking.parts.judged.argmax())
    sizes = sizes_of(study.trace.n_experts)
    hits = layer_curves(sizes, lambda size: study.hits(even.ask.but(vram=None, slots=size, steps=first)))
    slots = allocate(sizes, hits, rows, even.result.options["capacity_bytes"])
    ask = even.ask.but(vram=None, slots=tuple(slots))
    price = ranking.judged(price_of(study.replay("slots by layer", ask, overlap=even.overlap)))
    ratio, interval = price.compared(ranking.judged(even.price))
    return {
        "policy": even.policy, "width": even.width, "overlap": even.overlap, "slots": slots, **speed(price),
        "gain": ratio, "gain_interval": interval, "pays": interval is not None and interval[0] > 1,
    }  # fmt: skip


callable_as_its_function(__name__)
