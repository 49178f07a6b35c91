"""What a trace looks like: skew, locality, working set, and how good its predictions are."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import numpy as np

from .check import absent
from .errors import BadTrace
from .meta import check_whole
from .quality import predictions, rate
from .suspects import suspects
from .trace import Trace

CURVE_POINTS = 24


def describe(trace: Trace, seed: int = 0) -> dict[str, Any]:
    """Everything `slotwise trace info` says, as plain JSON types. Reads layer by layer, and checks the digest.

    `overlap` is the share of a token's experts that the token before (of the same request) chose too: as it is, as it
    would be if experts were drawn evenly (top_k / n_experts), and between the tokens in an order shuffled with `seed`,
    which keeps the skew and destroys the locality. Of `predictions` see `quality.predictions`.
    """
    layers, first_seen, whole = [], [], sha256()
    check_whole("describe", "seed", seed, 0, 2**64 - 1)
    pairs = _pairs(trace, seed)
    for layer in range(trace.n_layers):
        ids = trace.layer(layer)
        whole.update(sha256(np.ascontiguousarray(ids).data).digest())
        layers.append(_layer(ids, trace, *pairs))
        found = ids != absent(ids.dtype)
        rows, experts = np.nonzero(found)[0], ids[found]
        first_seen.append(rows[np.unique(experts, return_index=True)[1]])
    if trace.sha256 != whole.hexdigest():
        raise BadTrace(
            f"{trace.store.where}: the ids do not have the recorded SHA-256 {trace.sha256[:12]}...; the file "
            "was altered or is damaged"
        )
    mean = {key: _mean([layer[key] for layer in layers]) for key in ("overlap_previous", "overlap_shuffled")}
    return {
        "name": trace.name,
        **{key: value for key, value in trace.meta.items() if key not in ("requests", "sha256")},
        "sha256": trace.sha256,
        "n_tokens": trace.n_tokens,
        "n_steps": trace.n_steps,
        "n_requests": trace.n_requests,
        "phases": _phases(trace),
        "requests": [dict(r) for r in trace.meta.requests],
        "token_cycle_bytes": trace.token_cycle_bytes,
        "first_touch": _first_touch(np.concatenate(first_seen), trace),
        "overlap": {
            "previous": mean["overlap_previous"],
            "uniform": trace.top_k / trace.n_experts,
            "shuffled": mean["overlap_shuffled"],
            "seed": seed,
        },
        "layers": {key: [layer[key] for layer in layers] for key in layers[0]},
        "predictions": predictions(trace),
        "weights": trace.has_weights,
        "warnings": suspects(trace),
    }


def _pairs(trace: Trace, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows (token, token before it in its request), and as many pairs of neighbours in a shuffled order."""
    request = trace.rows("request")["request"]
    order = np.argsort(request, kind="stable")
    same = request[order[1:]] == request[order[:-1]]
    mixed = np.random.default_rng(seed).permutation(len(request))
    return np.stack([order[1:][same], order[:-1][same]]), np.stack([mixed[1:], mixed[:-1]])


def _layer(ids: np.ndarray, trace: Trace, previous: np.ndarray, shuffled: np.ndarray) -> dict[str, float | int | None]:
    from . import kernels

    counts = np.bincount(ids[ids != absent(ids.dtype)], minlength=trace.n_experts)
    total = int(counts.sum())
    share = np.sort(counts) / max(total, 1)
    some = share[share > 0]
    n = trace.n_experts
    return {
        "experts_seen": int(np.count_nonzero(counts)),
        "top_share": float(share[-1]) if total else None,
        "entropy_bits": float(-(some * np.log2(some)).sum() + 0.0) if total else None,
        "gini": float(((2 * np.arange(1, n + 1) - n - 1) * share).sum() / n) if total else None,
        "overlap_previous": rate(*kernels.overlap(ids, previous, n)),
        "overlap_shuffled": rate(*kernels.overlap(ids, shuffled, n)),
    }


def _phases(trace: Trace) -> dict[str, dict[str, int]]:
    phase = trace.rows("phase")["phase"]
    rows = [np.diff(block.starts) for block in trace.blocks()]
    steps = np.concatenate([block.phase for block in trace.blocks()])
    return {
        name: {
            "tokens": int((phase == code).sum()),
            "steps": int((steps == code).sum()),
            "largest_step": int(np.concatenate(rows)[steps == code].max(initial=0)),
        }
        for code, name in enumerate(("prefill", "decode"))
    }


def _first_touch(first_seen: np.ndarray, trace: Trace) -> dict[str, list[int] | int]:
    """How many distinct (layer, expert) the first n tokens have touched, at n spaced evenly in the logarithm."""
    tokens = np.unique(np.geomspace(1, trace.n_tokens, CURVE_POINTS).round().astype(int))
    touched = np.searchsorted(np.sort(first_seen), tokens, side="left")
    return {"tokens": tokens.tolist(), "experts": touched.tolist(), "of": trace.n_layers * trace.n_experts}


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
