"""Rows from a GGUF file: the stacked expert tensors of llama.cpp's models, copied as they are stored."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from .cold import RowLayout
from .dtypes import DTYPES
from .errors import BadExecutor
from .store import HostStore

KIND = "a GGUF file"
_NAMES = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down)_exps\.(weight|bias)")
_PARTS = {"gate": 0, "up": 1, "down": 2}
_BIASES = ("F32", "F16", "BF16")  # a row has them in float32
_CLAMPED = ("gpt-oss", "gptoss")  # architectures whose activation is not silu(gate) * up


def reads(path: Path) -> bool:
    """Whether the path is a GGUF file."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


class GgufWeights:
    """See `Weights`. Needs the package gguf, which maps the file. Raises BadExecutor."""

    def __init__(self, path: Path):
        try:
            import gguf
        except ImportError as missing:
            raise BadExecutor(f"{path}: reading GGUF needs the package gguf ({missing}): pip install gguf") from missing
        try:
            reader = gguf.GGUFReader(path)
        except (ValueError, IndexError, KeyError, OverflowError) as error:
            raise BadExecutor(f"{path}: damaged or truncated GGUF ({error})") from None
        self.path, self._dequantize = path, gguf.dequantize
        field = reader.fields.get("general.architecture")
        self.architecture = str(field.contents()) if field else ""
        self._parts: dict[int, dict[tuple[int, str], Any]] = {}
        for tensor in reader.tensors:
            found = _NAMES.fullmatch(tensor.name)
            if found:
                self._parts.setdefault(int(found[1]), {})[_PARTS[found[2]], found[3]] = tensor
        if not self._parts:
            raise BadExecutor(
                f"{path}: no tensor named like blk.0.ffn_gate_exps.weight; is it a Mixture-of-Experts model?"
            )
        self.model_layers = sorted(self._parts)
        self.n_experts = int(self._tensor(self.model_layers[0], 0).shape[2])
        self.layouts = [self._layout(layer) for layer in self.model_layers]

    def _tensor(self, layer: int, part: int) -> Any:
        tensor = self._parts[layer].get((part, "weight"))
        if tensor is None:
            raise BadExecutor(f"{self.path}: layer {layer} has no ffn_{('gate', 'up', 'down')[part]}_exps.weight")
        if len(tensor.shape) != 3:
            raise BadExecutor(
                f"{self.path}: {tensor.name} has the shape {_shape(tensor)}; needed are [in, out, experts]"
            )
        return tensor

    def _check_biases(self, layer: int, lengths: tuple[int, int, int]) -> None:
        for part, length in enumerate(lengths):
            tensor, needed = self._parts[layer][part, "bias"], [length, self.n_experts]
            said = tensor.tensor_type.name
            if said not in _BIASES:
                raise BadExecutor(f"{self.path}: {tensor.name} is {said}; biases are read from {', '.join(_BIASES)}")
            if _shape(tensor) != needed:
                raise BadExecutor(f"{self.path}: {tensor.name} has the shape {_shape(tensor)}; needed is {needed}")

    def _layout(self, layer: int) -> RowLayout:
        tensors = [self._tensor(layer, part) for part in range(3)]
        names = {name.upper(): name for name in DTYPES}
        for tensor in tensors:
            said = tensor.tensor_type.name
            if said not in names:
                raise BadExecutor(f"{self.path}: {tensor.name} is {said}; computed as stored are {', '.join(DTYPES)}")
        shapes = [_shape(tensor) for tensor in tensors]
        hidden, inner, count = shapes[0]
        if shapes != [[hidden, inner, count]] * 2 + [[inner, hidden, count]] or count != self.n_experts:
            raise BadExecutor(
                f"{self.path}: layer {layer}: gate, up and down are {shapes}, of {self.n_experts} experts"
            )
        gate, up, down = (names[tensor.tensor_type.name] for tensor in tensors)
        biases = [(part, "bias") in self._parts[layer] for part in range(3)]
        if any(biases) and not all(biases):
            raise BadExecutor(f"{self.path}: layer {layer}: only some of gate, up and down have biases")
        if all(biases):
            self._check_biases(layer, (inner, inner, hidden))
        activation = "swiglu_clamped" if self.architecture in _CLAMPED else "swiglu"
        return RowLayout(hidden, inner, (gate, up, down), activation, biases=all(biases))

    def fill(self, store: HostStore) -> HostStore:
        """Copies every row into the store, whose layouts are `layouts`; biases as float32."""
        for index in range(len(store.memory)):
            layer, layout = self.model_layers[index], self.layouts[index]
            pieces = [(start, self._tensor(layer, part).data) for part, start in enumerate(layout.starts)]
            if layout.biases:
                for part, start in enumerate(layout.bias_starts):
                    bias = self._parts[layer][part, "bias"]
                    pieces.append((start, self._dequantize(bias.data, bias.tensor_type)))
            for start, data in pieces:
                rows = np.ascontiguousarray(data).view(np.uint8).reshape(self.n_experts, -1)
                for expert in range(self.n_experts):
                    store.row(index, expert)[start : start + rows.shape[1]] = rows[expert]
        return store


def _shape(tensor: Any) -> list[int]:
    """As the file has it, the fastest dimension first."""
    return [int(n) for n in tensor.shape]


WEIGHTS = GgufWeights
