"""The configurations that advice is chosen from: each priced once, chosen on one part, judged on another."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from slotwise.policies.errors import BadPolicy
from slotwise.replay.errors import BadOption, ReplayWarning
from slotwise.replay.machine import Machine
from slotwise.replay.options import Options
from slotwise.replay.price import Price
from slotwise.replay.pricing import Pricing
from slotwise.replay.result import Result
from slotwise.replay.run import run as replay_run
from slotwise.traces import Trace

from .advise_parts import Parts, parts_of, speed
from .anchors import Fit

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Candidate:
    """One configuration replayed over the whole trace."""

    policy: str
    width: int
    scope: str
    overlap: str
    ask: Options
    result: Result

    @property
    def price(self) -> Price:
        return price_of(self.result)

    def named(self) -> dict[str, Any]:
        return {"policy": self.policy, "width": self.width, "scope": self.scope, "overlap": self.overlap}


def price_of(result: Result) -> Price:
    assert result.price is not None
    return result.price


class Study:
    """Prices replays of one trace on one machine, or by anchors, and tells a progress bar how far it is."""

    def __init__(self, trace: Trace, machine: Machine, dense_us: float, progress: Progress | None):
        self.trace, self.machine, self.dense_us, self.progress = trace, machine, dense_us, progress
        self.fit: Fit | None = None
        self.done = self.total = 0

    def replay(
        self, what: str, ask: Options, *, overlap: str = "on", bounds: bool = False, by_machine: bool = False
    ) -> Result:
        """One priced replay. bounds: beside it the run without look-ahead and an oracle's. by_machine: whatever the
        anchors say."""
        if self.progress:
            self.progress(self.done, max(self.total, self.done + 1), what)
        self.done += 1
        pricing = Pricing(self.machine, overlap=overlap, dense_us=self.dense_us, bounds=bounds)
        with warnings.catch_warnings():  # the answer itself warns of pools below a token cycle, once
            warnings.filterwarnings("ignore", "the global pool", ReplayWarning)
            result = replay_run(self.trace, ask, pricing=pricing)
        if self.fit and not by_machine:
            return replace(result, price=self.fit.priced(price_of(result)))
        return result

    def hits(self, ask: Options) -> list[int]:
        """Hits of each layer, unpriced."""
        if self.progress:
            self.progress(self.done, max(self.total, self.done + 1), f"{ask.slots} slots in each layer")
        self.done += 1
        return replay_run(self.trace, ask).by_layer["hits"]

    def candidates(
        self, policies: Iterable[str], widths: Iterable[int], scopes: Iterable[str], overlaps: Iterable[str],
        given: dict[str, Any],
    ) -> tuple[list[Candidate], dict[str, str]]:  # fmt: skip
        """Every combination that can be, in order, and why the others cannot. given: the options of all of them."""
        found, refused = [], {}
        grid = list(product(policies, widths, scopes))
        ways = list(overlaps)
        self.total += len(grid) * len(ways)
        for policy, width, scope in grid:
            what = f"{policy}, width {width}, scope {scope}"
            try:
                ask = Options.of(policy=policy, width=width, scope=scope, **given)
                for way in ways:
                    result = self.replay(f"{what}, overlap {way}", ask, overlap=way)
                    found.append(Candidate(policy, width, scope, way, ask, result))
            except BadPolicy as wrong:  # a guard has nothing to guard at width 0, and the like
                refused[what] = str(wrong)
                self.total -= len(ways)
        if not found:
            raise BadOption(f"no candidate can be priced: {next(iter(refused.values()), 'name policies and widths')}")
        if not found[0].price.tokens:
            raise BadOption(f"the trace has no {found[0].price.phase} steps: use phase all")
        return found, refused


@dataclass(frozen=True)
class Ranking:
    """Candidates from the fastest to the slowest on the steps that choose; whoever judges reads the others."""

    parts: Parts
    candidates: tuple[Candidate, ...]

    @classmethod
    def of(cls, found: list[Candidate]) -> Ranking:
        """Ties keep the order in which the candidates were named."""
        parts = parts_of(found[0].price)
        return cls(parts, tuple(sorted(found, key=lambda one: -one.price.only(parts.chosen).tokens_per_s)))

    def judged(self, price: Price) -> Price:
        """A price on the steps that chose nothing."""
        return price.only(self.parts.judged)

    def best(self, wanted: Callable[[Candidate], bool] = lambda one: True) -> Candidate | None:
        return next((one for one in self.candidates if wanted(one)), None)

    def rows(self) -> list[dict[str, Any]]:
        """All of them, with the speed that chose and the speed that counts."""
        return [
            {**one.named(), "chosen_by": one.price.only(self.parts.chosen).tokens_per_s,
             **speed(self.judged(one.price))}
            for one in self.candidates
        ]  # fmt: skip
