"""A pool whose last calls can be taken back: for copies that the device refused, and for steps that never ended."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slotwise.policies import Plan, Pool

EVERY = 64  # steps between two copies of the pool's memory; a refusal replays the calls since the last one


class _Call(NamedTuple):
    ahead: bool
    resets: bool  # the pool was reset just before
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
        self._begun, self._last_layer = 0, pool.n_layers  # calls before the present step; its last layer so far
        self._resets = False  # the pool was reset since the last call

    def step(self, layer: int, ids: np.ndarray) -> Plan:
        """As `Pool.step`."""
        begins = layer <= self._last_layer
        if begins and len(self._calls) >= self._most and not self._resets:
            self._save()
        plan = self._new(False, layer, ids)
        if begins:
            self._begun = len(self._calls) - 1
        self._last_layer = layer
        return plan

    def prefetch(self, layer: int, predicted: np.ndarray) -> Plan:
        """As `Pool.prefetch`."""
        return self._new(True, layer, predicted)

    def reset(self) -> None:
        """As `Pool.reset`. It is part of the step that comes next."""
        self.pool.reset()
        self._resets = True

    def again(self, refused_from: int) -> Plan:
        """The last call once more, with its copies refused from that load on. What the pool did first is taken back."""
        assert self._saved is not None
        last = self._calls[-1]
        self._go_back(len(self._calls) - 1)
        return self._repeat(last._replace(refused_from=refused_from))

    def take_back(self, step: bool) -> None:
        """The pool is again what it was before the present step, or (`step` false) before a reset after it."""
        self._last_layer, self._resets = self.pool.n_layers, False
        if self._saved is not None:
            self._go_back(self._begun if step else len(self._calls))

    def _go_back(self, count: int) -> None:
        """To what the pool was after the first `count` of the remembered calls."""
        calls = self._calls[:count]
        self.pool.buffer.bytes[:] = self._saved
        self._calls.clear()
        for call in calls:
            self._repeat(call)

    def give_up(self, layer: int, expert: int) -> None:
        """As `Pool.invalidate`."""
        self.pool.invalidate(layer, expert)
        last = self._calls[-1]
        self._calls[-1] = last._replace(given_up=(*last.given_up, (layer, expert)))

    def _save(self) -> None:
        self._saved = self.pool.buffer.bytes.copy()
        self._calls.clear()
        self._begun, self._resets = 0, False

    def _new(self, ahead: bool, layer: int, ids: np.ndarray) -> Plan:
        if self._saved is None or len(self._calls) >= 4 * self._most:  # a step of more calls cannot be taken back
            self._save()
        plan = self.pool.prefetch(layer, ids) if ahead else self.pool.step(layer, ids)  # one that it refuses was none
        self._calls.append(_Call(ahead, self._resets, layer, ids.copy(), None, ()))
        self._resets = False
        return plan

    def _repeat(self, call: _Call) -> Plan:
        if call.resets:
            self.pool.reset()
        if call.refused_from is not None:
            self.pool.refuse(call.layer, call.refused_from)
        plan = (self.pool.prefetch if call.ahead else self.pool.step)(call.layer, call.ids)
        if call.refused_from is not None:
            self.pool.refuse(call.layer, None)
        for layer, expert in call.given_up:
            self.pool.invalidate(layer, expert)
        self._calls.append(call)
        return plan
