"""Rows on their way into device memory: which copies are under way, and which hot work they must not overtake."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

from .backend import Backend, Copy
from .dispatch import Load
from .slots import Slots
from .store import HostStore


class Transfers:
    """Starts copies and remembers them. Counts rows, batches and bytes."""

    def __init__(self, store: HostStore, slots: Slots, backend: Backend):
        self.store, self.slots, self.backend = store, slots, backend
        self._under_way: dict[tuple[int, int], Any] = {}  # (pool, slot) -> ticket of the copy into it
        self._readers: dict[int, tuple[int, Any]] = {}  # address -> (number, ticket) of the hot work that read it last
        self._number = 0
        self.n_copies = self.n_batches = self.bytes_copied = 0

    def ticket(self, pool: int, slot: int) -> Any:
        """The copy that is under way into a slot; None once it has landed."""
        ticket = self._under_way.get((pool, slot))
        if ticket is not None and self.backend.landed(ticket):
            del self._under_way[pool, slot]
            return None
        return ticket

    def reads(self, addresses: Iterable[int], ticket: Any) -> None:
        """Notes that the hot work of this ticket reads rows at these addresses."""
        self._number += 1
        for address in addresses:
            self._readers[address] = (self._number, ticket)

    def fill(self, loads: Sequence[Load]) -> None:
        """Starts one batch of copies into slots. Of several loads into one slot, the last is the one that stays."""
        copies = {
            (load.pool, load.slot): self.copy_of(load.layer, load.expert, self.slots.address(load.pool, load.slot))
            for load in loads
        }
        ticket = self.start(list(copies.values()))
        for place in copies:
            self._under_way[place] = ticket

    def copy_of(self, layer: int, expert: int, target: int) -> Copy:
        """The copy of one row to an address."""
        return Copy(self.store.addresses[layer][expert], target, self.store.layouts[layer].row_bytes)

    def start(self, copies: Sequence[Copy]) -> Any:
        """One batch, behind the hot work that last read any of its targets. Returns its ticket.

        Raises CopyRefused or CopyDoubtful.
        """
        readers = [self._readers[copy.target] for copy in copies if copy.target in self._readers]
        ticket = self.backend.copy(copies, max(readers, key=itemgetter(0))[1] if readers else None)
        for copy in copies:
            self._readers.pop(copy.target, None)
        self.n_batches += 1
        self.n_copies += len(copies)
        self.bytes_copied += sum(copy.n_bytes for copy in copies)
        return ticket
