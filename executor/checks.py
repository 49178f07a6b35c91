"""What an executor cannot carry out, said before anything is opened; and whether its slots hold what they should."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from warnings import warn

import numpy as np

from slotwise.policies import Pool
from slotwise.policies.layout import NONE

from .cold import RowLayout
from .errors import BadExecutor, CheckFailed, ExecutorWarning
from .transfers import WAITING

if TYPE_CHECKING:
    from .executor import Executor
    from .store import HostStore


MOST_PADS = 1000


def check_choice(name: str, value: str, among: Sequence[str]) -> str:
    """The value itself. Raises BadExecutor for one that there is not."""
    if value not in among:
        raise BadExecutor(f"{name}={value!r}: {', '.join(among[:-1])} or {among[-1]}")
    return value


def check(
    pool: Pool,
    store: HostStore,
    *,
    miss: str,
    late: str,
    split_share: float,
    spec_chunk: int | None,
    max_queued: int | None,
    link_pad: int,
    top_k: int,
    horizon: int,
    max_tokens: int,
    staging: int | None,
) -> None:
    """Raises BadExecutor."""
    if (pool.n_layers, pool.n_experts) != (store.n_layers, store.n_experts):
        raise BadExecutor(
            f"the pool has {pool.n_layers} layers of {pool.n_experts} experts, the store {store.n_layers} of "
            f"{store.n_experts}"
        )
    hidden = sorted({layout.hidden for layout in store.layouts})
    if len(hidden) > 1:
        raise BadExecutor(
            f"layers of hidden sizes {', '.join(map(str, hidden))}: what one layer gives the next takes in"
        )
    if not pool.full:
        raise BadExecutor("the pool leaves out what a failed copy needs: open it with Pool(..., full=True)")
    if pool.capacity_bytes is not None:
        raise BadExecutor("a pool of bytes over unequal rows has no slots to copy into: give slots")
    if pool.spec.policy.needs_future:
        raise BadExecutor(f"{pool.spec}: it needs the future, which a run does not know; replay it instead")
    check_choice("miss", miss, ("cpu", "fetch", "split"))
    check_choice("late", late, ("wait", "cold"))
    if not 0 <= split_share <= 1:
        raise BadExecutor(f"split_share={split_share}: a share of the misses, from 0 to 1")
    if spec_chunk is not None and spec_chunk < 1:
        raise BadExecutor(f"spec_chunk={spec_chunk}: rows in a batch, at least 1")
    if max_queued is not None and max_queued < 1:
        raise BadExecutor(f"max_queued={max_queued}: bytes, at least 1")
    if not 0 <= link_pad <= MOST_PADS:
        raise BadExecutor(f"link_pad={link_pad}: copies beside each, from 0 to {MOST_PADS}")
    if type(top_k) is not int or not 1 <= top_k <= pool.n_experts:
        raise BadExecutor(f"top_k={top_k!r}: a whole number from 1 to the {pool.n_experts} experts")
    wholes = {"horizon": horizon, "max_tokens": max_tokens, "staging": 1 if staging is None else staging}
    for name, value in wholes.items():
        if type(value) is not int or value < 1:
            raise BadExecutor(f"{name}={value!r}: a whole number, at least 1")
    if pool.buffer.get("now") != NONE and any(pool.slots_of(layer) for layer in range(pool.n_layers)):
        raise BadExecutor("the pool has rows already, which are not on this device: reset it, or make a new one")
    bare = [layer for layer, slots in enumerate(pool.slots) if not slots]
    if pool.width and bare and len(bare) < len(pool.slots):
        warn(f"layers {bare} have no slots: look-ahead skips them", ExecutorWarning, stacklevel=3)


def check_size(pool_bytes: int | None, layouts: Sequence[RowLayout]) -> None:
    """Raises BadExecutor for a global pool of bytes over unequal rows, before any row is read."""
    if pool_bytes is None:
        return
    sizes = [layout.row_bytes for layout in layouts]
    raise BadExecutor(
        f"vram in scope global over rows of {min(sizes)} to {max(sizes)} bytes makes a pool of bytes, which has no "
        f"slots to copy into; give --slots {pool_bytes // max(sizes)}, as many of the widest as fit, or --scope layer"
    )


def audit(executor: Executor, draw: np.random.Generator | None = None, most: int = 0) -> None:
    """Holds occupied slots against their rows, once nothing runs: all, or at most so many drawn ones.

    Raises CheckFailed with the first that differs.
    """
    executor.synchronize()
    pool, store = executor.pool, executor.store
    taken = [
        (layer, expert, slot)
        for layer in range(pool.n_layers)
        for expert, slot in pool.slots_of(layer).items()  # looked at before the first call, a pool begins
        if not pool.unlisted(layer)
    ]
    if draw is not None and len(taken) > most:
        taken = [taken[i] for i in draw.choice(len(taken), most, replace=False)]
    for layer, expert, slot in taken:
        place = (0 if pool.scope == "global" else layer, slot)
        if executor.transfers.ticket(*place) is WAITING:
            continue  # its copy was refused: nobody takes this slot for the row
        row, address = store.row(layer, expert), executor.slots.address(*place)
        differ = np.flatnonzero(executor.backend.read(address, row.size) != row)
        if differ.size:
            raise CheckFailed(
                f"layer {layer}, slot {slot}: not the bytes of expert {expert}, {differ.size} of {row.size} differ, "
                f"the first is byte {differ[0]}"
            )
