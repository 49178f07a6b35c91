"""Drives an executor with the routing of a trace: causal, step by step, as a model would."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from .executor import Executor

_BANK = 64  # different inputs of the first layer


def drive(
    executor: Executor,
    source: Any,
    predictor: Any = None,
    *,
    n_steps: int | None = None,
    reset: str = "persistent",
    dense_us: float = 0.0,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> tuple[list[float], int]:
    """Returns (seconds of every step, tokens accepted).

    Routing and predictions come from `source`, the rest is computed: what goes into a layer is what came out of the one
    before, normed.

    source: a trace, or verify steps built from one (`blocks`, and `accepted` of the latter). predictor: as a replay's.
    dense_us: microseconds of device time a layer, in place of attention. Weights of experts are equal.
    """
    hidden = executor.store.layouts[0].hidden
    bank = np.random.default_rng(seed).normal(0, 1, (_BANK, hidden)).astype(np.float32)
    upload, shares = executor.backend.upload, {}
    seconds, tokens, request = [], 0, None
    predicts = predictor is not None and predictor.needs_predicted
    for block in source.blocks(predicted=predicts, horizon=executor.horizon, n_steps=n_steps):
        ahead = predictor.predict(block) if predictor else None
        accepted = source.accepted(block.first_step, block.n_steps) if hasattr(source, "accepted") else None
        for step in range(block.n_steps):
            lo, hi = int(block.starts[step]), int(block.starts[step + 1])
            if reset == "request" and request not in (None, block.request[step]):
                executor.reset()
            request = block.request[step]
            x = upload(bank[(block.first_row + np.arange(lo, hi)) % _BANK])
            if hi - lo not in shares:
                shares[hi - lo] = upload(np.full((hi - lo, executor.top_k), 1 / executor.top_k, np.float32))
            ids = [upload(each) for each in block.experts[:, lo:hi]]
            offers = [] if ahead is None else [upload(each) for each in ahead[:, lo:hi]]
            began = time.monotonic()
            for layer in range(executor.pool.n_layers):
                later = layer + executor.horizon
                offered = offers[later] if later < len(offers) else None
                y = executor.forward(layer, x, ids[layer], shares[hi - lo], offered)
                x = executor.backend.norm(x, y)
                if dense_us:
                    executor.backend.spin(dense_us)
            executor.backend.synchronize()
            seconds.append(time.monotonic() - began)
            tokens += hi - lo if accepted is None else int(accepted[step])
            if progress:
                progress(block.first_step + step + 1)
    return seconds, tokens
