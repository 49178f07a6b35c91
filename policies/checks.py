"""What can be asked of a pool, and what cannot: each refusal names the value and the reason."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .errors import BadPolicy, Refused
from .spelling import PolicySpec


def check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise BadPolicy(f"{name} is {' or '.join(known)}, not {value!r}")


def slots_of_each_pool(slots: int | Sequence[int], n_pools: int, keys: int) -> list[int]:
    each = [slots] * n_pools if isinstance(slots, (int, np.integer)) else list(slots)
    if len(each) != n_pools:
        raise BadPolicy(f"{len(each)} slot counts for {n_pools} pools")
    if any(s < 0 for s in each):
        raise BadPolicy(f"slots={min(each)}: a pool cannot have fewer than 0 slots")
    return [min(int(s), keys) for s in each]


def check_together(
    spec: PolicySpec, *, contract, overflow, prefill, width, lag, max_loads, in_bytes, slots: Sequence[int]
) -> None:
    """Raises Refused for parts that are right alone but mean nothing together."""
    if width and not in_bytes and max(slots) == 0:
        raise Refused(f"width {width} with 0 slots: predictions have nowhere to go; give slots, or width 0")
    if spec.policy.name == "static" and overflow == "exceed":
        raise Refused("static with overflow exceed: nothing ever leaves a static pool, so it could not be trimmed")
    if not spec.policy.bound:
        return
    reasons = {
        "a guard, a gate or pins": spec.guard or spec.gate or spec.pin,
        "width > 0 (draw the oracle predictor beside it)": width,
        "the sequential contract": contract == "sequential",
        "overflow exceed": overflow == "exceed",
        "lag": lag,
        "max_loads": max_loads is not None,
        "prefill stream": prefill == "stream",
        "rows of unequal size": in_bytes,
    }
    for what, present in reasons.items():
        if present:
            raise Refused(f"{spec} bounds runs without prefetch, in slots, tick by tick; it does not cover {what}")
