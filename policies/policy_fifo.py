"""First in, first out: what a ring of slots does."""

from dataclasses import dataclass
from typing import ClassVar

from .order import append, first_free, unlink
from .policy import Policy


@dataclass(frozen=True)
class Fifo(Policy):
    """Evicts the expert that was loaded first; hits change nothing."""

    name: ClassVar[str] = "fifo"
    source: ClassVar[str] = "textbook"
    keeps_order: ClassVar[bool] = True

    @staticmethod
    def priority(p, key, at):
        return p.fill[key]

    @staticmethod
    def filled(p, key):
        append(p, key)

    @staticmethod
    def left(p, key):
        unlink(p, key)

    @staticmethod
    def oldest(p, at):
        return first_free(p, at)
