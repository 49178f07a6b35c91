"""Drives an executor with the routing of a trace: causal, step by step, as a model would."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .errors import BrokenOff
from .executor import Executor
from .watch import Watch

_BANK = 64  # different inputs of the first layer


@dataclass
class Driven:
    """Seconds of every finished step, tokens accepted in them, requests met, and why the run broke off, if it did."""

    step_s: list[float] = field(default_factory=list)
    tokens: int = 0
    requests: set[int] = field(default_factory=set)
    total_s: float = 0.0
    broken: str | None = None


def drive(
    executor: Executor,
    source: Any,
    predictor: Any = None,
    *,
    n_steps: int | None = None,
    reset: str = "persistent",
    dense_us: float = 0.0,
    seed: int = 0,
    watch: Watch | None = None,
    progress: Callable[[int, int, float], None] | None = None,
) -> Driven:
    """Carries out the steps of a source and says what they took.

    Routing and predictions come from `source`, the rest is computed: what goes into a layer is what came out of the one
    before, normed.

    source: a trace, or verify steps built from one (`blocks`, and `accepted` of the latter). predictor: as a replay's.
    dense_us: microseconds of device time a layer, in place of attention. Weights of experts are equal.
    watch: looks at what comes out, and raises CheckFailed.
    progress: called between steps with steps, tokens and seconds so far.
    A run that breaks off (BrokenOff: a lost device, a failed worker) ends without an exception: the finished steps
    stand, and pool, failures and plan hash are what a replay of so many steps has.
    """
    driven = Driven()
    try:
        with executor.backend.queue():
            _drive(executor, source, predictor, driven, n_steps, reset, dense_us, seed, watch, progress)
        executor.synchronize()
        if watch:
            watch.end()
    except BrokenOff as broken:
        driven.broken = str(broken)
        executor.keep_steps(len(driven.step_s))
    return driven


def _drive(
    executor: Executor,
    source: Any,
    predictor: Any,
    driven: Driven,
    n_steps: int | None,
    reset: str,
    dense_us: float,
    seed: int,
    watch: Watch | None,
    progress: Callable[[int, int, float], None] | None,
) -> None:
    hidden = executor.store.layouts[0].hidden
    bank = np.random.default_rng(seed).normal(0, 1, (_BANK, hidden)).astype(np.float32)
    upload, shares = executor.backend.upload, {}
    request = None
    predicts = predictor is not None and predictor.needs_predicted
    for block in source.blocks(predicted=predicts, horizon=executor.horizon, n_steps=n_steps):
        ahead = predictor.predict(block) if predictor else None
        accepted = source.accepted(block.first_step, block.n_steps) if hasattr(source, "accepted") else None
        for step in range(block.n_steps):
            lo, hi = int(block.starts[step]), int(block.starts[step + 1])
            if reset == "request" and request not in (None, block.request[step]):
                executor.reset()
            request = block.request[step]
            driven.requests.add(int(request))
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
                if watch:
                    executor.join()
                    watch.tick(block.first_step + step, layer, x, ids[layer], shares[hi - lo], y)
                x = executor.backend.norm(x, y)
                if dense_us:
                    executor.backend.spin(dense_us)
            executor.backend.synchronize()
            executor.join()
            driven.step_s.append(time.monotonic() - began)
            driven.total_s += driven.step_s[-1]
            driven.tokens += hi - lo if accepted is None else int(accepted[step])
            if watch:
                watch.step(x)
            if progress:
                progress(block.first_step + step + 1, driven.tokens, driven.total_s)
