"""Least recently used: the field's common default."""

from dataclasses import dataclass
from typing import ClassVar

from .listed import Listed
from .order import append, unlink


@dataclass(frozen=True)
class Lru(Listed):
    """Evicts the expert whose last touch is oldest; routed rows and considered predictions touch."""

    name: ClassVar[str] = "lru"
    source: ClassVar[str] = "textbook; the default of most llama.cpp expert caches"
    stack: ClassVar[bool] = True

    @staticmethod
    def priority(p, key, at):
        return p.touch[key]

    @staticmethod
    def touched(p, key):
        append(p, key)

    @staticmethod
    def refused(p, key):
        unlink(p, key)
