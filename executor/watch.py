"""What comes out of an executor, held against float64 while it runs: for `slotwise run --check`."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from .checks import audit
from .dtypes import DTYPES
from .errors import CheckFailed
from .executor import Executor
from .reference import errors, moe_layer

BOUND, ROUNDED = 1e-5, 0.03  # error of a token relative to its length: activations in float32, and rounded to int8
TICKS, TOKENS, SLOTS = 16, 2, 8  # at most so many ticks of a run, tokens of each and slots after each are looked at


class Watch:
    """Looks at every output, and closely at a drawn sample of ticks. A failure raises CheckFailed.

    closely: every output must be finite, over buffers that are poisoned before each tick; outputs of sampled ticks are
    within the bound of float64, and sampled slots hold their rows then. Without, only `outputs_sha256` is made: of
    what comes out of the last layer of every step, which no schedule may change.
    """

    def __init__(self, executor: Executor, n_steps: int, seed: int, *, closely: bool):
        self.executor, self.closely = executor, closely
        executor.backend.poison = closely
        self._draw = np.random.default_rng((seed, n_steps))
        n_ticks = n_steps * executor.pool.n_layers
        drawn = self._draw.choice(n_ticks, min(TICKS, n_ticks), replace=False) if closely else np.empty(0, int)
        self._sample = set(drawn.tolist())
        self._digest = hashlib.sha256()
        self.largest_error, self.n_sampled = 0.0, 0

    def tick(self, step: int, layer: int, x: Any, ids: Any, weights: Any, y: Any) -> None:
        """After `forward`, before anything else is computed. Arrays as `forward` took and gave them."""
        if not self.closely:
            return
        download = self.executor.backend.download
        found = download(y)
        finite = np.isfinite(found).all(axis=1)
        if not finite.all():
            token = int(np.flatnonzero(~finite)[0])
            raise CheckFailed(
                f"step {step}, layer {layer}, token {token}: error nan, the output is not finite: a part of it was "
                "never computed, or a row was read before it was there"
            )
        if step * self.executor.pool.n_layers + layer in self._sample:
            self._hold(step, layer, download(x), download(ids), download(weights), found)
            try:
                audit(self.executor, self._draw, SLOTS)
            except CheckFailed as failed:
                raise CheckFailed(f"step {step}, after layer {layer}: {failed}") from None

    def _hold(self, step: int, layer: int, x: np.ndarray, ids: np.ndarray, weights: np.ndarray, y: np.ndarray) -> None:
        tokens = np.sort(self._draw.choice(len(x), min(TOKENS, len(x)), replace=False))
        expected = moe_layer(self.executor.store, layer, x[tokens], ids[tokens], weights[tokens])
        found, bound = errors(y[tokens], expected), self._bound(layer)
        for token, error in zip(tokens.tolist(), found.tolist(), strict=True):
            if not error <= bound:
                raise CheckFailed(
                    f"step {step}, layer {layer}, token {token}: error {error:.3g} relative to float64 on the bytes of "
                    f"the rows; at most {bound:g}"
                )
            self.largest_error = max(self.largest_error, error)
        self.n_sampled += 1

    def _bound(self, layer: int) -> float:
        rounded = self.executor.chain.activations == "int8"
        blocks = any(DTYPES[name].block > 1 for name in self.executor.store.layouts[layer].dtypes)
        return ROUNDED if rounded and blocks else BOUND

    def step(self, x: Any) -> None:
        """What came out of the step's last layer."""
        self._digest.update(self.executor.backend.download(x).tobytes())

    def end(self) -> None:
        """When all steps are done."""
        audit(self.executor, self._draw, TICKS * SLOTS)

    @property
    def outputs_sha256(self) -> str:
        """SHA-256 over what came out of every step so far."""
        return self._digest.hexdigest()
