"""The host store: the rows of all experts in host memory, each contiguous, `[layer][expert][stride]`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from slotwise.policies.room import available_bytes

from .backend import Backend
from .cold import ColdChain, RowLayout
from .dtypes import encode
from .errors import LESS_HOST, BadExecutor, ExecutorWarning

ALIGNMENT = 64
GIB = 1 << 30
_BANK = 2  # matrices of random weights per projection that rows of block dtypes are cut from
_FILLED = ("f32", "f16", "bf16")  # what the native fill writes


class HostStore:
    """Rows of `layouts[layer]`. `alias_layers` N stores N layers only: layer l then holds the rows of l % N.

    `stride` is a row's bytes rounded up to 64, so that every row can be read with wide loads. The memory is of the kind
    that the backend was made with. Raises BadExecutor if it is more than can be had now; `force` warns instead, for
    machines whose memory grows when it is used.
    """

    def __init__(
        self,
        layouts: Sequence[RowLayout],
        n_experts: int,
        backend: Backend,
        *,
        alias_layers: int | None = None,
        force: bool = False,
    ):
        n_stored = len(layouts) if alias_layers is None else min(alias_layers, len(layouts))
        if n_stored < 1:
            raise BadExecutor(f"alias_layers={alias_layers}: at least 1")
        for layer, layout in enumerate(layouts):
            if layout != layouts[layer % n_stored]:
                raise BadExecutor(
                    f"layer {layer} cannot be an alias of layer {layer % n_stored}: their rows differ in shape or dtype"
                )
        self.layouts, self.n_experts = list(layouts), n_experts
        self.strides = [-(-layout.row_bytes // ALIGNMENT) * ALIGNMENT for layout in layouts]
        self._check(n_stored, force)
        self.memory = [backend.host_memory(n_experts * self.strides[layer]) for layer in range(n_stored)]
        starts = [self.memory[layer % n_stored].ctypes.data for layer in range(len(layouts))]
        self.addresses = [
            [start + e * stride for e in range(n_experts)] for start, stride in zip(starts, self.strides, strict=True)
        ]

    def _check(self, n_stored: int, force: bool) -> None:
        needed, there = sum(self.n_experts * stride for stride in self.strides[:n_stored]), available_bytes()
        if needed <= there:
            return
        short = (
            f"rows of {n_stored} layers x {self.n_experts} experts take {needed / GIB:,.1f} GiB of host memory, but "
            f"{there / GIB:,.1f} GiB can be had now"
        )
        if not force:
            raise BadExecutor(f"{short}; {LESS_HOST}; --force of `run` tries all the same")
        warnings.warn(short, ExecutorWarning, stacklevel=3)

    @property
    def n_layers(self) -> int:
        return len(self.layouts)

    @property
    def row_bytes(self) -> list[int]:
        """Bytes of one row, per layer."""
        return [layout.row_bytes for layout in self.layouts]

    def row(self, layer: int, expert: int) -> np.ndarray:
        """uint8 [row_bytes], a view."""
        start = expert * self.strides[layer]
        return self.memory[layer % len(self.memory)][start : start + self.layouts[layer].row_bytes]

    def fill(self, seed: int, chain: ColdChain) -> HostStore:
        """Random normal weights of a seed, with a deviation that keeps activations near 1. The same bytes every time.

        Block dtypes get rows cut from two encoded matrices per projection, shifted by whole output rows: every row
        differs, and no time goes into quantising what means nothing.
        """
        for stored, memory in enumerate(self.memory):
            layout = self.layouts[stored]
            sigma = layout.hidden**-0.5
            if len(set(layout.dtypes)) == 1 and layout.dtypes[0] in _FILLED:
                whole = memory[: len(memory) // 4 * 4]
                chain.fill_normal(whole, layout.dtypes[0], seed + stored, sigma)
            else:
                self._fill_blocks(stored, np.random.default_rng((seed, stored)), sigma)
            if layout.biases is not False:
                self._fill_biases(stored, np.random.default_rng((seed, stored, 1)))
        return self

    def _fill_blocks(self, stored: int, random: np.random.Generator, sigma: float) -> None:
        layout, rows = self.layouts[stored], self.memory[stored].reshape(self.n_experts, -1)
        shapes = [(layout.inner, layout.hidden), (layout.inner, layout.hidden), (layout.hidden, layout.inner)]
        for projection, (name, start, (n_out, n_in)) in enumerate(
            zip(layout.dtypes, layout.starts, shapes, strict=True)
        ):
            banks = [encode(name, random.normal(0, sigma, (n_out, n_in)).astype(np.float32)) for _ in range(_BANK)]
            n_bytes = banks[0].size
            for expert in range(self.n_experts):
                shift = (expert * 7 + projection) % n_out
                rows[expert, start : start + n_bytes] = np.roll(banks[expert % _BANK], shift, axis=0).ravel()

    def _fill_biases(self, stored: int, random: np.random.Generator) -> None:
        layout, rows = self.layouts[stored], self.memory[stored].reshape(self.n_experts, -1)
        for start, length in zip(layout.bias_starts, (layout.inner, layout.inner, layout.hidden), strict=True):
            if start >= 0:
                values = random.normal(0, 0.02, (self.n_experts, length)).astype("<f4")
                rows[:, start : start + 4 * length] = values.view(np.uint8)
