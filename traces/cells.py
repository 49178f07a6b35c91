"""Captures that give one record per token and layer, put together into whole rows, checked before allocation."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .errors import BadTrace
from .importing import by_weight, short, warn
from .meta import MAX_EXPERTS, check_whole
from .passes import CELLS


class Cells:
    """The records of one file: `add` each, then `grid` has them as arrays. `unit` is what a record is: a line, a row.

    `n_experts` bounds the ids where it is known; `top_k`, where it is not known, is that of the first record.
    """

    def __init__(self, path: Path, unit: str, n_experts: int | None, top_k: int | None) -> None:
        for name, value in (("n_experts", n_experts), ("top_k", top_k)):
            if value is not None:
                check_whole(str(path), name, value, 1, MAX_EXPERTS)
        self.path, self.unit = path, unit
        self.n_experts, self.top_k = n_experts, top_k
        self.count, self._weightless, self._reranked = 0, 0, False
        self._clear()

    def _clear(self) -> None:
        self._token, self._layer, self._ids, self._weights = array("q"), array("q"), array("q"), array("d")
        self._at = array("q")

    def full(self) -> bool:
        """Whether so many records are held that `grid` should be called where the tokens so far are whole."""
        return len(self._at) >= CELLS

    def add(self, at: int, token: int, layer: int, ids: Any, weights: Any) -> None:
        """The record of number `at`: the row it belongs to, the model's layer number, k ids, and k weights or none."""
        where = f"{self.path} {self.unit} {at}"
        if type(ids) is not list or not ids or any(type(e) is not int for e in ids):
            raise BadTrace(f"{where}: experts {short(ids)}; they must be a list of whole numbers")
        self.top_k = self.top_k or len(ids)
        if len(ids) != self.top_k:
            raise BadTrace(f"{where}: {len(ids)} experts {short(ids)}, but top_k={self.top_k}")
        limit = self.n_experts or MAX_EXPERTS
        if min(ids) < 0 or max(ids) >= limit:
            wrong = next(e for e in ids if not 0 <= e < limit)
            raise BadTrace(f"{where}: expert {short(wrong)}, but n_experts={limit}: ids lie in 0 to {limit - 1}")
        if len(set(ids)) < len(ids):
            raise BadTrace(f"{where}: an expert twice in one top-{len(ids)} {short(ids)}; the experts of a row differ")
        if weights:
            if type(weights) is not list or len(weights) != len(ids):
                raise BadTrace(f"{where}: weights {short(weights)}, but {len(ids)} experts; each has one, or none has")
            if any(type(w) not in (int, float) or not -1e9 < w < 1e9 for w in weights):
                raise BadTrace(f"{where}: weights {short(weights)}; they must be finite numbers")
            self._weights.extend(weights)
        else:
            self._weightless += 1
        self.count += 1
        self._ids.extend(ids)
        self._token.append(token)
        self._layer.append(layer)
        self._at.append(at)

    def grid(self, name: Callable[[int], str], pruned: np.ndarray) -> tuple[np.ndarray, np.ndarray | None, list[int]]:
        """(experts `[tokens, layers, k]`, -1 where absent; weights likewise or None; the model's layer numbers).

        Every token has every layer once; those marked in `pruned [tokens]` may lack the last one. `name` is what a
        message calls a token. The records are let go, and what is added then is about other tokens, again from 0.
        """
        where = str(self.path)
        token, layer = np.frombuffer(self._token, np.int64), np.frombuffer(self._layer, np.int64)
        layers, layer = np.unique(layer, return_inverse=True)
        n, width = len(pruned), len(layers)
        cell = token * width + layer
        order = np.argsort(cell, kind="stable")
        again = np.flatnonzero(cell[order[1:]] == cell[order[:-1]])
        if again.size:
            at = order[again[0] + 1]
            raise BadTrace(
                f"{self.path} {self.unit} {self._at[at]}: {name(int(token[at]))} at layer {layers[layer[at]]} "
                "again; are these two captures in one file, or a warm-up that was recorded too? import them one by one"
            )
        have = np.bincount(token, minlength=n)
        last = np.bincount(token[layer == width - 1], minlength=n)
        lacking = np.flatnonzero(have + (1 - last) * pruned != width)
        if lacking.size:
            t = int(lacking[0])
            gone = np.setdiff1d(np.arange(width), layer[token == t])[0]
            raise BadTrace(
                f"{where}: {name(t)} has no layer {layers[gone]}; every token passes every layer (truncated?)"
            )
        k = self.top_k or 1
        experts = np.full((n * width, k), -1, np.int32)
        experts[cell] = np.frombuffer(self._ids, np.int64).reshape(-1, k)
        experts, weights = experts.reshape(n, width, k), None
        if not self._weightless:
            weights = np.zeros((n * width, k))
            weights[cell] = np.frombuffer(self._weights, np.float64).reshape(-1, k)
            experts, weights, changed = by_weight(experts, weights.reshape(n, width, k))
            if changed and not self._reranked:
                warn(where, "top-k was not in order of weight; ranked by weight")
                self._reranked = True
        self._clear()
        return experts, weights, layers.tolist()

    def end(self) -> None:
        """Warns if weights were left out since some records have none."""
        if 0 < self._weightless < self.count:
            warn(
                str(self.path),
                f"{self._weightless} of {self.count} records have no weights; all weights are left out",
            )
