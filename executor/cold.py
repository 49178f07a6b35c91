"""The cold chain: experts that miss the pool, computed on the CPU by a native worker. This is the face of cold.c."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .cores import usual_threads
from .dtypes import dtype_named
from .errors import BadExecutor, WorkerFailed

ACTIVATIONS = {"swiglu": 0, "geglu": 1, "swiglu_clamped": 2}
ROUNDINGS = ("float32", "int8")
SPIN_US = 1000.0


@dataclass(frozen=True)
class RowLayout:
    """What the bytes of a row mean: gate [inner, hidden], up [inner, hidden], down [hidden, inner], then biases.

    dtypes: of gate, up and down, names of `dtypes.DTYPES`. Output rows lie one after another without padding.
    activation: `swiglu` silu(g) * u; `geglu` gelu(g) * u, gelu in its tanh form (Gemma); `swiglu_clamped`
    g' * sigmoid(alpha * g') * (u' + 1), g' = min(g, limit), u' = clip(u, -limit, limit) (gpt-oss: alpha 1.702,
    limit 7; GptOssExperts of Hugging Face transformers).
    offsets: of gate, up and down in the row, bytes; by default one after another.
    biases: of the float32 biases of gate, up and down in the row, bytes, -1 for none; True puts all behind the weights.
    """

    hidden: int
    inner: int
    dtypes: tuple[str, str, str]
    activation: str = "swiglu"
    alpha: float = 1.702
    limit: float = 7.0
    offsets: tuple[int, int, int] | None = None
    biases: tuple[int, int, int] | bool = False

    def __post_init__(self):
        if self.activation not in ACTIVATIONS:
            raise BadExecutor(f"no activation {self.activation!r}; the executor computes {', '.join(ACTIVATIONS)}")
        if len(self.dtypes) != 3:
            raise BadExecutor(f"dtypes={self.dtypes!r}: give three, of gate, up and down")
        for name, value in (("alpha", self.alpha), ("limit", self.limit)):
            if not math.isfinite(value):
                raise BadExecutor(f"{name}={value} of the activation: it must be finite")
        _ = self.sizes

    @cached_property
    def sizes(self) -> tuple[int, int, int]:
        """Bytes of gate, up and down. Raises BadExecutor if an output row is not whole blocks."""
        gate, up, down = (dtype_named(name) for name in self.dtypes)
        across, along = self.inner * gate.bytes_of(self.hidden), self.inner * up.bytes_of(self.hidden)
        return across, along, self.hidden * down.bytes_of(self.inner)

    @property
    def starts(self) -> tuple[int, int, int]:
        """Where gate, up and down begin in a row, bytes."""
        gate, up, _ = self.sizes
        return self.offsets or (0, gate, gate + up)

    @property
    def bias_starts(self) -> tuple[int, int, int]:
        """Where the float32 biases of gate, up and down begin in a row, bytes; -1 where there is none."""
        if not isinstance(self.biases, bool):
            return self.biases
        end = max(start + size for start, size in zip(self.starts, self.sizes, strict=True))
        return (end, end + 4 * self.inner, end + 8 * self.inner) if self.biases else (-1, -1, -1)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        lengths = (4 * self.inner, 4 * self.inner, 4 * self.hidden)
        ends = [start + size for start, size in zip(self.starts, self.sizes, strict=True)]
        ends += [start + length for start, length in zip(self.bias_starts, lengths, strict=True) if start >= 0]
        return max(ends)


class Layer(NamedTuple):
    """A layout that a chain has taken in. `handle` is the chain's own number for it."""

    handle: int
    layout: RowLayout


def native() -> ModuleType:
    """The extension module. Raises BadExecutor, saying how to get it, where it was not built."""
    try:
        from . import _cold  # pyright: ignore[reportAttributeAccessIssue]
    except ImportError as missing:
        raise BadExecutor(
            "the cold chain needs the extension slotwise.executor._cold, which was not built when slotwise was "
            f"installed ({missing}): install a C compiler and the headers of this Python (Debian: apt-get install gcc "
            "libc6-dev python3-dev), then run the pip install of slotwise again, where -v shows why a build fails; or "
            "ask for the slower chain that needs neither: --cold numba"
        ) from missing
    return _cold


def cold_module(kind: str) -> ModuleType:
    """What has the `variants` and `Pool` of a kind: `native`, or a file `cold_<kind>.py`. Raises BadExecutor."""
    if kind == "native":
        return native()
    known = [path.stem.removeprefix("cold_") for path in sorted(Path(__file__).parent.glob("cold_*.py"))]
    if kind not in known:
        raise BadExecutor(f"no cold chain {kind!r}; there are native, {', '.join(known)}")
    return import_module(f".cold_{kind}", __package__)


def _close(pool: Any, process: int) -> None:
    if os.getpid() == process:  # after a fork the threads are the parent's
        pool.close()


class ColdChain:
    """Threads that compute the experts of jobs, in the order of submission. Also a context manager.

    threads: default, `usual_threads`.
    spin_us: how long an idle thread watches memory before it sleeps: by default about as long as a layer's attention
    takes, since a thread that must be woken is late by tens of microseconds. Whoever waits watches 20 ms at least.
    cores: one core number per thread to pin it to; None pins nothing.
    variant: `avx512`, `avx2`, `neon` or `plain`; default, the best that this processor has.
    activations: `float32`, or `int8`: inputs and activations are rounded to int8 in blocks of 32 before they meet a
    block dtype. That is faster where the CPU is the limit, and the error is about a hundredth instead of 1e-5.
    kind: `native`, the extension; or `numba`, slower and for fewer dtypes, which nothing turns to by itself.

    The bytes of a result depend on its token, row and variant: not on the threads, the job or the other tokens in it.
    """

    def __init__(
        self,
        threads: int | None = None,
        *,
        spin_us: float = SPIN_US,
        cores: Sequence[int] | None = None,
        variant: str | None = None,
        activations: str = "float32",
        kind: str = "native",
    ):
        if threads is None:
            threads = len(cores) if cores is not None else usual_threads()
        if not 1 <= threads <= 1024:
            raise BadExecutor(f"threads={threads}: from 1 to 1024")
        if cores is not None and len(cores) != threads:
            raise BadExecutor(f"{len(cores)} cores for {threads} threads: give one core for each thread")
        if not 0 <= spin_us <= 1e6:
            raise BadExecutor(f"spin_us={spin_us}: microseconds from 0 to 1000000")
        if activations not in ROUNDINGS:
            raise BadExecutor(f"activations={activations!r}: {' or '.join(ROUNDINGS)}")
        self.threads = threads
        self.spin_us = spin_us
        self.cores = None if cores is None else tuple(cores)
        self.variant = variant
        self.activations = activations
        self.kind = kind
        self._pool: Any = None

    def open(self) -> ColdChain:
        """Starts the threads. Raises BadExecutor without the extension, or for a variant or core that is not here."""
        if self._pool is not None:
            raise BadExecutor("the cold chain is open already: close it first, or open another")
        module = cold_module(self.kind)
        here = module.variants()
        if self.variant is None:
            self.variant = here[0]
        if self.variant not in here:
            raise BadExecutor(f"variant {self.variant!r}: this processor runs {', '.join(here)}")
        missing = set(self.cores or ()) - os.sched_getaffinity(0)
        if missing:
            raise BadExecutor(f"cores {sorted(missing)}: this process may run on {sorted(os.sched_getaffinity(0))}")
        self._pool = module.Pool(self.threads, self.spin_us, self.cores, self.variant)
        self._closing = weakref.finalize(self, _close, self._pool, os.getpid())  # also at exit, before memory goes
        return self

    def layer(self, layout: RowLayout) -> Layer:
        """Takes in a layout. Raises BadExecutor for int8 activations if hidden or inner is no multiple of 32."""
        rounds = self.activations == "int8"
        if rounds and (layout.hidden % 32 or layout.inner % 32):
            raise BadExecutor(
                f"hidden={layout.hidden}, inner={layout.inner} with activations='int8': both must be multiples of 32; "
                "use activations='float32'"
            )
        codes, places = tuple(dtype_named(name).code for name in layout.dtypes), (layout.starts, layout.bias_starts)
        activation = (ACTIVATIONS[layout.activation], layout.alpha, layout.limit)
        return Layer(self._opened.layer(layout.hidden, layout.inner, codes, *places, *activation, rounds), layout)

    def submit(
        self,
        layer: Layer,
        rows: NDArray[np.int64],
        offsets: NDArray[np.int64],
        tokens: NDArray[np.int64],
        x: NDArray[np.float32],
        out: NDArray[np.float32],
        places: NDArray[np.int64] | None = None,
        counter: int = 0,
    ) -> int:
        """Queues a job and returns its ticket. At most 64 jobs are unfinished; one more waits for room.

        rows: addresses of m rows of that layout. They must stay readable until the job is done.
        offsets, tokens: row i computes tokens[offsets[i]:offsets[i + 1]], indices into x; offsets has m + 1 items.
        x: [n, hidden], C-contiguous; without a copy if it begins at a multiple of 64 bytes and hidden is one of 16.
        out: [pairs, hidden], C-contiguous; pair j is written to out[places[j]], nothing is summed.
        places: [pairs], all different; by default 0, 1, 2, ... counter: address of a 32-bit word that
        grows by one when the job is finished, failed or not; 0 is none.
        x and out are held until the job is waited for. Wrong arrays raise BadExecutor, and nothing is queued.
        """
        places = np.arange(len(tokens), dtype=np.int64) if places is None else places
        if x.dtype != np.float32 or out.dtype != np.float32:
            raise BadExecutor(f"x is {x.dtype} and out is {out.dtype}: both must be float32")
        if x.ndim != 2 or x.shape[1] != layer.layout.hidden:
            raise BadExecutor(f"x has the shape {x.shape}: the layer takes [n, {layer.layout.hidden}]")
        try:
            return self._opened.submit(layer.handle, rows, offsets, tokens, x, len(x), out, places, len(out), counter)
        except (ValueError, BufferError) as wrong:
            raise BadExecutor(str(wrong)) from wrong

    def wait(self, ticket: int) -> None:
        """Returns when the job is finished. Raises WorkerFailed if it failed: its output is not to be used."""
        try:
            self._opened.wait(ticket)
        except RuntimeError as failed:
            raise WorkerFailed(str(failed)) from failed

    def done(self, ticket: int) -> bool:
        """Whether the job is finished; `wait` then returns at once, or says that it failed."""
        return self._opened.done(ticket)

    def times(self, ticket: int) -> tuple[float, float]:
        """When a finished job began and ended, seconds as `time.monotonic` counts. Kept for the last 64 jobs."""
        return self._opened.times(ticket)

    def fail_next(self, piece: int = 0) -> None:
        """Makes the next job fail at that piece of its work: for tests of what follows."""
        self._opened.fail_next(piece)

    def read(self, memory: NDArray[Any]) -> int:
        """Reads the whole array with all threads: a chain's ceiling. Returns the xor of its 8-byte words."""
        _whole(memory)
        return self._opened.read(memory.ctypes.data, memory.nbytes)

    def copy(self, to: NDArray[Any], source: NDArray[Any]) -> None:
        """Copies all bytes with all threads, touching new memory in the threads that will read it."""
        _whole(to)
        _whole(source)
        if to.nbytes != source.nbytes:
            raise BadExecutor(f"{source.nbytes} bytes into {to.nbytes}: both must be the same")
        self._opened.copy(to.ctypes.data, source.ctypes.data, to.nbytes)

    def fill_normal(self, memory: NDArray[Any], dtype: str, seed: int, sigma: float = 1.0) -> None:
        """Fills an array in f32, f16 or bf16, near normal (a sum of eight uniforms); as of its seed on any threads."""
        if dtype not in ("f32", "f16", "bf16"):
            raise BadExecutor(f"fill_normal in {dtype!r}: it fills f32, f16 and bf16; use encode() for the others")
        _whole(memory)
        self._opened.normal(memory.ctypes.data, memory.nbytes, dtype_named(dtype).code, seed, sigma)

    def close(self) -> None:
        """Finishes what is queued and joins the threads. Raises WorkerFailed for failures that nobody waited for."""
        if self._pool is not None and self._closing.alive:
            self._closing.detach()
            try:
                self._pool.close()
            except RuntimeError as failed:
                raise WorkerFailed(str(failed)) from failed

    @property
    def _opened(self) -> Any:
        if self._pool is None:
            raise BadExecutor("the cold chain is not open: call open(), or use it in a with statement")
        return self._pool

    def __enter__(self) -> ColdChain:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()


def _whole(memory: NDArray[Any]) -> None:
    if not memory.flags.c_contiguous:
        raise BadExecutor(f"an array of shape {memory.shape} with gaps: pass a C-contiguous one")
