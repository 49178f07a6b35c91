"""A pool whose last call can be made again: for copies that the device refused, after the plan had counted on them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slotwise.policies import Plan, Pool

EVERY = 64  # steps between two copies of the pool's memory; a refusal replays the calls since the last one


class _Call(NamedTuple):
    ahead: bool
    layer: int
    ids: np.ndarray
    refused_from: int | None
    given_up: tuple[tuple[int, int], ...]  # (layer, expert), after the call


class Journal:
    """Passes calls on to the pool and remembers them. Refusals are rare: they may be slow, calls may not."""

    def __init__(self, pool: Pool, every: int = EVERY):
        self.pool, self._most = pool, every * pool.n_layers * 2
        self._saved: np.ndarray | None = None
        self._calls: list[_Call] = []

    def step(self, layer: int, ids: np.ndarray) -> Plan:
        """As `Pool.step`."""
        return self._new(_Call(False, layer, ids.copy(), None, ()))

    def prefetch(self, layer: int, predicted: np.ndarray) -> Plan:
        """As `Pool.prefetch`."""
        return self._new(_Call(True, layer, predicted.copy(), None, ()))

    def again(self, refused_from: int) -> Plan:
        """The last call once more, with its copies refused from that load on. What the pool did first is taken back."""
        assert self._saved is not None
        *before, last = self._calls
        self.pool.buffer.bytes[:] = self._saved
        self._calls.clear()
        for call in before:
            self._make(call)
        return self._make(last._replace(refused_from=refused_from))

    def forget(self) -> None:
        """Whatever was done to the pool since is not taken back."""
        self._saved = None

    def give_up(self, layer: int, expert: int) -> None:
        """As `Pool.invalidate`."""
        self.pool.invalidate(layer, expert)
        last = self._calls[-1]
        self._calls[-1] = last._replace(given_up=(*last.given_up, (layer, expert)))

    def _new(self, call: _Call) -> Plan:
        if self._saved is None or len(self._calls) >= self._most:
            self._saved = self.pool.buffer.bytes.copy()
            self._calls.clear()
        return self._make(call)

    def _make(self, call: _Call) -> Plan:
        if call.refused_from is not None:
            self.pool.refuse(call.layer, call.refused_from)
        plan = (self.pool.prefetch if call.ahead else self.pool.step)(call.layer, call.ids)
        if call.refused_from is not None:
            self.pool.refuse(call.layer, None)
        for layer, expert in call.given_up:
            self.pool.invalidate(layer, expert)
        self._calls.append(call)
        return plan
