"""The header of a NumPy array, read without believing it."""

from __future__ import annotations

import tokenize
from typing import IO

import numpy as np

from .errors import BadTrace
from .importing import short

# What NumPy raises about a header: it parses Python with Python.
HEADER_ERRORS = (
    ValueError, KeyError, TypeError, SyntaxError, OverflowError, MemoryError, RecursionError, tokenize.TokenError,
)  # fmt: skip


def header(where: str, file: IO[bytes], dimensions: int | None, kinds: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    """(shape, whether it is in Fortran's order, dtype) of the array that begins here.

    BadTrace unless it has so many dimensions (None: any) and a dtype of one of `kinds`, in NumPy's letters. Its size is
    the caller's to check.
    """
    try:
        version = np.lib.format.read_magic(file)
        reader = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = reader(file)
        if any(type(n) is not int for n in shape):
            raise TypeError(f"its shape is {shape}")
    except HEADER_ERRORS as error:
        raise BadTrace(f"{where} is not a NumPy array ({short(str(error))})") from None
    if dtype.hasobject:
        raise BadTrace(f"{where} is a pickle (dtype object), and nothing is unpickled; save it as numbers")
    if dtype.kind not in kinds or (dimensions is not None and len(shape) != dimensions):
        raise BadTrace(
            f"{where} is {dtype} {list(shape)}; it must be of kind {' or '.join(kinds)} "
            f"(i, u whole numbers; f floats; U, S text) with {dimensions} dimensions"
        )
    return shape, fortran, dtype
