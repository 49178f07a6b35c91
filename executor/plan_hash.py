"""One number for all that was decided: the hash that `replay --plan-hash` prints, made from live plans."""

from __future__ import annotations

import hashlib

import numpy as np

from slotwise.policies import Plan
from slotwise.policies.names import V


class PlanHash:
    """SHA-256 over the pools' SHA-256 of little-endian int32 (step, layer, expert, verb), in order of decision.

    Hits come first, then loads, evictions and drops; what moves nothing is left out (2-semantics, counters).
    """

    def __init__(self, n_pools: int, n_experts: int):
        self._n_experts, self._pools = n_experts, [hashlib.sha256() for _ in range(n_pools)]
        self._step, self._before = -1, self._pools  # the present step, and the hashes before it

    def add(self, plan: Plan, step: int, layer: int) -> None:
        """The plan of one call for `layer`, while it is still the pool's last."""
        if step != self._step:
            self._step, self._before = step, [pool.copy() for pool in self._pools]
        verbs, keys, _ = plan.arrays()
        told = verbs <= V.drop
        keys = keys[told]
        wide = len(self._pools) == 1
        rows = np.empty((len(keys), 4), "<i4")
        rows[:, 0], rows[:, 1] = step, keys // self._n_experts if wide else layer
        rows[:, 2], rows[:, 3] = keys % self._n_experts, verbs[told]
        self._pools[0 if wide else layer].update(rows.tobytes())

    def take_back(self, step: int) -> None:
        """Forgets what was added for a step that will not be finished, if anything was."""
        if step == self._step:
            self._step, self._pools = -1, self._before

    def hexdigest(self) -> str:
        return hashlib.sha256(b"".join(pool.digest() for pool in self._pools)).hexdigest()
