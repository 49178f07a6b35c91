"""Rows from a Hugging Face checkpoint: expert matrices of safetensors files, copied as they are stored."""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from .cold import RowLayout
from .errors import BadExecutor
from .store import HostStore

KIND = "a folder with *.safetensors"
_DTYPES = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
_NAMES = re.compile(
    r"(?:model\.|model\.language_model\.|language_model\.|language_model\.model\.|transformer\.)?"
    r"layers\.(?P<layer>[0-9]+)\.(?:mlp|block_sparse_moe)\.experts\.(?P<expert>[0-9]+)\."
    r"(?P<part>gate_proj|up_proj|down_proj|w1|w3|w2)\.weight"
)  # behind no other prefix: mtp.layers.0 and the layers of a vision tower are not the model's layer 0
_MOST_DIGITS = 6  # of a layer or an expert
_PARTS = {"gate_proj": 0, "w1": 0, "up_proj": 1, "w3": 1, "down_proj": 2, "w2": 2}  # w1 and so on: Mixtral's names
_MOST_HEADER = 100 << 20  # the format's own limit
_ACTIVATIONS = {"silu": "swiglu", "swish": "swiglu", "gelu": "geglu", "gelu_pytorch_tanh": "geglu"}


def reads(path: Path) -> bool:
    """Whether the path is a folder that such files may lie in."""
    return path.is_dir()


@dataclass(frozen=True)
class Tensor:
    """Where a matrix lies: its name, file, dtype as stored, shape [out, in], and its bytes in the file."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class Checkpoint:
    """The experts of a model: `layouts` of its MoE layers in order, `n_experts`, and `fill`, which copies the rows.

    folder: with config.json and *.safetensors; every file is mapped, none is read whole. Raises BadExecutor for what is
    no such folder, for tensors that are missing, there twice or differ in shape, and for dtypes not computed as stored.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        files = sorted(self.folder.glob("*.safetensors"))
        if not files:
            raise BadExecutor(f"{folder}: no *.safetensors in it; give the folder of a Hugging Face checkpoint")
        self._tensors: dict[tuple[int, int, int], Tensor] = {}
        for path in files:
            for place, tensor in _header(path):
                other = self._tensors.setdefault(place, tensor)
                if other is not tensor:
                    raise BadExecutor(
                        f"{path}: {tensor.name} and {other.name} of {other.path.name} are the same matrix; keep one"
                    )
        if not self._tensors:
            raise BadExecutor(f"{folder}: no tensor named like layers.N.mlp.experts.N.gate_proj.weight")
        self.model_layers = sorted({layer for layer, _, _ in self._tensors})
        self.n_experts = 1 + max(expert for _, expert, _ in self._tensors)
        self.activation = self._activation()
        self.layouts = [self._layout(layer) for layer in self.model_layers]

    def _activation(self) -> str:
        path = self.folder / "config.json"
        try:
            config = json.loads(path.read_text(encoding="utf-8-sig"))
        except (OSError, ValueError, RecursionError) as error:
            raise BadExecutor(f"{path}: not a readable config of a model ({error})") from None
        said = config.get("hidden_act") if isinstance(config, dict) else None
        if not isinstance(said, str) or said not in _ACTIVATIONS:
            raise BadExecutor(
                f"{path}: hidden_act={reprlib.repr(said)}; the executor computes {', '.join(_ACTIVATIONS)}"
            )
        return _ACTIVATIONS[said]

    def _layout(self, layer: int) -> RowLayout:
        first = [self._tensor(layer, 0, part) for part in range(3)]
        for expert in range(self.n_experts):
            for part, model in enumerate(first):
                tensor = self._tensor(layer, expert, part)
                if (tensor.dtype, tensor.shape) != (model.dtype, model.shape):
                    raise BadExecutor(
                        f"{tensor.path}: layer {layer}, expert {expert} is {tensor.dtype} {list(tensor.shape)}, "
                        f"expert 0 {model.dtype} {list(model.shape)}; the rows of a layer are alike"
                    )
        inner, hidden = first[0].shape
        if first[1].shape != (inner, hidden) or first[2].shape != (hidden, inner):
            raise BadExecutor(f"{first[0].path}: layer {layer}: gate, up and down are {[list(t.shape) for t in first]}")
        gate, up, down = (tensor.dtype for tensor in first)
        return RowLayout(hidden, inner, (gate, up, down), self.activation)

    def _tensor(self, layer: int, expert: int, part: int) -> Tensor:
        if (layer, expert, part) not in self._tensors:
            name = ("gate", "up", "down")[part]
            raise BadExecutor(
                f"{self.folder}: layer {layer}, expert {expert}: no {name} projection; is a file missing?"
            )
        return self._tensors[layer, expert, part]

    def fill(self, store: HostStore) -> HostStore:
        """Copies every row into the store, whose layouts are `layouts`."""
        mapped = {t.path: np.memmap(t.path, np.uint8, "r") for t in self._tensors.values()}
        for index in range(len(store.memory)):
            layer = self.model_layers[index]
            for expert in range(self.n_experts):
                row, at = store.row(index, expert), 0
                for part in range(3):
                    tensor = self._tensor(layer, expert, part)
                    length = tensor.stop - tensor.start
                    row[at : at + length] = mapped[tensor.path][tensor.start : tensor.stop]
                    at += length
        return store


def _header(path: Path) -> list[tuple[tuple[int, int, int], Tensor]]:
    """The matrices of experts that a file says it has, by layer, expert and part, held against its size."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            raw = file.read(length) if 2 <= length <= min(size - 8, _MOST_HEADER) else None
    except OSError as error:
        raise BadExecutor(f"{path}: not a readable file ({error.strerror})") from None
    if raw is None:
        raise BadExecutor(f"{path}: its header would take {length} of {size} bytes: damaged, or not safetensors")
    try:
        entries = json.loads(raw, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise BadExecutor(f"{path}: its header is not JSON ({error}): damaged, or not safetensors") from None
    if not isinstance(entries, dict):
        raise BadExecutor(f"{path}: its header is not a JSON object: damaged, or not safetensors")
    matches = [(found, entry) for name, entry in entries.items() if (found := _NAMES.fullmatch(name))]
    return [(_place(path, found), _tensor(path, found[0], entry, 8 + length, size)) for found, entry in matches]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs. Raises ValueError if a name is in it twice, of which JSON would keep the last."""
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise ValueError(f"{twice[:200]!r} is in it twice")
    return made


def _place(path: Path, found: re.Match[str]) -> tuple[int, int, int]:
    if max(len(found["layer"]), len(found["expert"])) > _MOST_DIGITS:
        raise BadExecutor(f"{path}: {found[0][:80]}...: a layer or expert of over {_MOST_DIGITS} digits: damaged")
    return int(found["layer"]), int(found["expert"]), _PARTS[found["part"]]


def _tensor(path: Path, name: str, entry: Any, begin: int, size: int) -> Tensor:
    """The matrix of a header's entry; `begin` is where the data begins in the file of `size` bytes."""
    fields = entry if isinstance(entry, dict) else {}
    said, shape, offsets = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(said, str) or said not in _DTYPES:
        raise BadExecutor(f"{path}: {name} is {reprlib.repr(said)}; computed as stored are {', '.join(_DTYPES)}")
    if _two_numbers(shape) and _two_numbers(offsets):
        start, stop = offsets
        n_bytes = math.prod(shape) * (4 if said == "F32" else 2)
        if min(shape) > 0 and stop - start == n_bytes and 0 <= start <= stop <= size - begin:
            return Tensor(name, path, _DTYPES[said], tuple(shape), begin + start, begin + stop)
    raise BadExecutor(
        f"{path}: {name} of shape {reprlib.repr(shape)} at bytes {reprlib.repr(offsets)}: truncated or damaged; "
        f"shape is [out, in], data_offsets [start, stop] within {size - begin} bytes"
    )


def _two_numbers(said: Any) -> TypeGuard[list[int]]:
    return isinstance(said, list) and len(said) == 2 and all(type(n) is int for n in said)


WEIGHTS = Checkpoint
