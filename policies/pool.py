"""The pool: which experts are in VRAM, decided tick by tick. Replay and executor drive this very class."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from .checks import check_choice, check_slots, check_together, check_whole, check_wholes, native_ids
from .compiled import kernel
from .errors import BadPolicy
from .initial import initial_keys, profiles_of
from .layout import COUNTERS, FOREVER, NONE, Buffer
from .memory import open_buffer
from .own import blame
from .plan import Plan
from .spelling import PolicySpec, parse_policy

MOST, MOST_BYTES = 2**40, 2**62  # ticks, steps, tokens; bytes: far from where 64 bits end
MOST_ROW = 2**36  # bytes of a row: sums over a hundred million loads still fit
MOST_KEYS = 65535  # beyond, keys do not fit below a score, and every policy is scanned by its `priority`


class Pool:
    """The pools of all layers under one policy (scope `layer`), or the one pool of all layers (scope `global`).

    Args:
        policy: a spelling such as "lfru(half_life=16)+guard", or a PolicySpec.
        n_layers, n_experts: MoE layers of the model, experts of each.
        slots: per pool (scope global: of the whole pool); one number, or one per layer. 0 holds nothing.
        scope: "layer", a pool per layer, or "global", one pool for all.
        contract: "event", a tick at once, or "sequential", one expert after the other (the textbook form).
        lag_demand, lag_prefetch: ticks that a load takes beyond its own.
        max_loads: loads a tick and pool may start; None is no cap.
        overflow: a tick that demands more than fits: "bypass" the surplus, or "exceed" the pool and trim later.
        prefill: steps of more than `batch_gate` tokens follow the same rules ("cached"), or pass by ("stream").
        batch_gate: the largest step, in tokens, that looks ahead.
        width: predictions per token considered; None is all that `prefetch` gets.
        capacity_bytes: in place of `slots`: bytes of each pool, for rows of unequal size.
        row_bytes: bytes of one row, one number or one per layer; a pool of bytes needs them.
        future, record, look, full, tell, plain: internal, for replay: what the compiled kernel can do without.

    Raises BadPolicy for a number or a combination that cannot be.
    """

    def __init__(
        self,
        policy: str | PolicySpec,
        *,
        n_layers: int,
        n_experts: int,
        slots: int | Sequence[int] | None = None,
        scope: str = "layer",
        contract: str = "event",
        lag_demand: int = 0,
        lag_prefetch: int = 0,
        max_loads: int | None = None,
        overflow: str = "bypass",
        prefill: str = "cached",
        batch_gate: int = 8,
        width: int | None = None,
        capacity_bytes: int | None = None,
        row_bytes: Sequence[int] | None = None,
        future: bool = False,
        record: bool = True,
        look: bool = True,
        full: bool = False,
        tell: bool = False,
        plain: bool = False,
    ):
        self.spec = spec = parse_policy(policy)
        if spec.policy.needs_future and not future:
            raise BadPolicy(f"{spec} needs to know the future: it can only be replayed, from a trace")
        check_choice("scope", scope, ("layer", "global"))
        check_choice("contract", contract, ("event", "sequential"))
        check_choice("overflow", overflow, ("bypass", "exceed"))
        check_choice("prefill", prefill, ("cached", "stream"))
        n_layers = check_whole("n_layers", n_layers, 1, 100_000)
        n_experts = check_whole("n_experts", n_experts, 1, 65535)
        lag_demand, lag_prefetch = (
            check_whole(name, lag, 0, MOST)
            for name, lag in (("lag_demand", lag_demand), ("lag_prefetch", lag_prefetch))
        )
        batch_gate = check_whole("batch_gate", batch_gate, 0, MOST)
        max_loads = None if max_loads is None else check_whole("max_loads", max_loads, 0, MOST)
        width = None if width is None else check_whole("width", width, 0, MOST)
        half_life, warmup = (
            check_whole(f"{spec}: {name}", getattr(spec.policy, name, 0), 0, MOST) for name in ("half_life", "warmup")
        )
        self.n_layers, self.n_experts, self.scope = n_layers, n_experts, scope
        self._wide = scope == "global" and n_layers > 1
        in_bytes = capacity_bytes is not None
        n_pools = 1 if self._wide else n_layers
        keys = n_experts * (n_layers if self._wide else 1)
        self.slots = check_slots(slots, capacity_bytes, n_pools, keys)
        self._row_bytes = check_wholes("row_bytes", 1 if row_bytes is None else row_bytes, n_layers, 1, MOST_ROW)
        self.capacity_bytes = check_whole("capacity_bytes", capacity_bytes, 0, MOST_BYTES) if in_bytes else None
        if in_bytes and row_bytes is None:
            raise BadPolicy(f"capacity_bytes={capacity_bytes} needs row_bytes: the bytes of one row, for each layer")
        exceed = overflow == "exceed"
        check_together(
            spec, contract=contract, overflow=overflow, prefill=prefill, width=width, lag_demand=lag_demand,
            lag_prefetch=lag_prefetch, max_loads=max_loads, in_bytes=in_bytes, slots=self.slots,
        )  # fmt: skip
        rare = (contract == "sequential", exceed, in_bytes, prefill == "stream", lag_demand, lag_prefetch, warmup)
        full = full or any(rare) or max_loads is not None
        self.full = full
        self.simple = not full and scope == "layer" and not width and not (spec.guard or spec.gate or spec.pin)
        self._features = {"full": full, "look": look, "record": record, "tell": tell}
        self._features["plain"] = plain or keys > MOST_KEYS
        self._words = {
            "sequential": contract == "sequential",
            "exceed": overflow == "exceed",
            "stream": prefill == "stream",
            "batch_gate": batch_gate,
            "lag_demand": lag_demand,
            "lag_prefetch": lag_prefetch,
            "max_loads": -1 if max_loads is None else max_loads,
            "in_bytes": in_bytes,
            "half_life": half_life,
            "access_clock": getattr(spec.policy, "clock", "step") == "access",
            "warmup": warmup,
            "now": NONE,
            "last_layer": n_layers - 1,
        }
        self.batch_gate, self.prefill, self.width = batch_gate, prefill, width
        self.physical_slots = [keys] * n_pools if in_bytes or exceed else list(self.slots)
        self._n_slots = max(1, keys if in_bytes or exceed else max(self.slots))
        profiles = profiles_of(spec, n_layers, n_experts)
        self.profile_hashes = {each for profile in profiles.values() for each in profile.trace_hashes}
        self._initial = [initial_keys(spec, profiles, layer) for layer in ([None] if self._wide else range(n_layers))]
        self._width = 65535 if width is None else width
        self._dtype = np.dtype(np.uint8 if n_experts <= 255 else np.uint16)

    # Made when first needed: a run that a faster twin of the kernel covers needs none of it.

    @cached_property
    def kernel(self):
        """The compiled functions for this policy and these options."""
        return kernel(type(self.spec.policy), **self._features)

    @cached_property
    def buffer(self) -> Buffer:
        """The memory of the pools, opened cold."""
        capacities = self.slots if self.capacity_bytes is None else [self.capacity_bytes]
        return open_buffer(
            self.spec, self._words, self._initial, capacities=capacities, in_bytes=self.capacity_bytes is not None,
            row_bytes=self._row_bytes, n_experts=self.n_experts, n_slots=self._n_slots,
        )  # fmt: skip

    def open(self) -> None:
        """Makes kernel and memory now: threads that met them first would each make their own (no lock since 3.12)."""
        _ = self.kernel, self.buffer

    @cached_property
    def _address(self) -> int:
        return self.buffer.address

    @cached_property
    def _step(self):
        return self.kernel.step

    @cached_property
    def _prefetch(self):
        return self.kernel.prefetch

    @cached_property
    def _plans(self) -> list[Plan]:
        return [self._plan_of(layer) for layer in range(self.n_layers)]

    def _plan_of(self, layer: int) -> Plan:
        view = lambda name: self.buffer.field(0 if self._wide else layer, name)  # noqa: E731
        return Plan(view("head"), view("verb"), view("key"), view("place"), layer, self.n_experts, self._wide)

    # --- live calls ---

    def step(self, layer: int, ids: np.ndarray) -> Plan:
        """Demand of one tick: `ids` [n_tokens, k], or [k] for one token, best first; absent entries as in a trace.

        A layer not above the last one begins the next step. The Plan is a view, valid until the pool's next call.
        """
        asked = ids
        plain = type(ids) is np.ndarray and ids.dtype == self._dtype and ids.flags.c_contiguous and 0 < ids.ndim < 3
        if not plain:
            ids = native_ids(ids, self.n_experts)
        if type(layer) is not int or not 0 <= layer < self.n_layers:
            layer = check_whole("layer", layer, 0, self.n_layers - 1)
        try:
            if ids.ndim == 1:
                bad = self._step(self._address, layer, ids, 1)
            else:
                bad = self._step(self._address, layer, ids.reshape(-1), ids.shape[0])
        except Exception as error:  # a user's policy may raise anything
            blame(self.spec, error)
            raise
        if bad:
            given = np.asarray(asked).reshape(-1)
            raise BadPolicy(f"step(layer={layer}): expert {given[bad - 1]} is not below {self.n_experts}")
        return self._plans[layer]

    def prefetch(self, layer: int, predicted: np.ndarray) -> Plan:
        """Offers predictions for `layer` now: [n_tokens, P] or [P], best first. Ids out of range are ignored."""
        ids = predicted
        plain = type(ids) is np.ndarray and ids.dtype == self._dtype and ids.flags.c_contiguous and 0 < ids.ndim < 3
        if not plain:
            ids = native_ids(ids, self.n_experts)
        if type(layer) is not int or not 0 <= layer < self.n_layers:
            layer = check_whole("layer", layer, 0, self.n_layers - 1)
        n_tokens = 1 if ids.ndim == 1 else ids.shape[0]
        if n_tokens <= self._words["batch_gate"]:
            try:
                self._prefetch(self._address, layer, ids.reshape(-1), n_tokens, self._width)
            except Exception as error:  # as in `step`
                blame(self.spec, error)
                raise
        else:
            self.buffer.set_pool(0 if self._wide else layer, n_records=0)
        return self._plans[layer]

    def refuse(self, layer: int, first: int | None) -> None:
        """From its load number `first` on, the next phase of this layer's pool cannot copy; None ends that.

        A load that cannot be copied counts `failed_demand` or `failed_prediction`, and what would have left stays. For
        pools opened `full`.
        """
        self.buffer.set_pool(0 if self._wide else layer, refused_from=FOREVER if first is None else first)

    def invalidate(self, layer: int, expert: int) -> None:
        """Gives up a row whose copy may have failed half-way: its slot is free, and it counts `invalidated`."""
        if not self.kernel.invalidate(self._address, layer, layer * self.n_experts + expert if self._wide else expert):
            raise BadPolicy(f"layer {layer}, expert {expert}: it has no slot that could be given up")

    def reset(self) -> None:
        """Empties every pool and forgets its history; what was resident counts as discarded."""
        counters = self.buffer.counters[None]
        for pool in range(self.n_pools):
            self.kernel.reset(self._address, pool, max(0, self.buffer.get("now")), 0, counters)
        self.buffer.set(begun=False)

    # --- what is there ---

    @property
    def n_pools(self) -> int:
        """Pools: one, or one per layer."""
        return 1 if self._wide else self.n_layers

    @property
    def counters_shape(self) -> tuple[int, int]:
        """(layers, counters) of one counter cell."""
        return self.n_layers, len(COUNTERS)

    @property
    def counters(self) -> dict[str, int]:
        """Counts of the live calls so far, with the present residents and rows in flight."""
        self._begin()
        counts = self.buffer.counters.copy()
        for pool in range(self.n_pools):
            owner = self.buffer.field(pool, "owner")
            keys = owner[owner != NONE]
            landed = int((self.buffer.field(pool, "land")[keys] <= self._tick()).sum())
            counts[pool, COUNTERS.index("residents")] += landed
            counts[pool, COUNTERS.index("in_flight")] += keys.size - landed
            counts[pool, COUNTERS.index("unresolved")] += int(self.buffer.field(pool, "unused")[keys].sum())
        return {name: int(total) for name, total in zip(COUNTERS, counts.sum(0), strict=True)}

    def residents(self, layer: int) -> list[int]:
        """The experts of a layer that can be hit now, ascending; rows still in flight are not among them."""
        self._begin()
        land = self.buffer.field(0 if self._wide else layer, "land")
        first = layer * self.n_experts if self._wide else 0
        return [expert for expert in self.slots_of(layer) if land[first + expert] <= self._tick()]

    def slots_of(self, layer: int) -> dict[int, int]:
        """{expert: slot} of a layer's rows, in flight or landed."""
        self._begin()
        owner = self.buffer.field(0 if self._wide else layer, "owner")
        first = layer * self.n_experts if self._wide else 0
        pairs = [(int(key) - first, slot) for slot, key in enumerate(owner) if first <= key < first + self.n_experts]
        return dict(sorted(pairs))

    def unlisted(self, layer: int) -> bool:
        """Whether initial rows are in the layer's pool that no plan has named yet: the next one of the pool does."""
        return bool(self.buffer.pool_word(0 if self._wide else layer, "unlisted"))

    def _begin(self) -> None:
        """Initial rows are there before the first step, too."""
        if self.buffer.get("now") == NONE and not self.buffer.get("begun") and any(keys for _, keys in self._initial):
            self.kernel.begin_pools(self._address)

    def _tick(self) -> int:
        return self.buffer.get("now") * self.n_layers + self.buffer.get("last_layer")

    def __repr__(self) -> str:
        size = f"{self.capacity_bytes} bytes" if self.capacity_bytes is not None else f"{self.slots[0]} slots"
        return (
            f"Pool({str(self.spec)!r}, {self.n_layers} layers x {self.n_experts} experts, {self.scope} scope, {size})"
        )
