"""What the oracle's world is made of: a step of a trace, a row in a slot, a pool of slots."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One step: rows of ids per layer, None where absent."""

    request: int  # -1: several requests
    phase: int  # 0 prefill, 1 decode
    n_rows: int
    experts: list  # [n_layers][n_rows][k] of int | None
    predicted: list | None  # [n_layers][n_rows][P] of int | None, for that layer


@dataclass
class Row:
    """A row of weights in a slot, landed or on its way."""

    slot: int
    lands: float  # resident from this tick on
    unused: bool = False  # a speculative fill that nobody has demanded
    fixed: bool = False  # pinned, or static


class Pool:
    """Slots, and what lies in them. Sizes are rows (1 each) or bytes, as the capacity is."""

    def __init__(self, capacity, size_of):
        self.capacity, self.size_of, self.rows = capacity, size_of, {}

    def used(self):
        return sum(self.size_of(key) for key in self.rows)

    def free(self):
        return self.capacity - self.used()

    def put(self, key, **what):
        taken = {row.slot for row in self.rows.values()}
        slot = next(i for i in range(len(taken) + 1) if i not in taken)
        self.rows[key] = Row(slot, **what)
        return slot

    def landed(self, key, tick):
        return key in self.rows and self.rows[key].lands <= tick
