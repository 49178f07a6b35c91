"""What can be asked of a pool, and what cannot: each refusal names the value and the reason."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from .errors import BadPolicy, PolicyWarning, Refused
from .spelling import PolicySpec


def check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise BadPolicy(f"{name} is {' or '.join(known)}, not {value!r}")


def check_whole(name: str, value: Any, low: int, high: int) -> int:
    """`value` as an int; BadPolicy unless it is a whole number (not a truth value) from low to high."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
        raise BadPolicy(f"{name}={shortened(value)}: it is a whole number from {low} to {high}")
    return int(value)


def check_wholes(name: str, values: Any, length: int, low: int, high: int) -> list[int]:
    """One whole number for all, or a list or array of `length` of them."""
    if isinstance(values, np.ndarray):
        values = values.tolist()
    each = list(values) if isinstance(values, (list, tuple)) else [values] * length
    if len(each) != length:
        raise BadPolicy(f"{name}: {len(each)} of them, but there must be {length}, or one number for all")
    return [check_whole(name, value, low, high) for value in each]


def check_slots(slots: Any, capacity_bytes: Any, n_pools: int, keys: int) -> list[int]:
    """Slots of each pool, no more than it has keys. A pool of bytes has as many as fit."""
    if slots is None and capacity_bytes is None:
        raise BadPolicy("slots is not given: write slots=32, or capacity_bytes and row_bytes; slots=0 holds nothing")
    if slots is not None and capacity_bytes is not None:
        raise BadPolicy(
            f"slots={shortened(slots)} and capacity_bytes={shortened(capacity_bytes)}: a pool is sized by one of them"
        )
    each = [keys] * n_pools if slots is None else check_wholes("slots", slots, n_pools, 0, 2**63)
    if max(each) > keys:
        text = f"slots={shortened(max(each))}: a pool has only {keys} keys, so {keys} are used"
        warnings.warn(text, PolicyWarning, stacklevel=3)
    return [min(one, keys) for one in each]


def shortened(value: Any) -> str:
    """`repr`, cut to what fits into a line; a whole number may be too long even for that."""
    if isinstance(value, int) and abs(value) >= 10**60:
        return f"{'-' * (value < 0)}10**60 and more"
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def native_ids(ids: Any, n_experts: int) -> np.ndarray:
    """Ids of any whole-number type as the kernel's; negative is absent, what does not fit stays out of range."""
    try:
        ids = np.asarray(ids)
    except ValueError as error:  # lists of unequal length
        raise BadPolicy(f"expert ids {shortened(ids)}: every token has as many, [n_tokens, k]") from error
    if not 1 <= ids.ndim <= 2:
        raise BadPolicy(f"expert ids {shortened(ids)}: they are an array [n_tokens, k], or [k] for one token")
    if ids.dtype.kind not in "iu" and ids.size:  # an empty list counts as floats
        raise BadPolicy(f"expert ids are whole numbers, not {ids.dtype}")
    if ids.dtype.kind == "u":
        absent = {1: 255, 2: 65535}.get(ids.dtype.itemsize, 0)
        gone, wide = (ids == absent) & (n_experts <= absent), ids.astype(np.uint64)
    else:
        gone, wide = ids < 0, ids.astype(np.int64)
    beyond = ~gone & (wide >= n_experts)
    # where 65534 is an expert, what is out of range needs wider ids
    outside, dtype = (65536, np.uint32) if n_experts > 65534 and beyond.any() else (65534, np.uint16)
    return np.ascontiguousarray(np.where(gone, 65535, np.where(beyond, outside, wide)).astype(dtype))


def check_together(
    spec: PolicySpec,
    *,
    contract,
    overflow,
    prefill,
    width,
    lag_demand,
    lag_prefetch,
    max_loads,
    in_bytes,
    slots: Sequence[int],
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
        "lag": lag_demand or (lag_prefetch and width != 0),  # without look-ahead no load is a prefetch
        "max_loads": max_loads is not None,
        "prefill stream": prefill == "stream",
        "rows of unequal size": in_bytes,
    }
    for what, present in reasons.items():
        if present:
            raise Refused(f"{spec} bounds runs without prefetch, in slots, tick by tick; it does not cover {what}")
