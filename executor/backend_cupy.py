"""The cupy backend: an NVIDIA GPU. Three streams' worth of order: the compute stream, the copy stream, and the host."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from .backend import Copy, Rows
from .checks import check_choice
from .cold import RowLayout
from .cupy_conditions import conditions_of
from .cupy_copies import CopyEngine, CopyFailed
from .cupy_driver import NOT_READY, calls, need_cupy, need_driver, telling
from .cupy_host import HostMerge, RowMemory
from .cupy_hot import HotChain
from .cupy_launch import UNIT
from .cupy_order import Order
from .cupy_small import MAX_WHERE, SmallKernels, page_locked
from .cupy_spans import Spans, Timed
from .cupy_words import Words
from .errors import BadExecutor, ContextLost, CopyDoubtful, CopyRefused
from .host_memory import HOSTS, RING_BYTES, Ring
from .merge import MERGES
from .tensors import on_gpu

_POLLS = 2000  # about a millisecond
_BATCH = 512  # rows of one batch of copies
_TOLD = 1 << 18  # bytes of x that a kernel writes to the host


@dataclass(eq=False)
class Tick:
    """One layer's work: x [n, hidden] on the device, and what has been started."""

    layer: int
    x: Any
    n: int
    told: int  # number of the telling of x to the host
    hot: bool = False


class CupyBackend(Timed):
    """An NVIDIA GPU through CuPy and the driver: weights in VRAM slots, computed where they lie.

    Device arrays are read after, and returned before, what CuPy's current stream holds; within `queue()`, which makes
    `stream` current, that takes no events.

    device: number of the GPU; nothing is allocated on another. sms: blocks of the hot chain, fewer imitate a smaller
    GPU. copies: how batches are copied, by default the fastest way that the driver has. host: `pinned`, `registered`,
    or `staged`: ordinary rows go through a page-locked ring, filled by the thread that starts their copy. merge: `gpu`,
    or `cpu`, for which the hot chain writes to host memory. `timing` adds three events to hot work, two to a batch.
    """

    name, owned = "cupy", False

    def __init__(
        self, *, device: int = 0, sms: int | None = None, copies: str | None = None, host: str = "pinned",
        merge: str = "gpu",
    ):  # fmt: skip
        self.host_kind, self.merge_on = check_choice("host", host, HOSTS), check_choice("merge", merge, MERGES)
        self._cupy, self.device = need_cupy(), device
        count = self._cupy.cuda.runtime.getDeviceCount()
        if not 0 <= device < count:
            raise BadExecutor(f"device={device}: this machine has {count} GPUs, counted from 0")
        self._gpu: Any = self._cupy.cuda.Device(device)
        self._gpu.use()
        self.sms, self.timing, self.poison = sms, False, False
        self.stream = self._cupy.cuda.Stream(non_blocking=True)  # waits for no other stream but by `hold`
        self._stream = int(self.stream.ptr)
        self._small, self._order = SmallKernels(), Order(self.stream)
        self._copies = CopyEngine(how=copies)
        self.device_name = self._cupy.cuda.runtime.getDeviceProperties(device)["name"].decode()
        self._memory: list[Any] = []
        self._rows = RowMemory(host)
        self._chains: list[HotChain] = []
        self.reader_waits = self.counter = 0

    @staticmethod
    def missing(cold: str = "native") -> str | None:
        try:
            need_cupy()
            need_driver()
        except BadExecutor as absent:
            return str(absent)
        return None

    # --- memory ---

    def free_bytes(self) -> int | None:
        return int(self._cupy.cuda.runtime.memGetInfo()[0])

    def host_memory(self, n_bytes: int) -> np.ndarray:
        return self._rows.take(n_bytes)

    def device_memory(self, n_bytes: int) -> int:
        memory = self._cupy.empty(n_bytes, np.uint8)
        memory.fill(0xFF)  # NaN in every float: a row that is read before it was written shows
        self._memory.append(memory)
        return int(memory.data.ptr)

    def prepare(self, layouts: Sequence[RowLayout], n_tokens: int, top_k: int) -> None:
        """Compiles the kernels and makes every buffer that ticks use: x and y by turns, outputs, words for the host."""
        hidden, n_pairs = layouts[0].hidden, n_tokens * top_k
        if any(layout.hidden != hidden for layout in layouts):
            raise BadExecutor("layers of different hidden sizes: one model has one")
        known = {}
        for layout in dict.fromkeys(layouts):
            known[layout] = HotChain(layout, sms=self.sms)
            known[layout].work["slot_bytes"] = UNIT
        self._chains = [known[layout] for layout in layouts]
        empty = self._cupy.empty
        on_host = lambda n: page_locked(n * hidden * 4).view(np.float32).reshape(n, hidden)  # noqa: E731
        self._host_merge = both = HostMerge(self._small, n_pairs, hidden) if self.merge_on == "cpu" else None
        self._hot_out: Any = both.out if both else empty((n_pairs, hidden), np.float32)
        self._hot_at = self._hot_out.ctypes.data if both else self._hot_out.data.ptr
        self._cold_out: Any = both.out if both else on_host(n_pairs)  # one address for host and device
        self._count = None if both else page_locked(64)  # the merge kernel waits for the cold chain by itself
        self.counter = 0 if self._count is None else self._count.ctypes.data
        self._ring = Ring(page_locked(RING_BYTES), _BATCH) if self.host_kind == "staged" else None
        self._x_host: Any = on_host(n_tokens)
        self._x_at, self._cold_at = self._x_host.ctypes.data, self._cold_out.ctypes.data
        self._xs, self._ys = ([empty((n_tokens, hidden), np.float32) for _ in range(2)] for _ in range(2))
        self._turn = 0
        self._words = Words(self._small, self.stream)
        self._spans = Spans(self.stream, self._copies.stream) if self.timing else None
        self._gpu.synchronize()

    # --- between host and device, without a copy engine ---

    @telling
    def upload(self, values: np.ndarray) -> Any:
        """As many whole 32-bit words as the values take: what `host` can tell."""
        with self.stream:
            flat = np.zeros(-(-values.nbytes // 4) * 4, np.uint8)
            flat[: values.nbytes] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
            there = self._cupy.asarray(flat)
            return there[: values.nbytes].view(values.dtype).reshape(values.shape)

    @telling
    def adopt(self, name: str, value: Any) -> Any:
        return on_gpu(name, value, self.device, self._cupy, 16 if name == "x" else 4)

    @telling
    def download(self, values: Any) -> np.ndarray:
        self._order.after_caller()
        with self.stream:
            return self._cupy.asnumpy(values)

    @telling
    def host(self, *values: Any) -> list[np.ndarray]:
        """Device arrays, at most two, by a kernel that writes to the host; others as they are."""
        self._order.after_caller()
        there = [value for value in values if isinstance(value, self._cupy.ndarray)]
        told = iter(self._words.arrays(*there) if there else ())
        return [next(told) if isinstance(value, self._cupy.ndarray) else np.asarray(value) for value in values]

    @telling
    def read(self, address: int, n_bytes: int) -> np.ndarray:
        back = np.empty(n_bytes, np.uint8)
        self._cupy.cuda.runtime.memcpy(back.ctypes.data, address, n_bytes, self._cupy.cuda.runtime.memcpyDeviceToHost)
        return back

    # --- copies ---

    def copy(self, copies: Sequence[Copy], after: Any = None) -> int:
        ticket = 0

        def submit(batch: Sequence[Copy]) -> int:
            nonlocal ticket
            sources, targets, sizes = zip(*batch, strict=True)
            ticket = self._copies.submit(targets, sources, sizes)
            return ticket

        try:
            reader = None if after is None else self._order.still_reading(after)
            if reader is not None:
                self._copies.hold_copies(reader)  # the copy stream waits; the host does not
                self.reader_waits += 1
            began = self._spans.batch_begins() if self._spans else None
            if self._ring:
                ticket = self._ring.carry(copies, submit, self._copies.wait)
            for first in range(0, 0 if self._ring else len(copies), _BATCH):
                submit(copies[first : first + _BATCH])
            if self._spans:
                self._spans.batch_ends(began, sum(copy.n_bytes for copy in copies))
        except CopyFailed as failed:
            raise (CopyDoubtful if failed.doubtful or ticket else CopyRefused)(str(failed)) from failed
        return ticket

    def landed(self, ticket: int) -> bool:
        return self._copies.landed(ticket)

    # --- one tick ---

    @telling
    def begin(self, layer: int, x: Any, top_k: int) -> Tick:
        if isinstance(x, np.ndarray):
            x = self.upload(x)
        if x.nbytes > _TOLD:  # above any batch gate: the copy engine is faster than one block
            self._order.after_caller()
            kind = self._cupy.cuda.runtime.memcpyDeviceToHost
            self._cupy.cuda.runtime.memcpyAsync(self._x_at, x.data.ptr, x.nbytes, kind, self._stream)
        if self.poison:
            self.stream.synchronize()  # the last merge reads what the host poisons
            n_pairs = len(x) * top_k
            self._cold_out[:n_pairs] = np.nan
            with self.stream:
                self._hot_out[:n_pairs].fill(np.nan)
        count = 0 if x.nbytes > _TOLD else x.size
        told = self._words.bring(x.data.ptr, self._x_at, count)  # with the ids
        return Tick(layer, x, len(x), told)

    def hot(self, tick: Tick, work: Rows, after: Sequence[int] = ()) -> int:
        began, ended = self._spans.hot_work(first=not tick.hot, waits=bool(after)) if self._spans else (0, 0)
        for ticket in after:
            self._copies.hold(self._stream, ticket)  # the compute stream waits for a slot that this tick really reads
        tick.hot = True
        number, done = self._order.next_reader()
        self._chains[tick.layer].compute(self._stream, work, tick.x.data.ptr, self._hot_at, (began, ended, done))
        return number

    def inputs(self, tick: Tick) -> tuple[np.ndarray, np.ndarray]:
        self._words.hear_last(tick.told)
        return self._x_host[: tick.n], self._cold_out

    @telling
    def settle(self, tick: Tick) -> None:
        for _ in range(_POLLS):  # being woken would cost more than most of what is waited for here
            if calls().stream_query(self._stream) != NOT_READY:
                break
        self.stream.synchronize()

    def read_rate(self, most_bytes: int) -> float:
        return self._small.read_rate(self.stream, most_bytes)

    def conditions(self) -> dict[str, float]:
        return conditions_of(self._gpu.pci_bus_id)

    @telling
    def merge(self, tick: Tick, chains: np.ndarray, weights: Any, jobs: int = 0) -> Any:
        n, k = chains.shape
        hidden = tick.x.shape[1]
        self._turn ^= 1
        y = self._ys[self._turn][:n]
        if self._host_merge:
            (weights,) = self.host(weights)
            self._words.hear(self._words.tell())  # so the hot chain is done
            self._host_merge.merge(self._stream, chains, weights, y.data.ptr)
            self._order.before_caller()
            return y
        if not isinstance(weights, self._cupy.ndarray):
            weights = self.upload(np.ascontiguousarray(weights, np.float32))
        step = max(1, MAX_WHERE // k)
        for a in range(0, n, step):
            b, row = min(n, a + step), 4 * hidden
            self._small.merge(
                self._stream, self._hot_at + a * k * row, self._cold_at + a * k * row, chains[a:b],
                weights.data.ptr + 4 * a * k, y.data.ptr + a * row, b - a, k, hidden, self.counter, jobs,
            )  # fmt: skip
        self._order.before_caller()
        return y

    @telling
    def norm(self, x: Any, y: Any) -> Any:
        n, hidden = y.shape
        x = x if isinstance(x, self._cupy.ndarray) else self.upload(np.asarray(x, np.float32))
        to = self._xs[self._turn][:n]
        self._order.after_caller()
        self._small.norm(self._stream, x.data.ptr, y.data.ptr, to.data.ptr, n, hidden)
        self._order.before_caller()
        return to

    def queue(self) -> Any:
        return self.stream

    def spin(self, microseconds: float) -> None:
        self._small.busy_wait(self._stream, microseconds)

    @telling
    def synchronize(self) -> None:
        self.stream.synchronize()

    @telling
    def drain(self) -> None:
        self.stream.synchronize()
        self._copies.stream.synchronize()

    def close(self) -> None:
        if self._gpu is None:
            return
        with suppress(ContextLost):  # then what it held goes with the process
            self._wait_and_free()
        self._gpu = None

    @telling
    def _wait_and_free(self) -> None:
        self._copies.close()
        self.stream.synchronize()
        self._rows.close()
        self._memory.clear()
        self._chains.clear()
        self._hot_out = self._cold_out = self._x_host = self._host_merge = self._ring = None
        self._xs, self._ys = [], []
        self._cupy.get_default_memory_pool().free_all_blocks()


BACKEND = CupyBackend
