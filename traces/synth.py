"""Seeded traces with known properties, for tests, benchmarks and what-if questions."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from .check import absent, id_dtype
from .errors import BadTrace
from .memory import of_layers
from .meta import MAX_EXPERTS, MAX_LAYERS, Meta, check_whole, checked
from .trace import Trace


def synthesise(
    *,
    n_tokens: int = 10_000,
    n_layers: int = 24,
    n_experts: int = 128,
    top_k: int = 8,
    skew: float = 0.6,
    reuse: float = 0.25,
    correlation: float = 0.1,
    topics: int = 4,
    topic_tokens: int = 500,
    drift: float = 0.5,
    width: int = 0,
    recall: float = 0.85,
    requests: int = 1,
    prompt_tokens: int = 0,
    row_bytes: int | None = None,
    seed: int = 0,
    name: str = "synth",
) -> Trace:
    """A synthetic trace; the same arguments give the same trace, and its file the same bytes.

    Each expert of a token is taken from the token before with probability `reuse`, follows from the layer before with
    probability `correlation`, and is otherwise drawn by popularity 1 / rank ** `skew` (0: all alike). The order of
    popularity is each layer's own, and every topic reorders a share `drift` of it; a topic lasts `topic_tokens` tokens
    on average. `width` predictions are recorded per token and layer, each of the first top_k right with probability
    `recall`. The tokens are divided evenly among `requests`, each of which starts with one prefill step of
    `prompt_tokens` rows. `row_bytes` is the size of one expert.
    """
    whole = {
        "n_tokens": (n_tokens, 1, 2**31 - 1),
        "n_layers": (n_layers, 1, MAX_LAYERS),
        "n_experts": (n_experts, 1, MAX_EXPERTS),
        "top_k": (top_k, 1, n_experts),
        "topics": (topics, 1, 4096),
        "topic_tokens": (topic_tokens, 1, 2**40),
        "width": (width, 0, n_experts),
        "requests": (requests, 1, n_tokens),
        "seed": (seed, 0, 2**64 - 1),
    }
    for key, (value, low, high) in whole.items():
        check_whole("synth", key, value, low, high)
    check_whole("synth", "prompt_tokens", prompt_tokens, 0, n_tokens // requests)
    shares = {"reuse": reuse, "correlation": correlation, "drift": drift, "recall": recall}
    for key, value in ({"skew": skew} | shares).items():
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 0 <= value <= (1 if key in shares else 20)
        ):
            raise BadTrace(f"synth: {key}={value!r}; it must lie in 0 to {1 if key in shares else 20}")
    if reuse + correlation > 1:
        raise BadTrace(f"synth: reuse + correlation={reuse + correlation}; it must lie in 0 to 1")
    size = n_tokens * (50 + n_layers * (top_k + width) * 2) + (topics + 1) * n_layers * n_experts * 4 + 500 * requests
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > there:
        raise BadTrace(
            f"synth: {n_tokens} tokens of {n_layers} layers x {n_experts} experts, {topics} topics, take "
            f"{size / 2**30:,.1f} GiB of memory, but this machine has {there / 2**30:,.1f}; ask for fewer"
        )
    lengths = np.diff(np.arange(requests + 1) * n_tokens // requests)
    within = np.arange(n_tokens) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    columns = {
        "request": np.repeat(np.arange(requests, dtype=np.int32), lengths),
        "step": np.cumsum((within == 0) | (within >= prompt_tokens)) - 1,
        "position": within.astype(np.int32),
        "phase": (within >= prompt_tokens).astype(np.uint8),
    }
    options = {
        "skew": skew,
        "reuse": reuse,
        "correlation": correlation,
        "topics": topics,
        "topic_tokens": topic_tokens,
        "drift": drift,
        "recall": recall,
        "seed": seed,
    }
    meta = checked(
        Meta(
            n_layers=n_layers,
            n_experts=n_experts,
            top_k=top_k,
            model="synthetic",
            captured_by="slotwise trace synth",
            row_bytes=None if row_bytes is None else (row_bytes,) * n_layers,
            source="synthetic: " + " ".join(f"{key}={value}" for key, value in options.items()),
            predictor={"kind": "synthetic", "width": width, "horizon": 1} if width and n_layers > 1 else None,
            requests=tuple(
                {"id": i, "label": f"synthetic {i}", "prompt_tokens": prompt_tokens} for i in range(requests)
            ),
        ),
        name,
    )
    arrays = _draw(meta, within == 0, n_tokens, options, width, seed)
    return of_layers(columns, arrays, meta, name=name)


def _draw(meta: Meta, begins: np.ndarray, n_tokens: int, options: dict[str, Any], width: int, seed: int) -> dict:
    from . import kernels

    dtype = id_dtype(meta.n_experts)
    arrays = {"experts": np.empty((meta.n_layers, n_tokens, meta.top_k), dtype)}
    kernels.synthesise(
        begins,
        options["topics"],
        float(options["topic_tokens"]),
        meta.n_experts,
        float(options["skew"]),
        float(options["drift"]),
        float(options["reuse"]),
        float(options["correlation"]),
        np.uint64(seed),
        arrays["experts"],
    )
    if meta.predictor:
        arrays["predicted.h1"] = ahead = np.full((meta.n_layers, n_tokens, width), absent(dtype), dtype)
        kernels.noisy(arrays["experts"], 1, width, meta.n_experts, 0, float(options["recall"]), np.uint64(seed), ahead)
    return arrays
