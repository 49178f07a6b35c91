"""Real weights: what a file or folder must answer to fill a host store, and the scan of `weights_<format>.py`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Protocol

from .cold import RowLayout
from .errors import BadExecutor
from .store import HostStore


class Weights(Protocol):
    """The experts of one model: a layout for each MoE layer, in order, and the rows."""

    layouts: list[RowLayout]
    n_experts: int

    def fill(self, store: HostStore) -> HostStore:
        """Copies every row into a store of these layouts."""
        ...


def open_weights(path: str | Path) -> Weights:
    """The weights at a path, in whatever format of ours reads it. Raises BadExecutor."""
    where, known = Path(path), []
    if not where.exists():
        raise BadExecutor(f"{path}: no such file or folder")
    for file in sorted(Path(__file__).parent.glob("weights_*.py")):
        module = import_module(f".{file.stem}", __package__)
        if module.reads(where):
            return module.WEIGHTS(where)
        known.append(module.KIND)
    raise BadExecutor(f"{path}: neither {' nor '.join(known)}")
