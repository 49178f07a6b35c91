"""The small kernels beside the hot chain: join, norm, words to the host, busy time, reads. See cupy_small.cu."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .ceilings import best_rate
from .cupy_driver import Kernel, attribute, compiled, need_cupy, source
from .errors import BadExecutor

MAX_WHERE = 512  # (token, choice) pairs of one join
MERGE = np.dtype(
    [
        ("hot", "<u8"), ("cold", "<u8"), ("weights", "<u8"), ("y", "<u8"),
        ("n", "<u4"), ("k", "<u4"), ("hidden", "<u4"), ("where", "u1", MAX_WHERE),
    ],
    align=True,
)  # fmt: skip
NORM = np.dtype([("x", "<u8"), ("y", "<u8"), ("next", "<u8"), ("epsilon", "<f4"), ("hidden", "<u4")])
TELL = np.dtype([("words", "<u8"), ("to", "<u8"), ("flag", "<u8"), ("count", "<u4"), ("sequence", "<u4")])
BUSY = np.dtype([("ns", "<u8")])
READ = np.dtype([("from", "<u8"), ("pieces", "<u8"), ("sink", "<u8")])


class SmallKernels:
    """One of each on the current device. Every call queues one kernel on a stream (its handle) and allocates nothing.

    All addresses are device addresses, integers; page-locked memory has the same address on both sides (`page_locked`).
    """

    def __init__(self):
        cupy = need_cupy()
        self.sms = attribute("MULTIPROCESSOR_COUNT")
        self._sink = cupy.zeros(8 * self.sms, np.uint32)  # a word for each block of a read
        module = compiled(f"#define MAX_WHERE {MAX_WHERE}\n" + source("cupy_small.cu"))
        self._merge = Kernel(module, "merge", np.zeros(1, MERGE), grid=1, block=128)
        self._norm = Kernel(module, "rms_norm", np.zeros(1, NORM), grid=1, block=256)
        self._tell = Kernel(module, "tell", np.zeros(1, TELL), grid=1, block=128)
        # One array a field: filling them takes a quarter of the time of assigning a whole record.
        self._merge_fields, self._norm_fields, self._tell_fields = (
            [kernel.args[name] for name in kernel.args.dtype.names or ()]
            for kernel in (self._merge, self._norm, self._tell)
        )
        self._busy = Kernel(module, "busy", np.zeros(1, BUSY), grid=1, block=1)
        self._read = Kernel(module, "read_all", np.zeros(1, READ), grid=self.sms, block=512)

    def merge(
        self, stream: int, hot: int, cold: int, where: ArrayLike, weights: int, y: int, n: int, k: int, hidden: int
    ) -> None:
        """y [n, hidden] = sum over k of weights [n, k] * out [n, k, hidden], float32, in router order.

        where [n * k]: for each pair ABSENT (skipped), HOT (its row of `hot`) or COLD (its row of `cold`, page-locked
        memory that the host has finished writing). Products and sums are each rounded to float32, as `merge.merged`
        does on the host: the bytes are the same. Raises BadExecutor for more than 512 pairs, or a hidden that is not a
        multiple of 4.
        """
        if n * k > MAX_WHERE or hidden % 4:
            raise BadExecutor(
                f"a join of {n} tokens, {k} choices, hidden={hidden}: at most {MAX_WHERE} pairs, hidden % 4 == 0"
            )
        _fill(self._merge_fields, hot, cold, weights, y, n, k, hidden)
        self._merge.args["where"][0, : n * k] = where
        self._merge.grid(-(-hidden // 512), n)
        self._merge.launch(stream)  # waits for what the stream holds: the hot chain

    def norm(self, stream: int, x: int, y: int, to: int, n: int, hidden: int, epsilon: float = 1e-6) -> None:
        """to [n, hidden] = v / sqrt(mean(v^2) + epsilon), v = x + y, float32: the next layer's input. `to` may be x."""
        _fill(self._norm_fields, x, y, to, epsilon, hidden)
        self._norm.grid(n)
        self._norm.launch(stream)

    def tell(self, stream: int, words: int, count: int, to: int, flag: int, sequence: int) -> None:
        """Copies `count` 32-bit words to page-locked memory and then writes `sequence` to the word `flag` beside them.

        The host that sees `sequence` there may read the words: no copy engine and no synchronisation is involved.
        """
        _fill(self._tell_fields, words, to, flag, count, sequence)
        self._tell.launch(stream)

    def busy_wait(self, stream: int, us: float) -> None:
        """Holds the stream for `us` microseconds, by the GPU's own clock: stands for attention and dense layers."""
        self._busy.args["ns"] = round(us * 1000)
        self._busy.launch(stream)

    def read(self, stream: int, address: int, nbytes: int, per_sm: int = 1) -> None:
        """Reads that many bytes once, `per_sm` (at most 8) blocks on every SM: the ceiling of what reads weights."""
        self._read.grid(self.sms * per_sm)
        self._read.args[0] = (address, nbytes // 16, self._sink.data.ptr)
        self._read.launch(stream)

    def read_rate(self, stream: Any, most_bytes: int) -> float:
        """Bytes per second of reading so much device memory, the best of several grids. Waits."""
        n_bytes, times = most_bytes // 16 * 16, 8  # several reads a wait: each takes little longer than the wait
        memory = need_cupy().empty(n_bytes, np.uint8)

        def job(per_sm: int) -> int:
            for _ in range(times):
                self.read(int(stream.ptr), memory.data.ptr, n_bytes, per_sm)
            stream.synchronize()
            return times * n_bytes

        return max(best_rate(lambda per_sm=per_sm: job(per_sm)) for per_sm in (1, 2, 4, 8))


def _fill(fields: list[NDArray[Any]], *values: float) -> None:
    for field, value in zip(fields, values, strict=False):  # `where`, the last of a join, is filled apart
        field[0] = value


def page_locked(nbytes: int) -> NDArray[np.uint8]:
    """Zeroed page-locked memory, mapped at the same address on the device. Raises BadExecutor if it cannot be had."""
    cupy = need_cupy()
    try:
        memory: Any = cupy.cuda.alloc_pinned_memory(nbytes)
    except cupy.cuda.runtime.CUDARuntimeError as failed:
        raise BadExecutor(
            f"{nbytes:,} bytes of page-locked memory are refused ({failed}): --host registered or --host staged does "
            "without so much of it at once, --alias-layers N asks for less"
        ) from failed
    found = np.frombuffer(memory, np.uint8, nbytes)
    found[:] = 0
    return found
