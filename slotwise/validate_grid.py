"""Which configurations a validation runs: every combination, or all policies at settings drawn evenly."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import NamedTuple

import numpy as np

from slotwise.policies.spelling import parse_policy
from slotwise.replay.errors import BadOption

TRIES = 1000  # to draw settings none of which is there twice


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


def grid_of(policies: Iterable[str], *axes: Iterable, draw: int | None, seed: int) -> list[Config]:
    """Configurations in order, none of them twice, without guards that width 0 leaves nothing to guard.

    axes: slots, widths, overlaps, tokens to verify, misses. draw: so many settings of these in place of all; unless
    they are nearly all, each value of an axis is met as often as any other or once more. Every policy is run at each.
    Raises BadOption.
    """
    names = list(dict.fromkeys(policies))
    values = [list(dict.fromkeys(axis)) for axis in axes]
    settings = list(product(*values))
    if not names or not settings:
        raise BadOption("no configuration to validate: name at least one policy, size, width, overlap and miss")
    if draw is not None and (isinstance(draw, bool) or not isinstance(draw, int) or draw < 1):
        raise BadOption(f"draw={draw!r}: a whole number of settings, at least 1")
    if draw is not None and draw < len(settings):
        settings = _drawn(values, draw, seed)
    grid = [Config(policy, *each) for each in settings for policy in names]
    guarded = {name for name in names if parse_policy(name).guard}
    return [one for one in grid if one.width or one.policy not in guarded or len(names) == len(guarded)]


def _drawn(values: list[list], draw: int, seed: int) -> list[tuple]:
    random = np.random.default_rng((seed, draw))
    found: list[tuple] = []
    for _ in range(TRIES):
        columns = [[axis[i] for i in _evenly(random, len(axis), draw)] for axis in values]
        found = list(dict.fromkeys(zip(*columns, strict=True)))
        if len(found) == draw:
            break
    else:  # nearly all there are
        left = [one for one in product(*values) if one not in found]
        found += [left[i] for i in random.permutation(len(left))[: draw - len(found)]]
    return sorted(found, key=lambda one: [axis.index(value) for axis, value in zip(values, one, strict=True)])


def _evenly(random: np.random.Generator, n: int, draw: int) -> np.ndarray:
    """`draw` numbers below n in random order, each as often as any other or once more."""
    return random.permutation(np.concatenate([random.permutation(n) for _ in range(-(-draw // n))])[:draw])
