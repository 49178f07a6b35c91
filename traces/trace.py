"""Trace: what a router chose, token by token, and how everything else reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .block import Block, Store
from .errors import BadTrace
from .meta import Meta, checked

if TYPE_CHECKING:
    import pandas
    import polars

GROUP_ROWS = 25_000


class Trace:
    """The routing of one run: per token (row) and MoE layer, the chosen experts, best first.

    Open one with `open_trace`, or build one from arrays with `Trace.from_arrays`. Reading is lazy: `blocks` streams
    whole steps, `layer` reads one layer alone. A *step* is a maximal run of rows of one `step` value.
    """

    def __init__(self, store: Store, meta: Meta, name: str) -> None:
        self.store, self.meta, self.name = store, meta, name

    @classmethod
    def from_arrays(cls, experts: np.ndarray, **columns: Any) -> Trace:
        """A trace from `experts [n_tokens, n_layers, top_k]`; every rule is checked here, once.

        `n_experts` is needed. Optional, per token: `request`, `step` (never falling; default: one step a token),
        `position` (default: counted within the request), `phase` (0 prefill, 1 decode; default: decode), `token_id`.
        Optional, `[n_tokens, n_layers, *]`: `weights` and `predicted` (or `{horizon: predicted}`), predictions *for*
        that layer; those for the first `horizon` layers are dropped, since nothing comes before. Absent ids are 255 in
        uint8, 65535 in uint16, negative when signed. Also the fields of `Meta` (`model`, `row_bytes`, ...) and `name`.
        """
        from .memory import build

        return build(experts, **columns)

    @classmethod
    def synthesise(cls, **options: Any) -> Trace:
        """A seeded synthetic trace; see `slotwise.traces.synth.synthesise` for the options."""
        from .synth import synthesise

        return synthesise(**options)

    # -- what it is ---------------------------------------------------------------------------------------------

    @property
    def model(self) -> str:
        return self.meta.model

    @property
    def n_layers(self) -> int:
        return self.meta.n_layers

    @property
    def n_experts(self) -> int:
        return self.meta.n_experts

    @property
    def top_k(self) -> int:
        return self.meta.top_k

    @property
    def row_bytes(self) -> tuple[int, ...] | None:
        """Bytes of one expert, per MoE layer; None if not recorded."""
        return self.meta.row_bytes

    def with_row_bytes(self, row_bytes: Sequence[int]) -> Trace:
        """The same rows, over experts of these bytes per MoE layer: what a replay then counts by. Raises BadTrace."""
        return type(self)(self.store, checked(replace(self.meta, row_bytes=tuple(row_bytes)), self.name), self.name)

    @property
    def token_cycle_bytes(self) -> int | None:
        """T: the bytes of the experts that one token needs, over all layers; None if row sizes are not recorded."""
        return None if self.row_bytes is None else self.top_k * sum(self.row_bytes)

    @property
    def n_tokens(self) -> int:
        return self.store.n_rows

    @property
    def n_steps(self) -> int:
        return int(self._index[1][-1])

    @property
    def n_requests(self) -> int:
        return self._index[2]

    @property
    def dtype(self) -> np.dtype:
        return self.store.dtype

    @property
    def horizons(self) -> tuple[int, ...]:
        """How many layers ahead the recorded predictions look: `()` without predictions, else for example `(1,)`."""
        return tuple(sorted(self.store.widths))

    @property
    def predicted_width(self) -> int:
        """Predictions recorded per token and layer, at the shortest horizon; 0 without."""
        return self.store.widths[self.horizons[0]] if self.horizons else 0

    @property
    def has_weights(self) -> bool:
        return self.store.has_weights

    @cached_property
    def sha256(self) -> str:
        """The identity of the ids, as recorded by whoever wrote the file (`digest` computes it)."""
        return self.meta.sha256 or self.digest()

    def digest(self) -> str:
        """SHA-256 over the SHA-256 digests of the layers' ids `[n_tokens, top_k]`, in layer order."""
        from hashlib import sha256

        whole = sha256()
        for layer in range(self.n_layers):
            whole.update(sha256(self.layer(layer).data).digest())
        return whole.hexdigest()

    @cached_property
    def content_sha256(self) -> str:
        """The identity of all that a replay reads: ids (`sha256`), shape, row sizes, steps and predictions."""
        from hashlib import sha256

        whole = sha256(repr((self.n_layers, self.n_experts, self.top_k, self.row_bytes)).encode())
        for name in ("request", "step", "phase"):
            whole.update(sha256(self.rows(name)[name].data).digest())
        whole.update(self.sha256.encode())
        for horizon in self.horizons:
            whole.update(f"h{horizon}".encode())
            for layer in range(horizon, self.n_layers):
                ids = self.read(f"predicted.h{horizon}", 0, self.n_tokens, range(layer, layer + 1))
                whole.update(sha256(ids.data).digest())
        return whole.hexdigest()

    def __repr__(self) -> str:
        ahead = f", {self.predicted_width} predicted" if self.predicted_width else ""
        return (
            f"<Trace {self.name}: {self.model or 'unnamed model'}, {self.n_tokens:,} tokens x {self.n_layers} layers, "
            f"top {self.top_k} of {self.n_experts}{ahead}>"
        )

    # -- reading ------------------------------------------------------------------------------------------------

    def blocks(
        self, *, predicted: bool = False, horizon: int = 1, weights: bool = False, n_steps: int | None = None
    ) -> Iterator[Block]:
        """Stream the trace as blocks of whole steps, about one row group each.

        One block is in memory at a time, if the caller lets go of one before asking for the next.

        `predicted` and `weights` add those arrays (BadTrace if they are not recorded); `n_steps` stops after so many.
        """
        if predicted and horizon not in self.horizons:
            have = f"horizons {self.horizons}" if self.horizons else "none"
            raise BadTrace(f"{self.store.where}: no predictions at horizon {horizon}; recorded: {have}")
        if weights and not self.has_weights:
            raise BadTrace(f"{self.store.where}: no router weights recorded")
        kind = f"predicted.h{horizon}" if predicted else None
        cuts, firsts, _ = self._index
        for start, stop, first in zip(cuts, cuts[1:], firsts, strict=False):
            left = None if n_steps is None else n_steps - int(first)
            if left is not None and left <= 0:
                return
            yield self._block(int(start), int(stop), int(first), left, kind, weights)

    def _block(
        self, start: int, stop: int, first: int, left: int | None, predicted: str | None, weights: bool
    ) -> Block:
        starts, request, phase = self._steps(start, stop)
        if left is not None and left < len(starts) - 1:
            starts, request, phase = starts[: left + 1], request[:left], phase[:left]
            stop = start + int(starts[-1])
        return Block(
            first_step=first,
            first_row=start,
            starts=starts,
            request=request,
            phase=phase,
            experts=self.read("experts", start, stop),
            predicted=self.read(predicted, start, stop) if predicted else None,
            weights=self.read("weights", start, stop) if weights else None,
        )

    def _steps(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(starts, request, phase) of a block, all of its rows' columns checked."""
        names = ("request", "step", "position", "phase") + (("token_id",) if self.store.has_token_id else ())
        rows = self.store.rows(start, stop, names)
        starts = np.concatenate(([0], step_changes(rows["step"]), [stop - start])).astype(np.int64, copy=False)
        low, high = (f.reduceat(rows["request"], starts[:-1]) for f in (np.minimum, np.maximum))
        request = np.where(low == high, low, np.int32(-1))
        return starts, request, np.minimum.reduceat(rows["phase"], starts[:-1])

    def layer(self, layer: int) -> np.ndarray:
        """The ids of one MoE layer, `[n_tokens, top_k]`; no other layer is read."""
        if not 0 <= layer < self.n_layers:
            raise IndexError(f"{self.store.where}: no layer {layer}; it has layers 0 to {self.n_layers - 1}")
        return self.read("experts", 0, self.n_tokens, range(layer, layer + 1))[0]

    def rows(self, *names: str) -> dict[str, np.ndarray]:
        """Whole columns `[n_tokens]` by name: `request`, `step`, `position`, `phase`, `token_id` (-1 = unknown)."""
        return self.store.rows(0, self.n_tokens, names)

    def read(self, kind: str, start: int, stop: int, layers: range | None = None) -> np.ndarray:
        """Rows start to stop, `[layers, rows, width]`; `kind` is "experts", "weights" or "predicted.h<horizon>"."""
        return self.store.read(kind, range(self.n_layers) if layers is None else layers, start, stop)

    @cached_property
    def _index(self) -> tuple[np.ndarray, np.ndarray, int]:
        """Row offsets where blocks begin (and the end), the step index there, and the number of requests.

        A block begins at the first step boundary at or after a row group's start, so a file that cuts a step between
        groups is read correctly too.
        """
        cuts, firsts, requests = [0], [0], set()
        n_steps, last = 0, None
        for start, stop in zip(self.store.groups, self.store.groups[1:], strict=False):
            rows = self.store.rows(int(start), int(stop), ("request", "step"))
            step = rows["step"]
            changes = step_changes(step)
            if last is not None and step[0] < last:
                raise BadTrace(f"{self.store.where}: row {start}: step {step[0]} after step {last}; steps never fall")
            opens = last is None or step[0] != last
            if start > 0 and (opens or changes.size):
                cuts.append(int(start) + (0 if opens else int(changes[0])))
                firsts.append(n_steps)
            n_steps += len(changes) + opens
            last = step[-1]
            requests.update(np.unique(rows["request"]).tolist())
        return np.array([*cuts, self.n_tokens]), np.array([*firsts, n_steps]), len(requests)

    # -- writing and other views --------------------------------------------------------------------------------

    def save(
        self, path: str | Path, *, group_rows: int = GROUP_ROWS, advance: Callable[[int], None] | None = None
    ) -> None:
        """Write Parquet, `slotwise.trace` version 1, in step-aligned row groups of about `group_rows` rows.

        The file is written beside and renamed. `advance(n)` is called after every n rows, for a progress bar.
        """
        from .parquet_write import write

        write([self], Path(path), group_rows, advance or (lambda rows: None))

    def describe(self, seed: int = 0) -> dict[str, Any]:
        """Shape, provenance, skew, locality, working set and quality of the predictions, as plain JSON types."""
        from .stats import describe

        return describe(self, seed)

    @staticmethod
    def profile(traces: Sequence[Trace], path: str | Path, phase: str = "decode") -> dict[str, Any]:
        """Count how often each expert is demanded, merged over traces, and write the counts to a JSON file."""
        from .profile import write_profile

        return write_profile(traces, path, phase)

    def to_polars(self) -> polars.DataFrame:
        """The tidy view: one line per (token, layer, rank), with its expert, weight and the token's columns."""
        from .tidy import to_polars

        return to_polars(self)

    def to_pandas(self) -> pandas.DataFrame:
        """`to_polars`, for pandas."""
        return self.to_polars().to_pandas()


def step_changes(step: np.ndarray) -> np.ndarray:
    """Rows at which a new step begins, the first row left out."""
    return np.flatnonzero(step[1:] != step[:-1]) + 1
