"""Speed of the hot chain on a GPU, each figure beside the read bandwidth that the same process measured.

    python benchmarks/hot_speed.py --keep

It needs CuPy, cuda.bindings and numpy. A tick is both launches for n rows of which none was read in the four ticks
before, from slots that take several gigabytes, so that nothing comes out of the L2. `tick_us` is the device's time of
one tick in a stream of ticks, each of which waits for the one before: a graph of them, divided by their number.
`share_of_read` counts the bytes of a row once, however many tokens it has.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from peers import bench

from slotwise.executor.cold import RowLayout
from slotwise.executor.cupy_driver import KernelGraph, calls, check, need_cupy, need_driver
from slotwise.executor.cupy_hot import HotChain
from slotwise.executor.cupy_small import SmallKernels, page_locked
from slotwise.executor.dtypes import DTYPES, encode
from slotwise.executor.merge import HOT

TICKS = 60  # in one graph
ROUNDS = 7


class Place:
    """Slots of one layout, enough that nothing is read twice from the L2, and ticks over them."""

    def __init__(self, layout: RowLayout, pool_bytes: int, **options: Any):
        self.cupy = need_cupy()
        self.layout, self.chain = layout, HotChain(layout, **options)
        self.stream = self.cupy.cuda.Stream(non_blocking=True)
        self.slots = max(160, pool_bytes // self.chain.slot_bytes)
        row = np.zeros(self.chain.slot_bytes, np.uint8)
        draw = np.random.default_rng(0)
        shapes = [(layout.inner, layout.hidden)] * 2 + [(layout.hidden, layout.inner)]
        for dtype, start, shape in zip(layout.dtypes, layout.starts, shapes, strict=True):
            part = encode(dtype, draw.normal(0, shape[1] ** -0.5, shape)).ravel()
            row[start : start + part.size] = part
        self.memory = self.cupy.empty((self.slots, self.chain.slot_bytes), np.uint8)
        self.memory[:] = self.cupy.asarray(row)
        self.x = self.cupy.asarray(draw.normal(size=(8, layout.hidden)).astype(np.float32))
        self.out = self.cupy.empty((256, layout.hidden), np.float32)
        self.draw = draw
        self.cupy.cuda.Device().synchronize()

    def ticks(self, rows: int, tokens: int, count: int) -> list[tuple[Any, Any, Any, Any]]:
        """Arguments of ticks: round and round through all slots in one random order."""
        order = np.resize(self.draw.permutation(self.slots), rows * count)
        offsets, to = np.arange(rows + 1) * tokens, np.arange(rows * tokens)
        return [(order[i * rows : (i + 1) * rows], offsets, to % tokens, to) for i in range(count)]

    def launch(self, tick: tuple[Any, Any, Any, Any], chain: HotChain | None = None) -> None:
        x, out = self.x.data.ptr, self.out.data.ptr
        (chain or self.chain).launch(self.stream.ptr, self.memory.data.ptr, *tick, x, out)

    def seconds(self, job: Callable[[], object]) -> float:
        """Device time between two events around it."""
        begin, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        begin.record(self.stream)
        job()
        end.record(self.stream)
        end.synchronize()
        return self.cupy.cuda.get_elapsed_time(begin, end) / 1e3

    def graph(self, rows: int, tokens: int) -> Any:
        """Ticks that wait for one another, as one graph."""
        self.stream.begin_capture()
        for tick in self.ticks(rows, tokens, TICKS):
            self.launch(tick)
        return self.stream.end_capture()

    def tick_us(self, cases: list[tuple[int, int]]) -> dict[tuple[int, int], float]:
        """Median time of a tick for each (rows, tokens a row); the cases take turns."""
        graphs = {case: self.graph(*case) for case in cases}
        taken: dict[tuple[int, int], list[float]] = {case: [] for case in cases}
        for turn in range(ROUNDS + 1):
            for case, graph in graphs.items():
                seconds = self.seconds(lambda graph=graph: [graph.launch(self.stream) for _ in range(3)])
                if turn:
                    taken[case].append(seconds / 3 / TICKS * 1e6)
        return {case: statistics.median(each) for case, each in taken.items()}


def read_bytes_per_s(place: Place, small: SmallKernels) -> float:
    """Bandwidth of reading all slots, the best of several sizes of the grid: the ceiling."""
    best = 0.0
    for per_sm in (1, 2, 4, 8):
        what = (place.stream.ptr, place.memory.data.ptr, place.memory.nbytes, per_sm)
        seconds = [place.seconds(lambda what=what: small.read(*what)) for _ in range(6)]
        best = max(best, place.memory.nbytes / statistics.median(seconds[1:]))
    return best


def us_of(job: Callable[[], object], stream: Any, turns: int) -> dict[str, float]:
    """Host time of a call, microseconds, the queue emptied every 20 calls."""
    taken = []
    for turn in range(turns):
        if turn % 20 == 0:
            stream.synchronize()
        begin = time.perf_counter_ns()
        job()
        taken.append((time.perf_counter_ns() - begin) / 1e3)
    stream.synchronize()
    return {"host_us": round(statistics.median(taken), 2), "p99_us": round(float(np.percentile(taken, 99)), 2)}


def rows(asked: argparse.Namespace) -> Iterator[dict]:
    cupy, small = need_cupy(), SmallKernels()
    about = cupy.cuda.runtime.getDeviceProperties(0)
    turns = 40 if asked.tiny else 1000
    hidden, inner = (256, 256) if asked.tiny else (2048, 768)
    pool_bytes = 1 << 26 if asked.tiny else 5 << 30
    layout = RowLayout(hidden, inner, ("bf16", "bf16", "bf16"))
    place = Place(layout, pool_bytes, launches="direct")  # a graph of ticks is captured from direct launches
    ceiling = read_bytes_per_s(place, small)
    device = {
        "device": about["name"].decode(),
        "sms": about["multiProcessorCount"],
        "l2_bytes": about["l2CacheSize"],
        "driver": cupy.cuda.runtime.driverGetVersion(),
        "cupy": cupy.__version__,
        "read_bytes_per_s": round(ceiling),
        "read_from_bytes": place.memory.nbytes,
    }
    yield device
    cases = [(1, 1), (2, 1), (4, 1), (8, 1), (32, 1), (8, 2), (8, 4), (8, 8), (32, 4)]
    for (n, tokens), us in place.tick_us(cases).items():
        read_us = n * layout.row_bytes / ceiling * 1e6
        row = {"what": "tick", "dtype": "bf16", "rows": n, "tokens_a_row": tokens, "tick_us": round(us, 2)}
        if n <= 8 and tokens == 1:
            row["target_us"] = round(5.5 + read_us / 0.88, 2)
        if n == 32:
            row["target_share"] = 0.75
        yield {**row, "read_us": round(read_us, 2), "share_of_read": round(read_us / us, 3)}
    yield {"what": "ceiling again", "read_bytes_per_s": round(read_bytes_per_s(place, small))}
    yield from launches(place, small, turns)
    yield from beside(place, small)
    restricted = Place(layout, pool_bytes, launches="direct", sms=min(28, small.sms))
    for (n, _), us in restricted.tick_us([(1, 1), (8, 1)]).items():
        row = {"what": "tick restricted", "sms": restricted.chain.sms, "rows": n, "tick_us": round(us, 2)}
        yield {**row, "bytes_per_s": round(n * layout.row_bytes / us * 1e6)}
    del place, restricted
    for dtype in asked.dtypes.split(","):
        cupy.get_default_memory_pool().free_all_blocks()
        began = time.perf_counter()
        layout = RowLayout(hidden, inner, (dtype, dtype, dtype))
        other = Place(layout, pool_bytes // 4, launches="direct")
        opened_s = time.perf_counter() - began
        for (n, tokens), us in other.tick_us([(1, 1), (8, 1), (8, 4), (32, 4)]).items():
            read_us = n * layout.row_bytes / ceiling * 1e6
            row = {"what": "tick", "dtype": dtype, "rows": n, "tokens_a_row": tokens, "tick_us": round(us, 2)}
            yield {
                **row,
                "read_us": round(read_us, 2),
                "share_of_read": round(read_us / us, 3),
                "open_s": round(opened_s, 1),
            }


def launches(place: Place, small: SmallKernels, turns: int) -> Iterator[dict]:
    """What launching costs the host, and how long it is from the call until the host sees the end of one row's tick."""
    driver, stream = need_driver(), place.stream
    board = page_locked(4096).view(np.uint32)
    word = place.cupy.zeros(1, np.uint32)
    told = (word.data.ptr, 0, 0), (board.ctypes.data, 0, 0), (1, 0, 0)
    tick = place.ticks(1, 1, 1)[0]
    graphs = HotChain(place.layout, launches="graph")
    gate_up, down = place.chain.kernels[1]
    handles = [(kernel, driver.CUfunction(kernel.function)) for kernel in (gate_up, down)]

    def bindings() -> None:
        for kernel, function in handles:
            check(driver.cuLaunchKernelEx(kernel.config, function, kernel.parameters, 0))

    def raw() -> None:
        with stream:
            for kernel, _ in handles:
                shared = kernel.config.sharedMemBytes
                kernel.raw((place.chain.sms,), (kernel.config.blockDimX,), (kernel.args[0],), shared_mem=shared)

    def through(launch: Callable[[], None]) -> Callable[[], None]:
        state = [int(board[512])]

        def until_seen() -> None:
            state[0] += 1
            launch()
            small.tell(stream.ptr, *told, board[512:].ctypes.data, state[0])
            while board[512] != state[0]:
                pass

        return until_seen

    teller, sequence = KernelGraph([small._tell]), small._tell.args.view(np.uint32)[-1:]

    def only_tell() -> None:
        sequence[0] += 1
        teller.launch(stream.ptr)
        while board[512] != sequence[0]:
            pass

    ways = {
        "graph": lambda: place.launch(tick, graphs),
        "direct": lambda: place.launch(tick),
        "nothing": lambda: None,
    }
    event = int(check(driver.cuEventCreate(0)))
    place.launch(tick)
    for name, job in {
        "HotChain.launch, graph": ways["graph"],
        "HotChain.launch, direct": ways["direct"],
        "launch_prepared, graph": lambda: graphs.launch_prepared(stream.ptr, 1),
        "launch_prepared, direct": lambda: place.chain.launch_prepared(stream.ptr, 1),
        "the two through cuda.bindings": bindings,
        "the two through CuPy's RawKernel": raw,
        "gate_up alone": lambda: gate_up.launch(stream.ptr),
        "down alone, dependent": lambda: down.launch(stream.ptr),
        "tell": lambda: small.tell(stream.ptr, *told, board[600:].ctypes.data, 1),
        "event record": lambda: calls().event_record(event, stream.ptr),
    }.items():
        yield {"what": "host cost", "of": name, **us_of(job, stream, turns)}
    for name, launch in ways.items():
        seen = us_of(through(launch), stream, turns)
        yield {"what": "call until seen by the host", "rows": int(name != "nothing"), "way": name, **seen}
    seen = us_of(only_tell, stream, turns)  # an upper bound of "ids on the host until the hot chain has started"
    yield {"what": "call until the first kernel of a graph has written to the host", **seen}
    for name, launch in ways.items():
        taken = [place.seconds(launch) * 1e6 for _ in range(turns // 4)]
        yield {"what": "between events, stream idle before", "way": name, "us": round(statistics.median(taken), 2)}


def beside(place: Place, small: SmallKernels) -> Iterator[dict]:
    """Device time of the kernels between two hot chains, in a stream of them that wait for one another."""
    hidden, stream = place.layout.hidden, place.stream
    weights, y = place.cupy.ones((8, 8), np.float32), place.cupy.zeros((8, hidden), np.float32)
    address = place.x.data.ptr
    for n in (1, 8):
        jobs = {
            "merge": lambda n=n: small.merge(
                stream.ptr, place.out.data.ptr, 0, [HOT] * (8 * n), weights.data.ptr, y.data.ptr, n, 8, hidden
            ),
            "norm": lambda n=n: small.norm(stream.ptr, address, y.data.ptr, address, n, hidden),
        }
        for name, job in jobs.items():
            stream.begin_capture()
            for _ in range(TICKS):
                job()
            graph = stream.end_capture()
            taken = [place.seconds(lambda graph=graph: graph.launch(stream)) for _ in range(ROUNDS)]
            yield {"what": name, "tokens": n, "us": round(statistics.median(taken[1:]) / TICKS * 1e6, 2)}


if __name__ == "__main__":
    bench("hot-speed", __doc__, rows, dtypes=",".join(name for name in DTYPES if name != "bf16"))
