"""Which configurations a validation runs: every combination, or all policies at settings drawn for what bounds them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from slotwise.policies.spelling import parse_policy
from slotwise.replay.errors import BadOption

CANDIDATES = 8  # settings that are looked at for each one drawn


class Config(NamedTuple):
    """One point of the grid."""

    policy: str
    slots: str
    width: int
    overlap: str
    verify_tokens: int
    miss: str

    def __str__(self) -> str:
        more = f", verify {self.verify_tokens}" if self.verify_tokens > 1 else ""
        return f"{self.policy}, {self.slots} slots, width {self.width}, overlap {self.overlap}, {self.miss}{more}"


def grid_of(
    policies: Iterable[str], *axes: Iterable, draw: int | None, seed: int, bound_by: Callable[[Config], str]
) -> list[Config]:
    """Configurations in order, none of them twice, without guards that width 0 leaves nothing to guard.

    axes: slots, widths, overlaps, tokens to verify, misses. draw: so many settings of these in place of all, such that
    configurations are bound by each resource as often as the settings allow, as `bound_by` predicts it, and among like
    ones such that the values of an axis are met equally often. Every policy is run at each.
    Raises BadOption.
    """
    names = list(dict.fromkeys(policies))
    settings = list(product(*(list(dict.fromkeys(axis)) for axis in axes)))
    if not names or not settings:
        raise BadOption("no configuration to validate: name at least one policy, size, width, overlap and miss")
    if draw is not None and (isinstance(draw, bool) or not isinstance(draw, int) or draw < 1):
        raise BadOption(f"draw={draw!r}: a whole number of settings, at least 1")
    guarded = {name for name in names if parse_policy(name).guard}

    def run_at(setting: tuple) -> list[Config]:
        grid = [Config(policy, *setting) for policy in names]
        return [one for one in grid if one.width or one.policy not in guarded or len(names) == len(guarded)]

    if draw is not None and draw < len(settings):
        random = np.random.default_rng((seed, draw))
        settings = [settings[i] for i in sorted(random.permutation(len(settings))[: CANDIDATES * draw])]
        bounds = [[bound_by(one) for one in run_at(setting)] for setting in settings]
        settings = [settings[i] for i in _drawn(settings, bounds, draw, random)]
    return [one for setting in settings for one in run_at(setting)]


def _drawn(
    settings: Sequence[tuple], bounds: Sequence[Sequence[str]], draw: int, random: np.random.Generator
) -> list[int]:
    """Which ones, in order: of each next one the bounds have been met least, or else the values have."""
    met: Counter[str] = Counter()
    used: Counter[tuple[int, Any]] = Counter()
    left: list[int] = random.permutation(len(settings)).tolist()

    def wanted(i: int) -> tuple[float, int]:
        rare = sum(1 / (1 + met[bound]) for bound in bounds[i]) / len(bounds[i])
        return round(rare, 9), -sum(used[value] for value in enumerate(settings[i]))

    for _ in range(draw):
        best = max(left, key=wanted)
        left.remove(best)
        met.update(bounds[best])
        used.update(enumerate(settings[best]))
    return sorted(set(range(len(settings))) - set(left))
