"""The small kernels beside the hot chain: join, norm, words to the host, busy time, reads. See cupy_small.cu."""

from __future__ import annotations

from collections.abc import Sequence
from struct import calcsize, pack_into
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .ceilings import best_rate
from .cupy_driver import Kernel, attribute, compiled, need_cupy, source
from .errors import LESS_HOST, BadExecutor

MAX_WHERE = 512  # (token, choice) pairs of one join
TELLS = 3  # stretches of words in one telling
LAST_FLAG = 16  # words from the flag of a telling to that of its last stretch
# The kernels' arguments, as `struct` packs them: a fifth of the time of filling a NumPy record.
MERGE, NORM, TELL = "<5Q4I", "<3QfI", f"<{2 * TELLS + 1}Q{TELLS + 1}I"
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
        sizes = f"#define MAX_WHERE {MAX_WHERE}\n#define TELLS {TELLS}\n"
        module = compiled(sizes + source("cupy_small.cu"))
        self._merge = Kernel(module, "merge", _packed(MERGE, MAX_WHERE), grid=1, block=128)
        self._norm = Kernel(module, "rms_norm", _packed(NORM), grid=1, block=256)
        self._tell = Kernel(module, "tell", _packed(TELL), grid=1, block=512)
        self._busy = Kernel(module, "busy", np.zeros(1, BUSY), grid=1, block=1)
        self._read = Kernel(module, "read_all", np.zeros(1, READ), grid=self.sms, block=512)

    def merge(
        self, stream: int, hot: int, cold: int, where: ArrayLike, weights: int, y: int, n: int, k: int, hidden: int,
        counter: int = 0, awaited: int = 0,
    ) -> None:  # fmt: skip
        """y [n, hidden] = sum over k of weights [n, k] * out [n, k, hidden], float32, in router order.

        where [n * k]: for each pair ABSENT (skipped), HOT (its row of `hot`) or COLD (its row of `cold`, page-locked
        memory that the host has finished writing, or will have once the page-locked word at `counter` has come to
        `awaited`: the kernel waits for that). Products and sums are each rounded to float32, as `merge.merged`
        does on the host: the bytes are the same. Raises BadExecutor for more than 512 pairs, or a hidden that is not a
        multiple of 4.
        """
        if n * k > MAX_WHERE or hidden % 4:
            raise BadExecutor(
                f"a join of {n} tokens, {k} choices, hidden={hidden}: at most {MAX_WHERE} pairs, hidden % 4 == 0"
            )
        said = np.asarray(where, np.uint8).tobytes()
        pack_into(f"{MERGE}{n * k}s", self._merge.args, 0, hot, cold, weights, y, counter, n, k, hidden, awaited, said)
        self._merge.grid(-(-hidden // 512), n)
        self._merge.launch(stream)  # waits for what the stream holds: the hot chain

    def norm(self, stream: int, x: int, y: int, to: int, n: int, hidden: int, epsilon: float = 1e-6) -> None:
        """to [n, hidden] = v / sqrt(mean(v^2) + epsilon), v = x + y, float32: the next layer's input. `to` may be x."""
        pack_into(NORM, self._norm.args, 0, x, y, to, epsilon, hidden)
        self._norm.grid(n)
        self._norm.launch(stream)

    def tell(
        self, stream: int, words: Sequence[int], to: Sequence[int], counts: Sequence[int], flag: int, sequence: int
    ) -> None:
        """Copies three stretches of 32-bit words to page-locked memory, and says so at the word `flag` beside them.

        `sequence` is written to `flag` when the first two are there, and LAST_FLAG words on when the last one is: the
        host that sees it may read. No copy engine and no synchronisation is involved. words, to: addresses.
        """
        pack_into(TELL, self._tell.args, 0, *words, *to, flag, *counts, sequence)
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


def _packed(form: str, more: int = 0) -> NDArray[np.uint8]:
    """Memory for one argument: 8 bytes aligned, as the longest word in it."""
    return np.zeros(-(-(calcsize(form) + more) // 8), np.uint64).view(np.uint8)


def page_locked(nbytes: int) -> NDArray[np.uint8]:
    """Zeroed page-locked memory, mapped at the same address on the device. Raises BadExecutor if it cannot be had."""
    cupy = need_cupy()
    try:
        memory: Any = cupy.cuda.alloc_pinned_memory(nbytes)
    except cupy.cuda.runtime.CUDARuntimeError as failed:
        raise BadExecutor(
            f"{nbytes:,} bytes of page-locked memory are refused ({failed}): --host registered or --host staged does "
            f"without so much of it at once; {LESS_HOST}"
        ) from failed
    found = np.frombuffer(memory, np.uint8, nbytes)
    found[:] = 0
    return found
