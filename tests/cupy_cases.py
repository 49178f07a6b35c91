"""What the tests of the GPU share: whether there is one, slots filled with rows, and a hot chain driven once."""

import functools
from contextlib import contextmanager

import numpy as np
import pytest
from cold_cases import error, inputs, some_row

from slotwise.executor.cupy_driver import need_cupy, need_driver
from slotwise.executor.errors import BadExecutor
from slotwise.executor.reference import expert


@functools.cache
def _absent() -> str:
    try:
        need_cupy()
        need_driver()
    except BadExecutor as absent:
        return str(absent)
    return ""


def gpu():
    """CuPy, or the test is skipped with what is absent."""
    if _absent():
        pytest.skip(_absent())
    return need_cupy()


class Slots:
    """Rows of one layout in slots of the device, here and there the same bytes; x, and an output that is poisoned."""

    def __init__(self, chain, layout, rows: int, tokens: int = 16, seed: int = 0):
        self.cupy, self.chain, self.layout = gpu(), chain, layout
        self.rows = [some_row(layout, 100 * seed + i) for i in range(rows)]
        self.x = inputs(tokens, layout.hidden, seed)
        host = np.full((rows + 2, chain.slot_bytes), 0xA5, np.uint8)
        for i, row in enumerate(self.rows):
            host[i, : row.size] = row
        self.memory, self.x_there = self.cupy.asarray(host), self.cupy.asarray(self.x)
        self.out = self.cupy.empty((512, layout.hidden), np.float32)
        self.stream = self.cupy.cuda.Stream(non_blocking=True)

    def move(self, slot: int, to: int) -> None:
        """Copies a row into another slot, and ruins the first."""
        self.memory[to] = self.memory[slot]
        self.memory[slot] = 0x5A

    def compute(self, slots, tokens_of, to=None, chain=None) -> np.ndarray:
        """Output rows of all pairs, in their order; whatever was not written is NaN."""
        offsets = np.cumsum([0, *map(len, tokens_of)])
        tokens = [t for ts in tokens_of for t in ts]
        to = list(range(len(tokens))) if to is None else to
        self.out.fill(np.nan)
        self.cupy.cuda.Device().synchronize()
        (chain or self.chain).launch(
            self.stream.ptr, self.memory.data.ptr, slots, offsets, tokens, to, self.x_there.data.ptr, self.out.data.ptr
        )
        self.stream.synchronize()
        found = self.out.get()
        written = np.zeros(len(found), bool)
        written[to] = True
        assert np.isnan(found[~written]).all(), "rows of out that belong to nobody were written"
        return found[to]

    def expected(self, slots, tokens_of) -> np.ndarray:
        return np.concatenate([self.one(s)[list(ts)] for s, ts in zip(slots, tokens_of, strict=True)])

    @functools.cache  # noqa: B019 the tests end soon
    def one(self, slot: int) -> np.ndarray:
        return expert(self.layout, self.rows[slot], self.x)

    def error(self, slots, tokens_of) -> float:
        return error(self.compute(slots, tokens_of), self.expected(slots, tokens_of))


@contextmanager
def no_allocations():
    """Any device allocation through CuPy fails, and the driver's free memory is the same at the end."""
    cupy = gpu()
    before = cupy.cuda.get_allocator() if hasattr(cupy.cuda, "get_allocator") else None

    def refuse(nbytes):
        raise AssertionError(f"{nbytes} bytes of device memory were asked for after opening")

    cupy.cuda.Device().synchronize()
    free = cupy.cuda.runtime.memGetInfo()[0]
    cupy.cuda.set_allocator(refuse)
    try:
        yield
        cupy.cuda.Device().synchronize()
        assert cupy.cuda.runtime.memGetInfo()[0] == free
    finally:
        cupy.cuda.set_allocator(before or cupy.get_default_memory_pool().malloc)
