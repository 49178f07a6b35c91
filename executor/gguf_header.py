"""The header of a GGUF file: its keys, and name, shape, dtype and bytes of every tensor. No tensor is read."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from .errors import BadExecutor

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
MOST_DIMENSIONS, MOST_TENSOR_BYTES = 4, 2**40  # of GGUF; of any model, many times over
MOST_KEPT = 4096  # items of an array that are kept: the long ones are vocabularies


@dataclass(frozen=True)
class Tensor:
    """One tensor as the header describes it; shape with the fastest dimension first."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    n_bytes: int


@dataclass(frozen=True)
class GgufHeader:
    """Keys by name, without their architecture's prefix too, and the tensors of all shards."""

    path: Path
    keys: dict[str, Any]
    tensors: tuple[Tensor, ...]

    @property
    def architecture(self) -> str:
        return str(self.keys.get("general.architecture", ""))

    def get(self, name: str, default: Any = None) -> Any:
        """A key of the architecture, such as `block_count`."""
        return self.keys.get(f"{self.architecture}.{name}", default)

    def number(self, name: str, layer: int = 0, default: int | None = None) -> int:
        """A key of the architecture that counts something, of one layer where it is a list of them.

        Raises BadExecutor naming the key where it is missing and has no default, or does not count.
        """
        found = self.get(name, default)
        if isinstance(found, list):
            found = found[layer] if layer < len(found) else None
        if not isinstance(found, int):
            raise BadExecutor(
                f"{self.path}: the header has no key {self.architecture}.{name} that counts, so what lies in VRAM is "
                "not known; give context_bytes in place of ctx"
            )
        return int(found)


def read_header(path: str | Path) -> GgufHeader:
    """Reads the header of a file, and of all its shards where it is one of several. Raises BadExecutor."""
    path = Path(path)
    keys, tensors = _one(path)
    shards = keys.get("split.count", 1)
    if not isinstance(shards, int) or shards > 99_999:
        raise BadExecutor(f"{path}: split.count is {shards!r}, no number of shards")
    if shards > 1:
        named = _SHARD.search(path.name)
        if not named or int(named[2]) != shards:
            raise BadExecutor(
                f"{path}: it is one of {shards} shards, and its name does not end in -00001-of-{shards:05}.gguf, so "
                "the others are not found"
            )
        parts = [_one(path.with_name(f"{path.name[: named.start()]}-{i:05}-of-{shards:05}.gguf"))
                 for i in range(1, shards + 1)]  # fmt: skip
        keys = parts[0][0]
        tensors = [tensor for _, some in parts for tensor in some]
    names = set()
    for tensor in tensors:
        if tensor.name in names:
            raise BadExecutor(f"{path}: damaged GGUF header: two tensors are named {tensor.name[:60]!r}")
        names.add(tensor.name)
    return GgufHeader(path, keys, tuple(tensors))


def _one(path: Path) -> tuple[dict[str, Any], list[Tensor]]:
    with path.open("rb") as file:
        read = _Reader(path, file)
        if read.bytes(4) != b"GGUF":
            raise BadExecutor(f"{path}: not a GGUF file: it does not begin with GGUF")
        version = read.scalar("<I")
        if version not in (2, 3):
            raise BadExecutor(f"{path}: GGUF version {version}; read are 2 and 3, little endian")
        n_tensors, n_keys = read.scalar("<Q"), read.scalar("<Q")
        keys = {}
        for _ in range(n_keys):
            name = read.string()
            keys[name] = read.value(read.scalar("<I"))
        return keys, [_tensor(read) for _ in range(n_tensors)]


def _tensor(read: _Reader) -> Tensor:
    name = read.string()
    n_dimensions = read.scalar("<I")
    if n_dimensions > MOST_DIMENSIONS:
        raise BadExecutor(f"{read.path}: damaged GGUF header: {name[:60]!r} has {n_dimensions} dimensions")
    shape = tuple(read.scalar("<Q") for _ in range(n_dimensions))
    kind = read.scalar("<I")
    read.bytes(8)  # where it lies
    dtype, (block, size) = _stored(read.path, name, kind)
    count = 1
    for n in shape:
        count *= n
    if count % block:
        raise BadExecutor(
            f"{read.path}: {name[:60]!r} has {count} elements, no whole number of blocks of {block} ({dtype})"
        )
    if not 0 < count // block * size <= MOST_TENSOR_BYTES:
        raise BadExecutor(f"{read.path}: damaged GGUF header: {name[:60]!r} has the shape {'x'.join(map(str, shape))}")
    return Tensor(name, shape, dtype, count // block * size)


def _stored(path: Path, name: str, kind: int) -> tuple[str, tuple[int, int]]:
    try:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
    except ImportError as missing:
        raise BadExecutor(f"{path}: reading GGUF needs the package gguf ({missing}): pip install gguf") from missing
    try:
        found = GGMLQuantizationType(kind)
    except ValueError:
        said = f"{path}: {name[:60]!r} has dtype {kind}: the header is damaged, or newer than the package gguf"
        raise BadExecutor(said) from None
    return found.name, GGML_QUANT_SIZES[found]


def element_bytes(dtype: str, count: int) -> int:
    """Bytes of so many elements of a stored dtype, such as `q8_0`. Raises BadExecutor."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[dtype.upper()]]
    return -(-count // block) * size


class _Reader:
    """Reads on from where it is, and never past the end of the file."""

    def __init__(self, path: Path, file: BinaryIO):
        self.path, self._file, self._size = path, file, path.stat().st_size

    def counted(self, n: int, least: int) -> int:
        """A count that the header gives, of things of at least so many bytes: there must be room for them."""
        if n * least > self._size - self._file.tell():
            where = f"at byte {self._file.tell()} of {self._size}"
            raise BadExecutor(f"{self.path}: damaged or truncated GGUF header: {n} items {where}")
        return n

    def bytes(self, n: int) -> bytes:
        return self._file.read(self.counted(n, 1))

    def scalar(self, kind: str) -> Any:
        return struct.unpack(kind, self.bytes(struct.calcsize(kind)))[0]

    def string(self) -> str:
        return self.bytes(self.scalar("<Q")).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        """One value; of long arrays nothing is kept."""
        if kind == _STRING:
            return self.string()
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind != _ARRAY:
            raise BadExecutor(f"{self.path}: a key of type {kind}: GGUF has none of this number")
        inner, n = self.scalar("<I"), self.scalar("<Q")
        if inner == _ARRAY:
            raise BadExecutor(f"{self.path}: a key holds an array of arrays, which no model needs")
        if inner in _SCALARS and n > MOST_KEPT:
            self.bytes(n * struct.calcsize(_SCALARS[inner]))
            return None
        kept: Sequence[Any] = [self.value(inner) for _ in range(self.counted(n, 1))]
        return kept if n <= MOST_KEPT else None
