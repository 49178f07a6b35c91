"""The hot chain's launch from compiled code, which writes the arguments where the driver reads them and calls it."""
# pyright: reportPrivateImportUsage=false, reportCallIssue=false

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

UNIT = 64  # rows lie at multiples of it, and are counted in it from the lowest of a launch: 256 GiB apart at most
FITS_NOT = -1
_APART = 2**32


@intrinsic
def call(typing_context, address, words):
    """The int that the C function at an address returns for these words: pointers, sizes, handles of 64 bits each."""
    count = len(words)

    def codegen(context, builder, signature, args):
        word = ir.IntType(64)
        function = builder.inttoptr(args[0], ir.FunctionType(ir.IntType(32), [word] * count).as_pointer())
        return builder.call(function, [builder.extract_value(args[1], i) for i in range(count)])

    return types.int32(types.int64, types.UniTuple(types.int64, count)), codegen


def address_of(function: Any) -> int:
    """Where a function of ctypes lies."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class Launch:
    """Launches of the graphs of one hot chain.

    work: the argument of its kernels, a record [1] of `cupy_hot.WORK`. graphs: [shapes, 6], in ascending order: the
    most tokens of a row, the executable graph, then node and parameters of both kernels. set_node, launch, record:
    addresses of cuGraphExecKernelNodeSetParams, cuGraphLaunch, cuEventRecord.
    """

    def __init__(self, work: np.ndarray, graphs: NDArray[np.int64], *, set_node: int, launch: int, record: int):
        fields: Any = work.dtype.fields
        sizes = {"x": 8, "out": 8, "slots": 8, "rows": 4, "slot": 4, "first": 2, "token": 2, "to": 2}
        self._at = np.array([fields[name][1] // size for name, size in sizes.items()], np.int64)
        self._most = np.array([work["slot"].shape[1], work["token"].shape[1]], np.int64)
        memory = work.view(np.uint8)
        self._memory = memory.view(np.uint16), memory.view(np.uint32), memory.view(np.uint64)
        self._graphs, self._calls = graphs, np.array([set_node, launch, record], np.int64)
        nobody = np.zeros(0, np.int64)
        self.start(0, nobody, nobody, nobody, nobody, 0, 0)  # compiled now: no tick should pay for that

    def start(
        self,
        stream: int,
        rows: NDArray[np.int64],
        offsets: NDArray[np.int64],
        tokens: NDArray[np.int64],
        places: NDArray[np.int64],
        x: int,
        out: int,
        began: int = 0,
        ended: int = 0,
        done: int = 0,
    ) -> int:
        """Queues the graph that computes rows at these addresses, between three events (handles; 0 is none).

        What the arrays hold: see `backend.Rows`. Returns the driver's error code, or FITS_NOT, with nothing queued, if
        there are no rows or one launch does not hold them.
        """
        return start(
            *self._memory, self._at, self._most, self._graphs, self._calls,
            rows, offsets, tokens, places, stream, x, out, began, ended, done,
        )  # fmt: skip


@njit(cache=True)
def start(
    of_2, of_4, of_8, at, most, graphs, calls, rows, offsets, tokens, places, stream, x, out, began, ended, done
):  # fmt: skip
    """`Launch.start`. of_2, of_4, of_8: the argument's memory by words of so many bytes, in which `at` counts."""
    count, pairs = rows.size, places.size
    if count == 0 or count > most[0] or pairs > most[1]:
        return FITS_NOT
    lowest, highest, widest = rows[0], rows[0], 0
    for i in range(count):
        lowest, highest = min(lowest, rows[i]), max(highest, rows[i])
        widest = max(widest, offsets[i + 1] - offsets[i])
    shape = 0
    while shape < graphs.shape[0] and graphs[shape, 0] < widest:
        shape += 1
    if shape == graphs.shape[0] or (highest - lowest) // UNIT >= _APART:
        return FITS_NOT
    of_8[at[0]], of_8[at[1]], of_8[at[2]], of_4[at[3]] = x, out, lowest, count
    for i in range(count):
        of_4[at[4] + i] = (rows[i] - lowest) // UNIT
        of_2[at[5] + i] = offsets[i]
    of_2[at[5] + count] = pairs
    for i in range(pairs):
        of_2[at[6] + i], of_2[at[7] + i] = tokens[i], places[i]
    set_node, launch, record = calls
    error = call(set_node, (graphs[shape, 1], graphs[shape, 2], graphs[shape, 3]))
    error = error or call(set_node, (graphs[shape, 1], graphs[shape, 4], graphs[shape, 5]))
    if began:
        error = error or call(record, (began, stream))
    error = error or call(launch, (graphs[shape, 1], stream))
    if ended:
        error = error or call(record, (ended, stream))
    if done:
        error = error or call(record, (done, stream))
    return error
