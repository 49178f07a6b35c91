"""Policies whose order is a list of keys: the subclass says what makes a key the newest, the oldest free one leaves."""

from dataclasses import dataclass
from typing import ClassVar

from .order import first_free, unlink
from .policy import Policy


@dataclass(frozen=True)
class Listed(Policy):
    """Keeps the order of `order.append`; `priority` must say the same in numbers."""

    keeps_order: ClassVar[bool] = True

    @staticmethod
    def left(p, key):
        unlink(p, key)

    @staticmethod
    def oldest(p, at):
        return first_free(p, at)
