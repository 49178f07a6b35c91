"""Runs single configurations for a validation: on one store and one chain, with the settings of one machine."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import Any

import numpy as np

from slotwise.executor.backend import make_backend
from slotwise.executor.cold import ColdChain
from slotwise.executor.drive import Driven, drive
from slotwise.executor.errors import BrokenOff, CheckFailed
from slotwise.executor.executor import Executor
from slotwise.executor.store import HostStore
from slotwise.executor.timing import summary
from slotwise.replay.machine import Machine
from slotwise.replay.options import Options
from slotwise.replay.pricing import Pricing
from slotwise.replay.result import Result
from slotwise.traces import Trace

from .run_result import Outcome, outcome
from .run_setup import gate_of


class Runner:
    """Opens an executor for every run. A context manager.

    trace: with the bytes of its rows. machine, asked: how it was calibrated, as `slotwise.calibrate` keeps it; rows of
    `layout`.
    """

    def __init__(
        self, trace: Trace, machine: Machine, asked: dict[str, Any], layout: Any, *, dense_us: float, headroom: int,
        alias_layers: int | None, seed: int,
    ):  # fmt: skip
        self.trace, self.machine, self.dense_us, self.headroom, self.seed = trace, machine, dense_us, headroom, seed
        self.told: list[dict[str, float]] = []  # by the device at the end of each run
        self.link_pad = asked["link_pad"]
        given = {name: asked[name] for name in ("device", "sms") if asked[name] is not None}
        self.make = lambda: make_backend(asked["backend"], **given, host=asked["host"], cold=asked["cold"])
        self.chain = ColdChain(
            machine.cpu_threads, spin_us=asked["spin_us"], activations=asked["activations"], kind=asked["cold"]
        )
        self._layouts, self._alias = [layout] * trace.n_layers, alias_layers
        self._opened = ExitStack()

    def __enter__(self) -> Runner:
        with ExitStack() as opening:
            opening.enter_context(self.chain)
            kept = opening.enter_context(closing(self.make()))
            self.store = HostStore(self._layouts, self.trace.n_experts, kept, alias_layers=self._alias)
            self.store.fill(self.seed, self.chain)
            self._opened = opening.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def _run(self, ask: Options, overlap: str, *, closely: bool) -> tuple[Driven, Outcome]:
        source = ask.source(self.trace)
        n_steps = ask.steps_of(source)
        most = max((int(np.diff(block.starts).max()) for block in source.blocks(n_steps=n_steps)), default=1)
        pool = ask.pool(self.trace, ask.size(self.trace), full=True, future=False)
        gate = gate_of(Pricing(self.machine, overlap="auto"), ask, self.trace) if overlap == "auto" else None
        with Executor(
            pool, self.store, self.make(), self.chain, top_k=self.trace.top_k, horizon=ask.horizon,
            overlap=gate or overlap == "on", miss=ask.miss, headroom_bytes=self.headroom, link_pad=self.link_pad,
            max_tokens=most, plan_hash=closely, timing=closely,
        ) as executor:  # fmt: skip
            driven = drive(
                executor, source, ask.predictor_of(self.trace), n_steps=n_steps, reset=ask.reset,
                dense_us=self.dense_us, seed=self.seed,
            )  # fmt: skip
            if driven.broken:
                raise BrokenOff(driven.broken)
            self.told.append(executor.backend.conditions())
            return driven, outcome(executor, driven, None)

    def tokens_per_s(self, ask: Options, overlap: str) -> float:
        """Accepted tokens per second of one run, as fast as it goes."""
        driven, _ = self._run(ask, overlap, closely=False)
        return driven.tokens / driven.total_s

    def closely(self, ask: Options, overlap: str, law: Result, name: str) -> dict[str, Any]:
        """One run looked at tick by tick: busy shares, seconds, and seconds by cause.

        Raises CheckFailed unless it decided as the replay did.
        """
        driven, seen = self._run(ask, overlap, closely=True)
        wrong = [
            counter
            for counter, count in seen.counters.items()
            if law.counters.get(counter) is not None and count is not None and law.counters[counter] != count
        ]
        if law.plan_sha256 != seen.plan_sha256 or wrong:
            raise CheckFailed(f"{name}: the plans differ from the replay's; counters that differ: {wrong or 'none'}")
        ticks = seen.ticks or []
        found = summary(ticks, driven.step_s, driven.tokens)
        parts, seconds = found["parts"], found["seconds"]
        dense_s = min(parts["between_s"], len(ticks) * self.dense_us * 1e-6)
        busy = {
            "cold": found["cold_s"], "hot": found["hot_s"] + dense_s, "link": found["copies_s"],
            "host": parts["policy_s"] + parts["rest_s"] + parts["merge_s"] + parts["between_s"] - dense_s,
        }  # fmt: skip
        return {
            "busy": {of: value / seconds for of, value in busy.items()}, "seconds": seconds, "parts": parts,
            "plan_sha256": seen.plan_sha256,
        }  # fmt: skip
