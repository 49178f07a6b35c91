"""Shaping workloads: split a trace in two, cut a part out of it, merge several; nothing is copied until it is saved."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np

from .errors import BadTrace
from .meta import Meta
from .picked import picked
from .trace import Trace, step_changes

PARTS = ("weights", "predictions", "token-ids")  # what a trace may have besides its rows, and be left without
PHASES = {"prefill": 0, "decode": 1}


def split(
    trace: Trace, *, share: float | None = None, seed: int = 0, ids: Iterable[int] = (), labels: Iterable[str] = ()
) -> tuple[Trace, Trace]:
    """Whole requests apart: (train, held out). Ids, labels and steps of requests stay what they were.

    Held out are the requests named by `ids` and `labels`, or, drawn by `seed`, all but a `share` of them (default 0.8;
    rounded, at least one on either side). Rows keep their order. Raises BadTrace.
    """
    request = trace.rows("request")["request"]
    known = np.unique(request).tolist()
    named = _requests(trace, known, ids, labels)
    if named and share is not None:
        raise BadTrace(f"split: share={share} and requests by name; give one of them")
    share = 0.8 if share is None else share
    if named:
        held, done = named, f"requests {_listed(named)} held out"
    else:
        held, done = _drawn(trace, known, share, seed), f"share {share:g}, seed {seed}"
    if len(held) == len(known):
        raise BadTrace(f"split: all {len(known)} requests of {trace.name} are held out; leave some to train on")
    out = np.isin(request, held)
    step = trace.rows("step")["step"]

    def part(chosen: np.ndarray, which: str) -> Trace:
        take = np.flatnonzero(chosen)
        name = f"{trace.name}-{which.replace(' ', '-')}"
        return picked([trace], take, request[take], step[take], trace.meta, name=name, done=f"{which} ({done})")

    return part(~out, "train"), part(out, "held out")


def cut(
    trace: Trace,
    *,
    steps: slice | None = None,
    ids: Iterable[int] = (),
    labels: Iterable[str] = (),
    layers: slice | None = None,
    phase: str | None = None,
    without: Iterable[str] = (),
) -> Trace:
    """What all of the conditions leave: `steps` (counted from 0, whatever the column says), requests by `ids` and
    `labels`, MoE `layers` (neighbours, so that predictions stay predictions), rows of a `phase`.

    `without` leaves out "weights", "predictions" or "token-ids". Request ids and steps stay what they were; the first
    `horizon` layers that are left have no predictions. Raises BadTrace.
    """
    rows = trace.rows("request", "step", "phase")
    keep, done = np.ones(trace.n_tokens, bool), []
    if steps is not None:
        chosen, words = _span("steps", steps, trace.n_steps, trace)
        index = np.zeros(trace.n_tokens, np.int64)
        index[step_changes(rows["step"])] = 1
        index = np.cumsum(index)
        keep &= (index >= chosen.start) & (index < chosen.stop)
        done.append(words)
    if named := _requests(trace, np.unique(rows["request"]).tolist(), ids, labels):
        keep &= np.isin(rows["request"], named)
        done.append(f"requests {_listed(named)}")
    if phase is not None:
        if phase not in PHASES:
            raise BadTrace(f"cut: phase={phase!r}; it is 'prefill' or 'decode'")
        keep &= rows["phase"] == PHASES[phase]
        done.append(phase)
    kept = range(trace.n_layers)
    if layers is not None:
        kept, words = _span("layers", layers, trace.n_layers, trace)
        done.append(words)
    without = frozenset(without)
    if wrong := sorted(without - set(PARTS)):
        raise BadTrace(f"cut: without {wrong[0]!r}; known: {', '.join(PARTS)}")
    done += [f"no {what}" for what in PARTS if what in without]
    if not done:
        raise BadTrace("cut: nothing to cut by; give steps, requests, layers, a phase, or what to leave out")
    take = np.flatnonzero(keep)
    return picked(
        [trace], take, rows["request"][take], rows["step"][take], trace.meta,
        name=f"{trace.name}-cut", done=f"cut ({', '.join(done)})", layers=kept, without=without,
    )  # fmt: skip


def merge(traces: Sequence[Trace], *, order: str = "sequence", model: str | None = None) -> Trace:
    """One workload of several traces of one model: one after the other (`order="sequence"`), or a step of each in turn
    ("interleaved"; those that are over are passed by).

    Requests stay apart and are numbered anew from 0, trace by trace, as are steps; labels stay. Shape, model, revision,
    router, layers and row sizes must agree where two traces give them, and what they record; `model` says that
    differently named models are one. Raises BadTrace.
    """
    if order not in ("sequence", "interleaved"):
        raise BadTrace(f"merge: order={order!r}; it is 'sequence' or 'interleaved'")
    if len(traces) < 2:
        raise BadTrace(f"merge: {len(traces)} trace; it takes two or more")
    meta = _agreed(traces, model)
    request, turn, requests, n_requests = [], [], [], 0
    for trace in traces:
        rows = trace.rows("request", "step")
        known, numbers = np.unique(rows["request"], return_inverse=True)
        request.append((numbers + n_requests).astype(np.int32))
        said = {r["id"]: r for r in trace.meta.requests}
        requests += [{**said[k], "id": n_requests + i} for i, k in enumerate(known.tolist()) if k in said]
        n_requests += len(known)
        steps = np.zeros(trace.n_tokens, np.int64)
        steps[step_changes(rows["step"])] = 1
        turn.append(np.cumsum(steps))
    index, which = np.concatenate(turn), np.repeat(np.arange(len(traces)), [t.n_tokens for t in traces])
    key = (which, index) if order == "sequence" else (index, which)
    take = np.lexsort(key[::-1])  # stable: rows of a step keep their order
    first, second = (k[take] for k in key)
    opens = np.append(False, (first[1:] != first[:-1]) | (second[1:] != second[:-1]))
    return picked(
        traces, take, np.concatenate(request)[take], np.cumsum(opens), replace(meta, requests=tuple(requests)),
        name="merged", done=f"merge ({'in sequence' if order == 'sequence' else 'interleaved by step'})",
    )  # fmt: skip


def _agreed(traces: Sequence[Trace], model: str | None) -> Meta:
    """The record that the traces share; BadTrace names the first thing that differs."""
    first = traces[0]
    meta = first.meta if model is None else replace(first.meta, model=model)
    for other in traces[1:]:
        for field in ("n_layers", "n_experts", "top_k", "model", "revision", "router", "model_layers", "row_bytes"):
            if model is not None and field in ("model", "revision"):
                continue
            ours, theirs = meta[field], other.meta[field]
            if field == "model_layers" and tuple(range(meta.n_layers)) in (ours, theirs):  # counted, where nothing said
                meta = replace(meta, model_layers=max(ours, theirs))
                continue
            if ours and theirs and ours != theirs:
                way_out = "; if they are the same model, say so with a model's name" * (field in ("model", "revision"))
                raise BadTrace(
                    f"merge: {field} is {_short(theirs)} in {other.store.where}, but {_short(ours)} in "
                    f"{first.store.where}; merged traces are of one model{way_out}"
                )
            meta = replace(meta, **{field: ours or theirs})
        for what, ours, theirs in (
            ("predictions", first.store.widths, other.store.widths),
            ("weights", first.has_weights, other.has_weights),
        ):
            if ours != theirs:
                raise BadTrace(
                    f"merge: {what} recorded in {other.store.where} and {first.store.where} differ ({theirs or 'none'}"
                    f" and {ours or 'none'}); cut both without {what} first"
                )
    kinds = [(trace.meta.predictor or {}).get("kind") for trace in traces]
    return replace(
        meta,
        predictor=None if any(kind != kinds[0] for kind in kinds) else meta.predictor,
        **{name: _all(trace.meta[name] for trace in traces) for name in ("captured_by", "captured_at", "licence")},
    )


def _all(values: Iterable[str | None]) -> str | None:
    """What the traces say, each word once; None if none says anything."""
    said = list(dict.fromkeys(values))
    return None if said == [None] else "; ".join(value or "unknown" for value in said)


def _requests(trace: Trace, known: list[int], ids: Iterable[int], labels: Iterable[str]) -> list[int]:
    """The ids of the requests named, each of which must be there; [] if none is named."""
    found = set()
    for one in ids:
        if one not in known:
            raise BadTrace(f"{trace.name} has no request {one}; it has {_listed(known)}")
        found.add(int(one))
    by_label: dict[Any, list[int]] = {}
    for r in trace.meta.requests:
        if r["id"] in known and r.get("label") is not None:
            by_label.setdefault(r["label"], []).append(r["id"])
    for label in labels:
        if label not in by_label:
            near = difflib.get_close_matches(label, by_label, 1)
            have = f"it has {_short(', '.join(map(str, by_label)))}" if by_label else "its requests have no labels"
            meant = f". Did you mean {near[0]!r}?" if near else ""
            raise BadTrace(f"{trace.name} has no request labelled {label!r}; {have}{meant}")
        found.update(by_label[label])
    return sorted(found)


def _drawn(trace: Trace, known: list[int], share: float, seed: int) -> list[int]:
    """The requests that a share of them leaves, drawn by the digest of seed and id: no library changes the draw."""
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
        raise BadTrace(f"split: share={share!r}; it is the part of the requests to train on, between 0 and 1")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise BadTrace(f"split: seed={seed!r}; it must be a whole number")
    if len(known) < 2:
        raise BadTrace(f"split: {trace.name} has one request, and requests stay whole; cut it by steps instead")
    drawn = sorted(known, key=lambda one: (sha256(f"{seed} {one}".encode()).digest(), one))
    return sorted(drawn[min(max(round(share * len(known)), 1), len(known) - 1) :])


def _span(name: str, span: slice, n: int, trace: Trace) -> tuple[range, str]:
    """`start:stop` as a range inside 0 to n, and in words."""
    start, stop = 0 if span.start is None else span.start, n if span.stop is None else span.stop
    if span.step not in (None, 1) or not 0 <= start < stop <= n:
        raise BadTrace(f"cut: {name} {start}:{stop} of {trace.name}, which has 0:{n}; give START:STOP inside it")
    return range(start, stop), f"{name} {start}:{stop}"


def _listed(numbers: list[int]) -> str:
    return _short(", ".join(map(str, numbers)))


def _short(value: Any) -> str:
    text = str(value) or "''"
    return text if len(text) <= 60 else text[:57] + "..."
