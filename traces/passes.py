"""What engines write as they run, one token's choice at one layer after the other, put together into a trace."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from .errors import BadTrace
from .importing import by_weight, short, warn
from .meta import MAX_EXPERTS, MAX_LAYERS
from .pieces import Pieces
from .reading import lines
from .trace import Trace

TOKENS = 2**31  # labels of tokens lie below
LONGEST = 1 << 24  # bytes of a line
CELLS = 1 << 16  # about so many are put together at a time


def one_path(paths: Sequence[Path], what: str) -> Path:
    """The only path, or BadTrace: `what` is one file a capture."""
    if len(paths) > 1:
        raise BadTrace(f"{paths[1]}: {what} is one file; import {paths[0]} and this one by themselves")
    return paths[0]


def whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(number from 1, line) of each line that is not blank. An engine ends its lines, so one without end is cut off."""
    with path.open("rb") as file:
        for at, line in enumerate(lines(file, LONGEST), 1):
            if not line.endswith(b"\n"):
                raise BadTrace(f"{path} line {at}: {short_bytes(line)} has no end of line; truncated?")
            if line.strip():
                yield at, line.strip()


def short_bytes(line: bytes) -> str:
    return short(line[:80].decode("utf-8", "replace"))


class Passes:
    """The cells of one file in the order in which the engine computed them: (token, layer) -> k ids.

    A *forward pass*, which becomes a step, lasts as long as (layer, token) rises: layer by layer with all tokens, or a
    token alone. `token` tells the tokens of a pass apart: a row of the layer's call (`by_row`; the last layer of a
    prompt may then hold the last token alone), or a name that all layers share. A pass in which a request has one token
    is decode for it, with more it is prefill, unless `decode` says so itself. A prefill after decode opens a request,
    and so does `opens`, and with `restarts` a pass that begins at a lower token than the one before, unless `request`
    names the request of each token.

    Passes are put together and let go as they end; with `whole` all cells stay until `trace`, for whoever looks back.
    Ids are below `n_experts`, which is guessed if it is not given.
    """

    def __init__(
        self,
        path: Path,
        unit: str = "line",
        *,
        by_row: bool,
        restarts: bool = False,
        n_experts: int | None = None,
        top_k: int | None = None,
        whole: bool = False,
    ) -> None:
        self.path, self.unit, self.by_row, self.restarts, self.top_k = path, unit, by_row, restarts, top_k
        self.whole, self.pieces = whole, Pieces(str(path), n_experts)
        self.k = self.padding = self.count = 0  # of a top-k; cells of padding; cells
        self._weighted = self._reranked = False
        self._request, self._decode, self._label = 0, 0, -1  # where the piece before ended
        self._prompts: Counter[int] = Counter()  # request -> tokens of prefill
        self._clear()

    def _clear(self) -> None:
        self.at, self.layer, self.token, self.request, self.ids = (array("q") for _ in range(5))
        self.decode, self.opens, self.weights = array("b"), array("b"), array("d")

    def add(
        self,
        at: int,
        layer: int,
        token: int,
        ids: Sequence[int],
        weights: Sequence[float] = (),
        *,
        decode: int = -1,
        request: int = -1,
        opens: bool = False,
    ) -> None:
        """One cell, from line or byte `at`; -1 is "not known". Ids that are all negative are padding."""
        k = len(ids)
        if self.top_k not in (None, k):
            self.refuse(at, f"{k} experts, but top_k={self.top_k} (told, or the file's head); every token has as many")
        if self.k not in (0, k):
            self.refuse(at, f"{k} experts after {self.k} in the lines before; every token has as many (truncated?)")
        if not k:
            self.refuse(at, "no experts; every token has some")
        if not 0 <= layer < MAX_LAYERS:
            self.refuse(at, f"layer {layer}, but layers are counted from 0 and below {MAX_LAYERS}")
        if not 0 <= token < TOKENS:
            self.refuse(at, f"token {token}, but tokens are counted from 0 and below {TOKENS}")
        if max(ids) < 0:
            self.padding += 1
            return
        if min(ids) < 0:
            self.refuse(at, f"expert {min(ids)} in {short(list(ids))}; a top-k is ids from 0, or padding as a whole")
        if (len(weights) != k and len(weights)) or (self.k and self._weighted != bool(weights)):
            self.refuse(at, f"{len(weights)} weights for {k} experts; every expert has one, in every line or in none")
        if len(self.at) >= CELLS and not self.whole and self._begins(layer, token, decode, opens):
            self._put(last=False)
        self.k, self._weighted, self.count = k, bool(weights), self.count + 1
        self.at.append(at)
        self.layer.append(layer)
        self.token.append(token)
        self.ids.extend(ids)
        self.weights.extend(weights)
        self.decode.append(decode)
        self.request.append(request)
        self.opens.append(opens)

    def refuse(self, at: int, why: str) -> NoReturn:
        raise BadTrace(f"{self.path} {self.unit} {at}: {why}")

    def _begins(self, layer: int, token: int, decode: int, opens: bool) -> bool:
        """Whether a forward pass begins with this cell, as `_tokens` has it."""
        rises = layer > self.layer[-1] or (layer == self.layer[-1] and token > self.token[-1])
        return not rises or opens or decode != self.decode[-1]

    def trace(self, *, row_bytes: int | None = None, labels: Sequence[str] | None = None, **meta: Any) -> Trace:
        """The trace. `labels` name the requests that `request` counts."""
        where = str(self.path)
        if not self.at:
            raise BadTrace(
                f"{where}: no routing in it" + (f", only {self.padding} rows of padding" * bool(self.padding))
            )
        if self.padding:
            warn(where, f"{self.padding} rows of padding (ids of -1) were left out")
        self._put(last=True)
        names = labels or [None] * (self._request + 1)
        return self.pieces.trace(
            row_bytes=row_bytes,
            name=self.path.stem,
            requests=tuple(
                {"id": i, "label": label, "prompt_tokens": self._prompts[i] or None} for i, label in enumerate(names)
            ),
            **meta,
        )

    def _put(self, *, last: bool) -> None:
        """The cells so far, whole passes, become a piece."""
        ids = np.frombuffer(self.ids, np.int64).reshape(-1, self.k)
        self._hold(ids)
        layers, layer = np.unique(np.frombuffer(self.layer, np.int64), return_inverse=True)
        token, passes = self._tokens(layer, len(layers))
        request, decode = self._requests(token, passes)
        self._complete(token, passes, layer, layers, decode, last=last)
        shape = len(passes), len(layers), self.k
        experts = np.full(shape, -1, np.int32)
        experts[token, layer] = ids
        weights = None
        if self.weights:
            weights = np.zeros(shape)
            weights[token, layer] = np.frombuffer(self.weights).reshape(-1, self.k)
            experts, weights, changed = by_weight(experts, weights)
            if changed and not self._reranked:
                warn(str(self.path), "top-k was not in order of weight; ranked by weight")
                self._reranked = True
        columns = {"request": request, "step": passes + self.pieces.n_steps, "phase": decode}
        self.pieces.add(columns, layers.tolist(), experts, weights)
        which, prompts = np.unique(request[decode == 0], return_counts=True)
        self._prompts.update(dict(zip(which.tolist(), prompts.tolist(), strict=True)))
        self._request, self._decode = max(self._request, int(request.max())), int(decode[-1])
        self._clear()

    def _hold(self, ids: np.ndarray) -> None:
        """Ids below n_experts, and none twice in a top-k, or BadTrace with the line."""
        n_experts = self.pieces.n_experts
        high = ids.max(axis=1) >= (n_experts or MAX_EXPERTS)
        if high.any():
            cell = int(np.argmax(high))
            self.refuse(self.at[cell], f"expert {ids[cell].max()}, but n_experts={n_experts or MAX_EXPERTS}")
        rows = np.sort(ids, axis=1)
        again = (rows[:, 1:] == rows[:, :-1]).any(axis=1)
        if again.any():
            cell = int(np.argmax(again))
            twice = rows[cell, 1:][rows[cell, 1:] == rows[cell, :-1]][0]
            self.refuse(
                self.at[cell],
                f"expert {twice} twice in one top-{self.k} {short(ids[cell].tolist())}; the experts of a token differ "
                "(a layer of zeros is dense, or was never captured: leave it out)",
            )

    def _tokens(self, layer: np.ndarray, n_layers: int) -> tuple[np.ndarray, np.ndarray]:
        """(token of each cell, forward pass of each token), both counted from 0 in the order of the file."""
        label, opens = np.frombuffer(self.token, np.int64), np.frombuffer(self.opens, np.int8) > 0
        decode = np.frombuffer(self.decode, np.int8)
        rises = (layer[1:] > layer[:-1]) | ((layer[1:] == layer[:-1]) & (label[1:] > label[:-1]))
        begins = np.append(True, ~rises | opens[1:] | (decode[1:] != decode[:-1]))
        passes = np.cumsum(begins) - 1
        if self.restarts:
            firsts = np.flatnonzero(begins)
            before = np.append(self._label, label[firsts[:-1]])
            for cell in firsts[label[firsts] < before].tolist():
                self.opens[cell] = 1
            self._label = int(label[firsts[-1]])
        if self.by_row:
            label = self._aligned(label, passes, layer, n_layers)
        _, first, inverse = np.unique(passes * TOKENS + label, return_index=True, return_inverse=True)
        order = np.argsort(first)
        number = np.empty_like(order)
        number[order] = np.arange(len(order))
        return number[inverse], passes[first[order]]

    def _aligned(self, label: np.ndarray, passes: np.ndarray, layer: np.ndarray, n_layers: int) -> np.ndarray:
        """The one row of a last layer is the last token of its pass, whose logits alone were wanted."""
        last = layer == n_layers - 1
        most = np.zeros(passes[-1] + 1, np.int64)
        np.maximum.at(most, passes, label + 1)
        rows = np.bincount(passes[last], minlength=len(most))
        odd = np.flatnonzero((rows > 1) & (rows < most))
        if odd.size:
            cell = int(np.flatnonzero(last & (passes == odd[0]))[-1])
            self.refuse(
                self.at[cell],
                f"the last layer has {rows[odd[0]]} of the {most[odd[0]]} tokens of its forward pass; which ones is "
                "not recorded (truncated, or a batch of several prompts: capture them one by one)",
            )
        return np.where(last & (rows == 1)[passes], most[passes] - 1, label)

    def _requests(self, token: np.ndarray, passes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(request, decode) of each token."""
        first = np.zeros(len(passes), np.int64)
        first[token[::-1]] = np.arange(len(token))[::-1]  # the cell that a token is first seen in
        request = np.frombuffer(self.request, np.int64)[first]
        decode = np.frombuffer(self.decode, np.int8)[first]
        if (decode < 0).any():
            key = passes * TOKENS + request + 1
            _, inverse, tokens = np.unique(key, return_inverse=True, return_counts=True)
            decode = np.where(decode < 0, tokens[inverse] == 1, decode)
        if (request < 0).any():
            opens = np.frombuffer(self.opens, np.int8)[first] > 0
            opens[0] &= self.pieces.n_steps > 0
            turns = (decode == 0) & (np.append(self._decode, decode[:-1]) == 1)
            request = self._request + np.cumsum(opens | turns)
        return request, decode

    def _complete(
        self,
        token: np.ndarray,
        passes: np.ndarray,
        layer: np.ndarray,
        layers: np.ndarray,
        decode: np.ndarray,
        *,
        last: bool,
    ) -> None:
        """Every token has every layer; a prompt may lack the last one, but not at the end of the file.

        Checked by counting, so that a file cannot make us allocate more than it holds.
        """
        have, deepest = np.bincount(token, minlength=len(passes)), layer == len(layers) - 1
        has_last = np.bincount(token[deepest], minlength=len(passes)) > 0
        pruned = (decode == 0) & ~has_last & (len(layers) > 1)
        if last and not has_last[-1]:
            pruned &= passes != passes[-1]
        gone = np.flatnonzero(have + pruned != len(layers))
        if gone.size:
            cells = np.flatnonzero(token == gone[0])
            lacks = np.setdiff1d(np.arange(len(layers)), layer[cells])
            self.refuse(
                self.at[int(cells[-1])],
                f"the forward pass of this token has no layer {layers[lacks[0]]}; every token passes every layer "
                "(truncated, or lines lost?)",
            )
