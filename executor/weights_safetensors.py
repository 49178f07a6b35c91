"""Rows from a Hugging Face checkpoint: expert matrices of safetensors files, copied as they are stored."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .cold import RowLayout
from .errors import BadExecutor
from .store import HostStore

KIND = "a folder with *.safetensors"
_DTYPES = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
_NAMES = re.compile(
    r"(?:.*\.)?layers\.(?P<layer>\d+)\.(?:mlp|block_sparse_moe)\.experts\.(?P<expert>\d+)\."
    r"(?P<part>gate_proj|up_proj|down_proj|w1|w3|w2)\.weight"
)
_PARTS = {"gate_proj": 0, "w1": 0, "up_proj": 1, "w3": 1, "down_proj": 2, "w2": 2}  # w1 and so on: Mixtral's names
_MOST_HEADER = 100 << 20  # the format's own limit
_ACTIVATIONS = {"silu": "swiglu", "swish": "swiglu", "gelu": "geglu", "gelu_pytorch_tanh": "geglu"}


def reads(path: Path) -> bool:
    """Whether the path is a folder that such files may lie in."""
    return path.is_dir()


@dataclass(frozen=True)
class Tensor:
    """Where a matrix lies: its file, dtype as stored, shape [out, in], and its bytes in the file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class Checkpoint:
    """The experts of a model: `layouts` of its MoE layers in order, `n_experts`, and `fill`, which copies the rows.

    folder: with config.json and *.safetensors; every file is mapped, none is read whole. Raises BadExecutor for what is
    no such folder, for tensors that are missing or differ in shape, and for dtypes that are not computed as stored.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        files = sorted(self.folder.glob("*.safetensors"))
        if not files:
            raise BadExecutor(f"{folder}: no *.safetensors in it; give the folder of a Hugging Face checkpoint")
        self._tensors: dict[tuple[int, int, int], Tensor] = {}
        for path in files:
            for name, tensor in _header(path).items():
                found = _NAMES.fullmatch(name)
                if found:
                    self._tensors[int(found["layer"]), int(found["expert"]), _PARTS[found["part"]]] = tensor
        if not self._tensors:
            raise BadExecutor(f"{folder}: no tensor named like layers.N.mlp.experts.N.gate_proj.weight")
        self.model_layers = sorted({layer for layer, _, _ in self._tensors})
        self.n_experts = 1 + max(expert for _, expert, _ in self._tensors)
        self.activation = self._activation()
        self.layouts = [self._layout(layer) for layer in self.model_layers]

    def _activation(self) -> str:
        path = self.folder / "config.json"
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise BadExecutor(f"{path}: not a readable config of a model ({error})") from None
        said = config.get("hidden_act") if isinstance(config, dict) else None
        if said not in _ACTIVATIONS:
            raise BadExecutor(f"{path}: hidden_act={said!r}; the executor computes {', '.join(_ACTIVATIONS)}")
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


def _header(path: Path) -> dict[str, Tensor]:
    """The tensors that a file says it has, held against its size. Only matrices in dtypes that we compute."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(size - 8, _MOST_HEADER):
            raise BadExecutor(f"{path}: its header would take {length} of {size} bytes: damaged, or not safetensors")
        try:
            entries = json.loads(file.read(length))
        except (ValueError, RecursionError) as error:
            raise BadExecutor(f"{path}: its header is not JSON ({error}): damaged, or not safetensors") from None
    found = {}
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        if not _NAMES.fullmatch(name):
            continue
        said = entry.get("dtype") if isinstance(entry, dict) else None
        if said not in _DTYPES:
            raise BadExecutor(f"{path}: {name} is {said}; computed as stored are {', '.join(_DTYPES)}")
        dtype, shape, (start, stop) = _DTYPES[entry["dtype"]], tuple(entry["shape"]), entry["data_offsets"]
        n_bytes = int(np.prod(shape)) * (4 if dtype == "f32" else 2)
        if len(shape) != 2 or stop - start != n_bytes or not 0 <= start <= stop <= size - 8 - length:
            raise BadExecutor(f"{path}: {name} of shape {list(shape)} at bytes {start} to {stop}: truncated or damaged")
        found[name] = Tensor(path, dtype, shape, 8 + length + start, 8 + length + stop)
    return found


WEIGHTS = Checkpoint
