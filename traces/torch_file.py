"""torch.save's files as plain objects: what such a file may do is checked before torch reads it with weights_only."""

from __future__ import annotations

import pickle
import pickletools
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from .errors import BadTrace
from .importing import short

DIGS_IN = {
    "STACK_GLOBAL",
    "INST",
    "OBJ",
    "NEWOBJ",
    "NEWOBJ_EX",
    "EXT1",
    "EXT2",
    "EXT4",
}  # no torch.save of data has them
WHOLE = ("torch.int64", "torch.int32", "torch.int16", "torch.int8", "torch.uint8")
PLAIN = {"torch._utils _rebuild_tensor_v2", "collections OrderedDict"}
ERRORS = (
    pickle.UnpicklingError, zipfile.BadZipFile, struct.error, RuntimeError, ValueError, TypeError, LookupError,
    AttributeError, EOFError, OSError, OverflowError, MemoryError, AssertionError, NotImplementedError,
)  # fmt: skip


def is_torch(head: bytes) -> bool:
    """Whether a file that begins so is what torch.save writes: a zip whose first member is a pickle."""
    return head.startswith(b"PK") and b"/data.pkl" in head[:512]


def load(path: Path) -> Any:
    """The object in the file, its tensors as `torch.Tensor`; nothing but tensors and plain containers is built."""
    try:
        _check(path)
    except ERRORS as error:
        raise BadTrace(f"{path}: damaged or truncated torch file ({short(str(error))})") from None
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise BadTrace(
            f"{path}: a torch file, and torch is not installed; `pip install torch`, or save the ids as npz "
            "(`slotwise formats npz`)"
        ) from None
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except ERRORS as error:
        raise BadTrace(f"{path}: damaged or truncated torch file ({short(str(error))})") from None


def numbers(where: str, found: dict, key: str, dimensions: int) -> np.ndarray:
    """The tensor or list of whole numbers under `key`, as an array of so many dimensions; no more than is stored."""
    value: Any = found.get(key)
    if hasattr(value, "is_contiguous"):
        if not value.is_contiguous():  # a stride of 0 makes any number of elements out of one
            raise BadTrace(f"{where}: {key} is a view with strides {value.stride()}; it must be contiguous")
        if str(value.dtype) not in WHOLE:
            raise BadTrace(f"{where}: {key} is {value.dtype}; it must be {', '.join(WHOLE)}")
        value = value.numpy()
    elif not isinstance(value, list) or any(type(v) is not int or abs(v) > 2**62 for v in value):
        raise BadTrace(f"{where}: {key} is {short(value)}; it must be whole numbers")
    array = np.asarray(value, np.int64 if isinstance(value, list) else None)
    if array.ndim != dimensions:
        raise BadTrace(f"{where}: {key} is {list(array.shape)}; it must have {dimensions} dimensions")
    return array


def _check(path: Path) -> None:
    """Members are stored as they are and no larger than the file; the pickle names tensors and containers only."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if any(i.compress_type != zipfile.ZIP_STORED or i.file_size != i.compress_size for i in members):
            raise ValueError("a member is compressed, as torch.save never does")
        if sum(i.file_size for i in members) > path.stat().st_size:
            raise ValueError("its members are larger than the file")
        pickles = [i for i in members if i.filename.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise ValueError(f"{len(pickles)} members data.pkl instead of one")
        for op, argument, _ in pickletools.genops(archive.read(pickles[0])):
            plain = argument in PLAIN or (
                isinstance(argument, str) and argument.startswith("torch ") and argument.endswith("Storage")
            )
            if op.name in DIGS_IN or (op.name == "GLOBAL" and not plain):
                raise ValueError(f"its pickle wants {argument or op.name}; only tensors and plain containers are read")
