"""What an executor cannot carry out, said before anything is opened."""

from __future__ import annotations

from slotwise.policies import Pool

from .errors import BadExecutor
from .store import HostStore


def check(pool: Pool, store: HostStore, *, miss: str, late: str, split_share: float, spec_chunk: int | None) -> None:
    """Raises BadExecutor."""
    if (pool.n_layers, pool.n_experts) != (store.n_layers, store.n_experts):
        raise BadExecutor(
            f"the pool has {pool.n_layers} layers of {pool.n_experts} experts, the store {store.n_layers} of "
            f"{store.n_experts}"
        )
    if not pool.full:
        raise BadExecutor("the pool leaves out what a failed copy needs: open it with Pool(..., full=True)")
    if pool.capacity_bytes is not None:
        raise BadExecutor("a pool of bytes over unequal rows has no slots to copy into: give slots")
    if pool.spec.policy.needs_future:
        raise BadExecutor(f"{pool.spec}: it needs the future, which a run does not know; replay it instead")
    if miss not in ("cpu", "fetch", "split"):
        raise BadExecutor(f"miss={miss!r}: cpu, fetch or split")
    if late not in ("wait", "cold"):
        raise BadExecutor(f"late={late!r}: wait or cold")
    if not 0 <= split_share <= 1:
        raise BadExecutor(f"split_share={split_share}: a share of the misses, from 0 to 1")
    if spec_chunk is not None and spec_chunk < 1:
        raise BadExecutor(f"spec_chunk={spec_chunk}: rows in a batch, at least 1")
