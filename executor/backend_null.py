"""The null backend: does nothing and writes down what it was asked, so that the order of calls can be looked at."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from .backend import Copy, Rows
from .checks import check_choice
from .cold import RowLayout
from .host_memory import HOSTS
from .merge import MERGES
from .tensors import on_host


class NullBackend:
    """Computes nothing, moves nothing and records every call: `calls` holds (name, what it was about)."""

    name, device_name, owned = "null", "none, nothing is moved or computed there", False
    timing = False
    poison = False
    reader_waits = counter = 0

    def __init__(self, *, host: str = "pinned", merge: str = "gpu"):
        check_choice("host", host, HOSTS)
        check_choice("merge", merge, MERGES)
        self.calls: list[tuple[str, Any]] = []
        self._next = 256

    @staticmethod
    def missing(cold: str = "native") -> str | None:
        return None

    def free_bytes(self) -> int | None:
        return None

    def host_memory(self, n_bytes: int) -> np.ndarray:
        return np.zeros(n_bytes, np.uint8)

    def device_memory(self, n_bytes: int) -> int:
        """An address that nobody may read."""
        self.calls.append(("device_memory", n_bytes))
        start, self._next = self._next, self._next + -(-n_bytes // 256) * 256
        return start

    def prepare(self, layouts: Sequence[RowLayout], n_tokens: int, top_k: int) -> None:
        self.calls.append(("prepare", n_tokens * top_k))

    def upload(self, values: np.ndarray) -> np.ndarray:
        return values

    def adopt(self, name: str, value: Any) -> np.ndarray:
        return on_host(name, value, self.name)

    def download(self, values: np.ndarray) -> np.ndarray:
        self.calls.append(("download", values.shape))
        return values.copy()

    def host(self, *values: Any) -> list[np.ndarray]:
        self.calls.append(("host", len(values)))
        return [np.asarray(value) for value in values]

    def read(self, address: int, n_bytes: int) -> np.ndarray:
        self.calls.append(("read", address))
        return np.zeros(n_bytes, np.uint8)

    def copy(self, copies: Sequence[Copy], after: Any = None) -> int:
        self.calls.append(("copy", tuple(copies)))
        return len(self.calls)

    def landed(self, ticket: int) -> bool:
        return True

    def begin(self, layer: int, x: Any, top_k: int) -> tuple[np.ndarray, np.ndarray]:
        self.calls.append(("begin", layer))
        return np.asarray(x, np.float32), np.zeros((len(x) * top_k, np.shape(x)[1]), np.float32)

    def hot(self, tick: Any, work: Rows, after: Sequence[Any] = ()) -> int:
        self.calls.append(("hot", tuple(work.rows.tolist())))
        return len(self.calls)

    def inputs(self, tick: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        return tick

    def settle(self, tick: Any) -> None:
        self.calls.append(("settle", None))

    def hot_spans(self, tick: Any) -> list[tuple[float, float]]:
        return []

    def late_spans(self, tick: Any) -> list[tuple[float, float]]:
        return []

    def copy_spans(self) -> list[tuple[float, float, int]]:
        return []

    def read_rate(self, most_bytes: int) -> None:
        return None

    def conditions(self) -> dict[str, float]:
        return {}

    def merge(self, tick: tuple[np.ndarray, np.ndarray], chains: np.ndarray, weights: Any, jobs: int = 0) -> np.ndarray:
        self.calls.append(("merge", chains.shape))
        return np.zeros_like(tick[0])

    def norm(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x

    def queue(self) -> AbstractContextManager[None]:
        return nullcontext()

    def spin(self, microseconds: float) -> None:
        self.calls.append(("spin", microseconds))

    def synchronize(self) -> None:
        self.calls.append(("synchronize", None))

    def drain(self) -> None:
        self.calls.append(("drain", None))

    def close(self) -> None:
        """Nothing is open."""


BACKEND = NullBackend
