"""Where slots lie in device memory: one allocation a pool, one each for scratch, staging and padding."""

from __future__ import annotations

from slotwise.policies import Pool

from .backend import Backend
from .errors import BadExecutor
from .store import HostStore

MIB = 1 << 20


class Slots:
    """Addresses of slots and of the rows outside the pools, in device memory.

    scratch, staging: rows for misses without a slot, and for streamed steps. pad: rows that nobody reads, for copies
    that imitate a slower link. Slots of a global pool are as wide as the widest row. Raises BadExecutor if what is
    asked for and `headroom_bytes` do not fit into the device's free memory, naming the most slots that would.
    """

    def __init__(
        self,
        pool: Pool,
        store: HostStore,
        backend: Backend,
        *,
        scratch: int,
        staging: int,
        headroom_bytes: int,
        pad: int = 0,
    ):
        wide = pool.scope == "global"
        widest = max(store.strides)
        self.strides = [widest] if wide else list(store.strides)
        counts = pool.physical_slots
        n_bytes = sum(stride * count for stride, count in zip(self.strides, counts, strict=True))
        beside = (scratch + staging + pad) * widest
        self._check(pool, backend, n_bytes, beside, headroom_bytes, counts)
        self.bases = [
            backend.device_memory(count * stride) if count else 0
            for stride, count in zip(self.strides, counts, strict=True)
        ]
        self.scratch = self._outside(backend, scratch, widest)
        self.staging = self._outside(backend, staging, widest)
        self.pad = self._outside(backend, pad, widest)

    def address(self, pool: int, slot: int) -> int:
        """Where a slot of a pool (0 for the global one) lies."""
        return self.bases[pool] + slot * self.strides[pool]

    @staticmethod
    def _outside(backend: Backend, count: int, stride: int) -> list[int]:
        if not count:
            return []
        base = backend.device_memory(count * stride)
        return [base + i * stride for i in range(count)]

    def _check(self, pool: Pool, backend: Backend, n_bytes: int, beside: int, headroom: int, counts: list[int]) -> None:
        free = backend.free_bytes()
        if free is None or n_bytes + beside + headroom <= free:
            return
        room = max(0, free - beside - headroom)
        fits = min(max(counts), room // sum(self.strides))
        asked = f"{max(counts)}" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
        if pool.physical_slots != pool.slots:
            raise BadExecutor(
                f"overflow=exceed lets a pool hold all of its rows, {asked} of them or {n_bytes / MIB:.0f} MiB in all, "
                f"but {room / MIB:.0f} MiB are free: use overflow=bypass"
            )
        raise BadExecutor(
            f"{asked} slots take {n_bytes / MIB:.0f} MiB and rows beside them {beside / MIB:.0f} MiB, with "
            f"{headroom / MIB:.0f} MiB of headroom, but {free / MIB:.0f} MiB are free: at most {fits} slots "
            f"{'in all' if len(counts) == 1 else 'a pool'} fit"
        )
