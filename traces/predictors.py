"""Predictors for replay: which experts will a layer want? One file each (`predictor_*.py`), found by scan."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import pkgutil
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from .block import Block
from .check import absent
from .errors import BadTrace
from .trace import Trace


class Predictor:
    """Predicts from what has happened: called with the blocks of a trace in order, it keeps its own history.

    `predict(block)` returns ids `[n_layers, n_rows, width or more]` in the block's dtype, C-contiguous: predictions for
    that layer that are known `horizon` layers before, of which the first `width` count; all ones = none, and so are the
    first `horizon` layers. A predictor with one list per tick lays its entry j at (token j % n, rank j // n) of the
    step's n tokens: read rank by rank, the list comes back.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    needs_predicted: ClassVar[bool] = False  # True: `predict` reads `block.predicted`, so stream blocks with it

    def __init__(self, trace: Trace, width: int, horizon: int) -> None:
        if width < 1 or horizon < 1:
            raise BadTrace(f"predictor {self.name}: width={width}, horizon={horizon}; both must be 1 or more")
        self.trace, self.width, self.horizon = trace, width, horizon
        self.each_request = False  # start anew at each request
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._last_request: int | None = None

    def predict(self, block: Block) -> np.ndarray:
        raise NotImplementedError

    def _nothing(self, block: Block) -> np.ndarray:
        return np.full((*block.experts.shape[:2], self.width), absent(block.experts.dtype), block.experts.dtype)

    def _anew(self, block: Block) -> np.ndarray:
        """Per step of the block: does history start anew here?"""
        before = np.concatenate(
            ([block.request[0] if self._last_request is None else self._last_request], block.request)
        )
        self._last_request = int(block.request[-1])
        return (before[1:] != before[:-1]) & self.each_request


def make_predictor(
    name: str, params: dict[str, Any], trace: Trace, width: int, horizon: int = 1, reset: str = "persistent"
) -> Predictor:
    """The predictor `name` for `trace`; with `reset="request"` its history starts anew at each request."""
    known = _classes()
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        raise BadTrace(
            f"no predictor named {name!r}; known: {', '.join(known)}." + (f" Did you mean {near[0]!r}?" if near else "")
        )
    allowed = _parameters(known[name])
    wrong = [p for p in params if p not in allowed]
    if wrong:
        takes = ", ".join(f"{p}={v}" for p, v in allowed.items()) or "no parameters"
        raise BadTrace(f"predictor {name} has no parameter {wrong[0]!r}; it takes {takes}")
    predictor = known[name](trace, width, horizon, **params)
    predictor.each_request = reset == "request"
    return predictor


def list_predictors() -> list[dict[str, Any]]:
    """What is installed, one row each: name, description, source, parameters."""
    return [
        {
            "name": name,
            "description": (inspect.getdoc(c) or "").split("\n")[0],
            "source": c.source,
            "parameters": _parameters(c),
        }
        for name, c in _classes().items()
    ]


@functools.cache
def _classes() -> dict[str, type[Predictor]]:
    found = sorted(
        m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if m.name.startswith("predictor_")
    )
    modules = [importlib.import_module(f"{__package__}.{name}") for name in found]
    classes = [c for m in modules for c in vars(m).values() if isinstance(c, type) and c.__module__ == m.__name__]
    return {c.name: c for c in classes if issubclass(c, Predictor)}


def _parameters(cls: type[Predictor]) -> dict[str, Any]:
    signature = inspect.signature(cls.__init__)
    return {p.name: p.default for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY}
