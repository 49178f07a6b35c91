"""Rows on their way into device memory: which copies are under way, which wait, and what they must not overtake."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from .backend import Backend, Copy
from .errors import CopyDoubtful, CopyRefused
from .slots import Slots
from .sort import Load
from .store import HostStore

WAITING: Any = object()  # in place of a ticket: the copy still waits on the host
Place = tuple[int, int]  # (pool, slot)
_LOG = logging.getLogger(__name__)


class Transfers:
    """Starts copies and remembers them. Counts rows, batches and bytes.

    max_queued: at most so many bytes of speculative batches are in the driver at a time (a larger batch goes alone);
    what comes later waits here, in order, until it is started by `pump`, called up by `hurry`, or loses its slot. No
    plan knows of that: a row that waits is a row that has not landed. None starts everything at once.
    link_pad: so many copies more of each row, into rows that nobody reads: a slower link.
    Counts also what waited: `hurried` (demanded before its turn), `overtaken` (never copied, as its slot was taken by
    another row first), `requeued` (refused or doubtful when its turn came, to be tried again).
    """

    def __init__(
        self, store: HostStore, slots: Slots, backend: Backend, *, max_queued: int | None = None, link_pad: int = 0
    ):
        self.store, self.slots, self.backend = store, slots, backend
        self.max_queued, self.link_pad = max_queued, link_pad
        self._under_way: dict[Place, Any] = {}  # ticket of the copy into a slot
        self._started: deque[tuple[Any, list[Place]]] = deque()  # batches in order, until seen to have landed
        self._readers: dict[int, tuple[int, Any]] = {}  # address -> (number, ticket) of the hot work that read it last
        self._number = 0
        self._queue: dict[Place, tuple[int, Copy]] = {}  # what waits, oldest first, with the number of its batch
        self._queued = 0  # batches that had to wait
        self._in_driver: deque[tuple[Any, int]] = deque()  # speculative batches and their bytes, oldest first
        self.n_copies = self.n_batches = self.bytes_copied = self.bytes_padded = 0
        self.hurried = self.overtaken = self.requeued = 0

    def ticket(self, pool: int, slot: int) -> Any:
        """The copy that is under way into a slot; None once it has landed, WAITING if it was not started yet."""
        if (pool, slot) in self._queue:
            return WAITING
        ticket = self._under_way.get((pool, slot))
        if ticket is not None and self.backend.landed(ticket):
            del self._under_way[pool, slot]
            return None
        return ticket

    def busy(self) -> bool:
        """Whether any copy into a slot is under way, or waits. Batches land in order, so the oldest tells."""
        while self._started and self.backend.landed(self._started[0][0]):
            ticket, places = self._started.popleft()
            for place in places:
                if self._under_way.get(place) is ticket:
                    del self._under_way[place]
        return bool(self._under_way or self._queue)

    def concerns(self, pool: int, slots: Iterable[int]) -> bool:
        """Whether a copy into any of these slots is under way, or waits."""
        return any((pool, slot) in self._under_way or (pool, slot) in self._queue for slot in slots)

    def reads(self, addresses: Iterable[int], ticket: Any) -> None:
        """Notes that the hot work of this ticket reads rows at these addresses."""
        self._number += 1
        for address in addresses:
            self._readers[address] = (self._number, ticket)

    # --- copies into slots ---

    def fill(self, loads: Sequence[Load]) -> None:
        """Starts one batch of copies into slots. Of several loads into one slot, the last is the one that stays.

        Raises CopyRefused, where all is as before, or CopyDoubtful.
        """
        if not loads:
            return
        copies = self._into_slots(loads)
        try:
            self._go(copies)
        except CopyDoubtful:
            self._overtake(copies)  # who held these slots has left, whatever came of the copies
            raise

    def ahead(self, loads: Sequence[Load]) -> None:
        """The same for a speculative batch, which waits if others do, or if too much is in the driver."""
        if self.max_queued is None:
            self.fill(loads)
            return
        copies = self._into_slots(loads)
        if not self._queue and self._fits(copies):
            self._in_driver.append((self._go(copies), self._bytes(copies)))
            return
        self._overtake(copies)
        self._queued += 1
        self._queue |= {place: (self._queued, copy) for place, copy in copies.items()}

    def pump(self) -> bool:
        """Starts batches that wait, while they fit. Says whether it started any. Never waits."""
        started = False
        while self._queue:
            _, batch = next(groupby(self._queue.items(), lambda item: item[1][0]))
            copies = {place: copy for place, (_, copy) in batch}
            ticket = self._late(copies) if self._fits(copies) else None
            if ticket is None:
                break
            self._in_driver.append((ticket, self._bytes(copies)))
            started = True
        return started

    def hurry(self, places: Iterable[Place]) -> None:
        """Starts what waits for these slots, as one batch, ahead of everything else that waits."""
        copies = {place: self._queue[place][1] for place in places if place in self._queue}
        if copies and self._late(copies) is not None:
            self.hurried += len(copies)

    def drain(self) -> None:
        """Waits until everything has landed, also what waits here; what is refused once more goes on waiting."""
        self.backend.drain()
        while self.pump():
            self.backend.drain()

    def forget(self) -> None:
        """Gives up what waits: the pools were emptied."""
        self._overtake(dict(self._queue))

    def _into_slots(self, loads: Sequence[Load]) -> dict[Place, Copy]:
        return {
            (load.pool, load.slot): self.copy_of(load.layer, load.expert, self.slots.address(load.pool, load.slot))
            for load in loads
        }

    def _fits(self, copies: dict[Place, Copy]) -> bool:
        while self._in_driver and self.backend.landed(self._in_driver[0][0]):
            self._in_driver.popleft()
        there = sum(n_bytes for _, n_bytes in self._in_driver)
        return not there or self.max_queued is None or there + self._bytes(copies) <= self.max_queued

    def _bytes(self, copies: dict[Place, Copy]) -> int:
        return sum(copy.n_bytes for copy in copies.values()) * (1 + self.link_pad)

    def _late(self, copies: dict[Place, Copy]) -> Any:
        """Starts copies that have waited, and returns their ticket; None if that failed, and they wait on.

        The plan counts on them since a tick that is over, so it is not touched: a row of doubtful bytes is copied
        again, and until it has landed whoever needs it goes without.
        """
        try:
            return self._go(copies)
        except (CopyRefused, CopyDoubtful) as failed:
            if not self.requeued:
                _LOG.warning("copies that waited: %s; they wait on; more of it is counted, not said", failed)
            self.requeued += len(copies)
            return None

    def _go(self, copies: dict[Place, Copy]) -> Any:
        mine = [place for place in copies if place in self._queue and self._queue[place][1] is copies[place]]
        ticket = self.start(list(copies.values()))
        for place in mine:
            del self._queue[place]
        self._overtake(copies)
        self._under_way |= dict.fromkeys(copies, ticket)
        self._started.append((ticket, list(copies)))
        return ticket

    def _overtake(self, places: Iterable[Place]) -> None:
        for place in places:
            self.overtaken += self._queue.pop(place, None) is not None

    # --- copies anywhere ---

    def copy_of(self, layer: int, expert: int, target: int) -> Copy:
        """The copy of one row to an address."""
        return Copy(self.store.addresses[layer][expert], target, self.store.layouts[layer].row_bytes)

    def start(self, copies: Sequence[Copy]) -> Any:
        """One batch, behind the hot work that last read any of its targets. Returns its ticket.

        Raises CopyRefused or CopyDoubtful.
        """
        readers = [self._readers[copy.target] for copy in copies if copy.target in self._readers]
        if self.link_pad:
            self._pad(copies)
        ticket = self.backend.copy(copies, max(readers, key=itemgetter(0))[1] if readers else None)
        for copy in copies:
            self._readers.pop(copy.target, None)
        self.n_batches += 1
        self.n_copies += len(copies)
        self.bytes_copied += sum(copy.n_bytes for copy in copies)
        return ticket

    def _pad(self, copies: Sequence[Copy]) -> None:
        """The same rows to where nobody reads, ahead of the batch, which then lands so much later."""
        extra, room = list(copies) * self.link_pad, self.slots.pad
        for first in range(0, len(extra), len(room)):
            part = extra[first : first + len(room)]
            self.backend.copy([copy._replace(target=to) for copy, to in zip(part, room, strict=False)])
            self.bytes_padded += sum(copy.n_bytes for copy in part)
