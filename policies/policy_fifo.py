"""First in, first out: what a ring of slots does."""

from dataclasses import dataclass
from typing import ClassVar

from .listed import Listed
from .order import append


@dataclass(frozen=True)
class Fifo(Listed):
    """Evicts the expert that was loaded first; hits change nothing."""

    name: ClassVar[str] = "fifo"
    source: ClassVar[str] = "textbook"

    @staticmethod
    def priority(p, key, at):
        return p.fill[key]

    @staticmethod
    def filled(p, key):
        append(p, key)
