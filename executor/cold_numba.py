"""The cold chain without a C compiler: what slotwise.executor._cold gives, in numba, slower and for fewer dtypes."""
# pyright: reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

import ctypes
import math
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic
from typing import NamedTuple

import numpy as np
from numba import njit

from .dtypes import DTYPES, encode
from .errors import BadExecutor

COMPUTED = ("f32", "f16", "bf16", "Q8_0")
_F32, _F16, _BF16, _Q8_0 = (DTYPES[name].code for name in COMPUTED)
_LANES = 16  # sums of one output that are made side by side
_TIMES_OF = 64  # jobs whose times are kept
_AT_ONCE = 1 << 18  # values that `normal` makes in one go


def variants() -> list[str]:
    """As the native module's."""
    return ["numba"]


@njit(cache=True, nogil=True, error_model="numpy")
def _half(bits, floats, at, half):
    """Writes an IEEE half as float32 at a place of both views; subnormals, infinities and NaN too."""
    sign, rest = np.uint32(half & 0x8000) << np.uint32(16), np.uint32(half & 0x7FFF)
    if rest >= 0x7C00:
        bits[at] = sign | np.uint32(0x7F800000) | (rest & np.uint32(0x3FF)) << np.uint32(13)
        return
    bits[at] = rest << np.uint32(13)
    floats[at] *= np.float32(2.0**112)
    bits[at] |= sign


@njit(cache=True, nogil=True, error_model="numpy")
def _decode(dtype, row, at, n, bits, floats):
    """n weights from byte `at` on, as float32; `bits` and `floats` are the same memory, with one place to spare."""
    if dtype == _F32:
        for j in range(n):
            p = at + 4 * j
            bits[j] = row[p] | row[p + 1] << 8 | row[p + 2] << 16 | row[p + 3] << 24
    elif dtype == _F16:
        for j in range(n):
            _half(bits, floats, j, row[at + 2 * j] | row[at + 2 * j + 1] << 8)
    elif dtype == _BF16:
        for j in range(n):
            bits[j] = row[at + 2 * j] << 16 | row[at + 2 * j + 1] << 24
    else:
        for block in range(n // 32):
            p = at + 34 * block
            _half(bits, floats, n, row[p] | row[p + 1] << 8)
            for j in range(32):
                floats[32 * block + j] = floats[n] * np.float32(np.int8(row[p + 2 + j]))


@njit(cache=True, nogil=True, error_model="numpy")
def _multiply(dtype, row, at, row_bytes, bias, x, tokens, out, bits, floats, sums):
    """out[t, r] = output r of token t. The order of a sum hangs on nothing but its length."""
    n = x.shape[1]
    whole = n - n % _LANES
    for r in range(out.shape[1]):
        added = np.float32(0)
        if bias >= 0:
            _decode(_F32, row, bias + 4 * r, 1, bits, floats)
            added = floats[0]
        _decode(dtype, row, at + r * row_bytes, n, bits, floats)
        for t in range(len(tokens)):
            v = x[tokens[t]]
            sums[:] = 0
            for j in range(0, whole, _LANES):
                for lane in range(_LANES):
                    sums[lane] += floats[j + lane] * v[j + lane]
            for j in range(whole, n):
                sums[j - whole] += floats[j] * v[j]
            total = np.float32(0)
            for lane in range(_LANES):
                total += sums[lane]
            out[t, r] = total + added


@njit(cache=True, nogil=True, error_model="numpy")
def _activate(kind, g, u, alpha, limit):
    """As `activated` of cold.c: swiglu, geglu, swiglu_clamped."""
    one = np.float32(1)
    if kind == 0:
        return g / (one + math.exp(-g)) * u
    if kind == 1:
        return g / (one + math.exp(np.float32(-1.5957691216) * (g + np.float32(0.044715) * (g * g * g)))) * u
    g = limit if g > limit else g
    u = limit if u > limit else -limit if u < -limit else u
    return g / (one + math.exp(-alpha * g)) * (u + one)


@njit(cache=True, nogil=True, error_model="numpy")
def _expert(row, dtypes, starts, row_bytes, biases, inner, kind, alpha, limit, x, tokens, out, places):
    """The outputs of one row of weights for its tokens, each to its place."""
    hidden = x.shape[1]
    bits = np.empty(max(hidden, inner) + 1, np.uint32)
    floats, sums = bits.view(np.float32), np.empty(_LANES, np.float32)
    gate, up = np.empty((len(tokens), inner), np.float32), np.empty((len(tokens), inner), np.float32)
    _multiply(dtypes[0], row, starts[0], row_bytes[0], biases[0], x, tokens, gate, bits, floats, sums)
    _multiply(dtypes[1], row, starts[1], row_bytes[1], biases[1], x, tokens, up, bits, floats, sums)
    for t in range(len(tokens)):
        for i in range(inner):
            gate[t, i] = _activate(kind, gate[t, i], up[t, i], alpha, limit)
    down, each = np.empty((len(tokens), hidden), np.float32), np.arange(len(tokens))
    _multiply(dtypes[2], row, starts[2], row_bytes[2], biases[2], gate, each, down, bits, floats, sums)
    for t in range(len(tokens)):
        out[places[t]] = down[t]


class _Layer(NamedTuple):
    """What `_expert` is told of a layout."""

    dtypes: np.ndarray
    starts: np.ndarray
    row_bytes: np.ndarray  # of an output row
    biases: np.ndarray
    inner: int
    kind: int
    alpha: np.float32
    limit: np.float32
    n_bytes: int


class Pool:
    """What `_cold.Pool` is to a ColdChain: jobs in the order of submission, the rows of a job shared out to threads."""

    def __init__(self, threads: int, spin_us: float, cores: tuple[int, ...] | None, variant: str):
        if cores is not None:
            raise BadExecutor(f"cores {list(cores)}: the cold chain numba pins no threads")
        self._layers: list[_Layer] = []
        self._queue = ThreadPoolExecutor(1, "slotwise-cold")
        self._workers = ThreadPoolExecutor(threads, "slotwise-cold-row") if threads > 1 else None
        self._jobs: dict[int, Future] = {}  # those that nobody waited for
        self._held: dict[int, tuple] = {}
        self._times: dict[int, tuple[float, float]] = {}
        self._submitted, self._to_fail, self._closed = 0, False, False
        self._lock = threading.Lock()
        ready = self.layer(1, 1, (_F32,) * 3, (0, 4, 8), (-1, -1, -1), 0, 1.0, 1.0, False)
        one, zero = np.ones((1, 1), np.float32), np.zeros(1, np.int64)
        row = np.zeros(12, np.uint8)  # the first job compiles, or reads what was kept
        self.wait(self.submit(ready, np.array([row.ctypes.data]), np.array([0, 1]), zero, one, 1, one.copy(), zero, 1))

    def layer(self, hidden, inner, codes, starts, biases, kind, alpha, limit, rounds) -> int:
        named = {dtype.code: dtype for dtype in DTYPES.values()}
        dtypes = [named[code] for code in codes]
        other = [dtype.name for dtype in dtypes if dtype.name not in COMPUTED]
        if other or rounds:
            raise BadExecutor(
                f"{other[0] if other else 'activations=int8'}: the cold chain numba computes {', '.join(COMPUTED)}, "
                "activations in float32; the native one computes all: it needs a C compiler when slotwise is installed"
            )
        shapes = ((inner, hidden), (inner, hidden), (hidden, inner))
        across = [dtype.bytes_of(n) for dtype, (_, n) in zip(dtypes, shapes, strict=True)]
        ends = [start + n * each for start, (n, _), each in zip(starts, shapes, across, strict=True)]
        ends += [bias + 4 * n for bias, (n, _) in zip(biases, shapes, strict=True) if bias >= 0]
        arrays = (np.array(each, np.int64) for each in (codes, starts, across, biases))
        self._layers.append(_Layer(*arrays, inner, kind, np.float32(alpha), np.float32(limit), max(ends)))
        return len(self._layers) - 1

    def submit(self, handle, rows, offsets, tokens, x, n, out, places, n_out, counter=0) -> int:
        if self._closed:
            raise RuntimeError("the cold chain is closed: open another")
        _check(rows, offsets, tokens, x, n, out, places, n_out)
        layer = self._layers[handle]
        with self._lock:
            self._submitted += 1
            ticket, fails, self._to_fail = self._submitted, self._to_fail, False
            work = (rows.tolist(), offsets.tolist(), tokens.copy(), places.copy())
            self._held[ticket] = (x, out)
            self._jobs[ticket] = self._queue.submit(self._job, ticket, layer, *work, x, out, counter, fails)
        return ticket

    def _job(self, ticket, layer: _Layer, rows, offsets, tokens, places, x, out, counter, fails: bool) -> None:
        began = monotonic()
        try:
            if fails:
                raise RuntimeError("asked for by a test")

            def one(i: int) -> None:
                pairs = slice(offsets[i], offsets[i + 1])
                _expert(_memory(rows[i], layer.n_bytes), *layer[:8], x, tokens[pairs], out, places[pairs])

            for _ in (self._workers.map if self._workers else map)(one, range(len(rows))):
                pass
        finally:
            if counter:
                ctypes.c_uint32.from_address(counter).value += 1
            self._times[ticket] = began, monotonic()
            self._times.pop(ticket - _TIMES_OF, None)

    def _known(self, ticket: int) -> Future | None:
        if not 1 <= ticket <= self._submitted:
            raise ValueError(f"ticket {ticket}: this chain gave out tickets 1 to {self._submitted}")
        return self._jobs.get(ticket)

    def wait(self, ticket: int) -> None:
        job = self._known(ticket)
        if job is None:
            return
        error = job.exception()
        self._jobs.pop(ticket, None)
        self._held.pop(ticket, None)
        if error is not None:
            raise RuntimeError(f"job {ticket} failed in the worker: its output is not to be used") from error

    def done(self, ticket: int) -> bool:
        job = self._known(ticket)
        return job is None or job.done()

    def times(self, ticket: int) -> tuple[float, float]:
        job = self._known(ticket)
        if (job is not None and not job.done()) or ticket not in self._times:
            raise ValueError(f"job {ticket} is not finished, or too long ago: its times are kept for {_TIMES_OF} jobs")
        return self._times[ticket]

    def fail_next(self, piece: int) -> None:
        self._to_fail = True

    def read(self, address: int, n_bytes: int) -> int:
        return int(np.bitwise_xor.reduce(_memory(address, n_bytes).view(np.uint64)))

    def copy(self, to: int, source: int, n_bytes: int) -> None:
        ctypes.memmove(to, source, n_bytes)

    def normal(self, address: int, n_bytes: int, code: int, seed: int, sigma: float) -> None:
        """The bytes that cold.c's `piece_normal` writes: eight uniforms a value, by its position."""
        name = COMPUTED[(_F32, _F16, _BF16).index(code)]
        memory, width = _memory(address, n_bytes), DTYPES[name].block_bytes
        for first in range(0, n_bytes // width, _AT_ONCE):
            at = np.arange(first, min(first + _AT_ONCE, n_bytes // width), dtype=np.uint64)
            total = np.zeros(len(at), np.float32)
            for half in (1, 2):
                z = np.uint64(seed % 2**64) + (2 * at + np.uint64(half)) * np.uint64(0x9E3779B97F4A7C15)
                z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
                z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
                z ^= z >> np.uint64(31)
                total += z.view(np.uint16).reshape(-1, 4).sum(axis=1, dtype=np.uint32)
            values = np.float32(sigma) * (
                (total - np.float32(262140)) * np.float32(np.float32(1) / np.float32(53509.7))
            )
            memory[first * width : (first + len(at)) * width] = encode(name, values[None]).ravel()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._queue.shutdown()
        if self._workers:
            self._workers.shutdown()
        failed = sorted(ticket for ticket, job in self._jobs.items() if job.exception() is not None)
        self._jobs.clear()
        self._held.clear()
        if failed:
            raise RuntimeError(f"{len(failed)} jobs failed that nobody waited for, the first was job {failed[0]}")


def _memory(address: int, n_bytes: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * n_bytes).from_address(address))


def _check(rows, offsets, tokens, x: np.ndarray, n: int, out: np.ndarray, places, n_out: int) -> None:
    """Raises ValueError for arrays that do not fit each other: nothing may be read or written elsewhere."""
    for name, array in (("rows", rows), ("offsets", offsets), ("tokens", tokens), ("places", places)):
        if array.dtype != np.int64 or array.ndim != 1:
            raise ValueError(f"{name} is {array.dtype} {list(array.shape)}: pass one dimension of int64")
    if not (x.flags.c_contiguous and out.flags.c_contiguous) or out.ndim != 2 or out.shape[1] != x.shape[1]:
        raise ValueError(
            f"x {list(x.shape)} and out {list(out.shape)}: pass C-contiguous arrays of the same hidden size"
        )
    if len(places) != len(tokens):
        raise ValueError(f"{len(places)} places for {len(tokens)} pairs: each has one")
    if len(offsets) != len(rows) + 1:
        raise ValueError(f"{len(offsets)} offsets for {len(rows)} rows: there must be one more than rows")
    if offsets[0] != 0 or offsets[-1] != len(tokens) or (np.diff(offsets) < 0).any():
        raise ValueError(f"offsets must rise from 0 to the number of tokens, {len(tokens)}")
    if (rows == 0).any():
        raise ValueError(f"row {int(np.argmin(rows != 0))} has the address 0")
    for name, numbers, most in (("token", tokens, n), ("place", places, n_out)):
        if len(numbers) and (numbers.min() < 0 or numbers.max() >= most):
            raise ValueError(f"a {name} from {numbers.min()} to {numbers.max()}: there are 0 to {most - 1}")
