"""The options of one replay, checked and written down: every result carries all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from slotwise.policies import PolicySpec, Pool, parse_call, parse_policy
from slotwise.policies.checks import check_together
from slotwise.traces import make_predictor
from slotwise.traces.errors import warn_caller

from .errors import BadOption, ReplayWarning
from .failures import Failure, read_failures
from .sizes import Size, resolve

CHOICES = {
    "contract": ("event", "sequential"),
    "scope": ("layer", "global"),
    "overflow": ("bypass", "exceed"),
    "reset": ("persistent", "request"),
    "miss": ("cpu", "fetch"),
    "prefill": ("cached", "stream"),
    "phase": ("all", "decode", "prefill"),
}

UNRECORDED = (
    "vram",
    "pollution",
    "plan_hash",
    "window",
    "failures",
    "lag_auto",
)  # the result shows them in its own columns
MOST = 2**40  # ticks, steps, tokens: beyond every trace, and far from where 64 bits end
MOST_BYTES = 2**36  # of a row, as in a trace


@dataclass(frozen=True)
class Options:
    """What a replay was asked to do. `slots` or `vram` sizes the pools; `row_bytes` is for traces without.

    `lag_prefetch` may be "auto" until a machine says it (`lag.settled`), which `lag_auto` then remembers.
    """

    policy: str = "lru"
    slots: str | int | Sequence[str | int] | None = None
    vram: str | int | None = None
    width: int = 0
    predictor: str = "trace"
    horizon: int = 1
    contract: str = "event"
    scope: str = "layer"
    lag_demand: int = 0
    lag_prefetch: int | str = 0
    max_loads: int | None = None
    overflow: str = "bypass"
    reset: str = "persistent"
    miss: str = "cpu"
    prefill: str = "cached"
    batch_gate: int = 8
    phase: str = "all"
    steps: int | None = None
    verify_tokens: int = 1
    accept: float = 1.0
    seed: int = 0
    row_bytes: int | None = None
    window: int | None = None
    pollution: bool = False
    plan_hash: bool = False
    failures: tuple[Failure, ...] = ()
    lag_auto: bool = False

    def __post_init__(self):
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise BadOption(f"{name} is {' or '.join(known)}, not {getattr(self, name)!r}")
        least = {
            "width": 0,
            "horizon": 1,
            "lag_demand": 0,
            "lag_prefetch": 0,
            "max_loads": 0,
            "batch_gate": 0,
            "steps": 0,
        }
        least |= {"verify_tokens": 1, "row_bytes": 1, "window": 1}
        for name, low in least.items():
            value = getattr(self, name)
            most = MOST_BYTES if name == "row_bytes" else MOST
            if value is None and name in ("max_loads", "steps", "row_bytes", "window"):
                continue
            if name == "lag_prefetch" and value == "auto":
                continue
            if not _whole(value, low, most):
                raise BadOption(f"{name}={value!r}: it is at least {low} and at most {most}, a whole number")
        if not _whole(self.seed, -(2**63), 2**63 - 1):
            raise BadOption(f"seed={self.seed!r}: a seed is a whole number of 64 bits")
        if not (_whole(self.accept, 0, 1) or (isinstance(self.accept, float) and 0 <= self.accept <= 1)):
            raise BadOption(f"accept={self.accept!r}: it is a probability, 0 to 1")
        for name in ("pollution", "plan_hash", "lag_auto"):
            if not isinstance(getattr(self, name), bool):
                raise BadOption(f"{name}={getattr(self, name)!r}: it is True or False")
        if not isinstance(self.predictor, str):
            raise BadOption(f"predictor={self.predictor!r}: it is a name, such as 'trace' or 'noisy(recall=0.9)'")

    def spelt(self) -> Options:
        """The same with policy and predictor in canonical spelling (the predictor is `none` at width 0)."""
        name, values = parse_call(self.predictor)
        spec = parse_policy(self.policy)
        call = f"{name}({', '.join(f'{k}={v}' for k, v in values.items())})" if values else name
        spelt = replace(
            self,
            policy=str(spec),
            predictor=call if self.width else "none",
            accept=float(self.accept),
        )
        spelt.__dict__["spec"] = spec
        return spelt

    @cached_property
    def spec(self) -> PolicySpec:
        """The policy with what its files held when they were read: edits during a run change neither run nor record."""
        return parse_policy(self.policy)

    @classmethod
    def of(cls, **values: Any) -> Options:
        """Options from keywords, spelt out; an unknown one is named with those that there are."""
        unknown = sorted(set(values) - set(cls.__dataclass_fields__))
        if unknown:
            raise BadOption(f"no option named {unknown[0]!r}; known: {', '.join(cls.__dataclass_fields__)}")
        if isinstance(values.get("failures"), str | Path):
            values["failures"] = read_failures(values["failures"])
        return cls(**values).spelt()

    def but(self, **changes: Any) -> Options:
        """The same with other values, and with the policy as it was read."""
        changed = replace(self, **changes)
        changed.__dict__["spec"] = self.spec
        return changed

    def rows_of(self, trace) -> tuple[int, ...] | None:
        """Bytes of one row per layer: recorded ones, unless `row_bytes` says otherwise."""
        return (self.row_bytes,) * trace.n_layers if self.row_bytes else trace.row_bytes

    def size(self, trace) -> Size:
        rows = self.rows_of(trace)
        return resolve(
            self.slots, self.vram, n_layers=trace.n_layers, n_experts=trace.n_experts, scope=self.scope, row_bytes=rows
        )

    def pool(self, trace, size: Size, **more: Any) -> Pool:
        """The pools of this run. Live callers that use the same options get the same decisions."""
        arguments: dict[str, Any] = {
            name: getattr(self, name)
            for name in "contract scope lag_demand lag_prefetch max_loads overflow prefill batch_gate width".split()
        }
        arguments |= {
            "future": True,
            "slots": size.slots if size.pool_bytes is None else None,
            "capacity_bytes": size.pool_bytes,
            "row_bytes": self.rows_of(trace),
        }
        return Pool(self.spec, n_layers=trace.n_layers, n_experts=trace.n_experts, **(arguments | more))

    def predictor_of(self, trace) -> Any:
        """Who predicts, opened on this trace; None at width 0."""
        if not self.width:
            return None
        name, parameters = parse_call(self.predictor)
        return make_predictor(name, parameters, trace, self.width, self.horizon, reset=self.reset)

    def check(self, trace, size: Size) -> None:
        """Raises BadPolicy (Refused where the parts are right but not together) without opening pools."""
        check_together(
            self.spec,
            contract=self.contract,
            overflow=self.overflow,
            prefill=self.prefill,
            width=self.width,
            lag_demand=self.lag_demand,
            lag_prefetch=self.lag_prefetch,
            max_loads=self.max_loads,
            in_bytes=size.pool_bytes is not None,
            slots=size.slots,
        )

    def check_requests(self, block) -> None:
        """Raises BadOption where pools are to be reset between requests, and a step of the block mixes some."""
        if self.reset == "request" and (block.request < 0).any():
            step = block.first_step + int((block.request < 0).argmax())
            raise BadOption(f"reset request: step {step} mixes requests; use reset persistent, or split the trace")

    def source(self, trace) -> Any:
        """What is replayed: the trace, or verify steps built from it."""
        if self.verify_tokens == 1:
            return trace
        from .verify import VerifySteps

        return VerifySteps(trace, self.verify_tokens, self.accept, self.seed)

    def steps_of(self, source) -> int:
        """Steps that are replayed."""
        return source.n_steps if self.steps is None else min(source.n_steps, self.steps)

    def window_of(self, source) -> int:
        """Steps of one point along time: one per cent of the run unless asked otherwise."""
        return self.window or max(1, -(-self.steps_of(source) // 100))

    def recorded(self, size: Size) -> dict[str, Any]:
        """The options as a result states them, with the sizes that were granted."""
        out: dict[str, Any] = {}
        for field in fields(self):
            if field.name == "slots":
                equal = len(set(size.slots)) == 1 and size.pool_bytes is None
                out["slots"] = size.slots[0] if equal else None
                out["slots_asked"] = size.asked
                out["slots_by_layer"] = None if equal or size.pool_bytes is not None else size.slots
                out["capacity_bytes"] = size.capacity_bytes
            elif field.name not in UNRECORDED:
                out[field.name] = getattr(self, field.name)
        out["files_sha256"] = self.spec.files_sha256
        return out


def warn_idle(predictor: Any, widths: Iterable[int]) -> None:
    """Warns of a predictor that is named where nothing is predicted."""
    if isinstance(predictor, str) and predictor not in ("trace", "none") and not any(widths):
        warn_caller(f"predictor {predictor}: at width 0 nothing is predicted; give a width, such as 4", ReplayWarning)


def check_workers(name: str, value: Any) -> None:
    """`threads` and `workers`: None is as many as there are cores."""
    if value is not None and not _whole(value, 1, 2**20):
        raise BadOption(f"{name}={value!r}: it is at least 1, or None for all cores")


def _whole(value: Any, low: int, high: int) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(low <= value <= high)
