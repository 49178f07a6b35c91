"""Threads that share out numbered work: the caller's own, and helpers beside it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType


class Crew:
    """`threads` of them, the caller's included. A context manager.

    Each takes the next number as soon as it is free. One job a thread, not one a number: two dozen of those cost a
    millisecond, a fifth of a short replay.
    """

    def __init__(self, threads: int):
        self._helpers = threads - 1
        self._pool = ThreadPoolExecutor(self._helpers) if self._helpers else None

    def each(self, do: Callable[[int], object], count: int) -> None:
        """Calls `do` with 0 to count - 1. Of several errors, that of the caller's thread, or else one of the others."""
        numbers = iter(range(count))  # whose next number a thread gets is settled by the interpreter, one at a time

        def work() -> None:
            for number in numbers:
                do(number)

        helpers = [self._pool.submit(work) for _ in range(min(self._helpers, count - 1))] if self._pool else []
        try:
            work()
        finally:
            errors = [helper.exception() for helper in helpers]  # waits for all of them
        for error in filter(None, errors):
            raise error

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._pool:
            self._pool.shutdown()
