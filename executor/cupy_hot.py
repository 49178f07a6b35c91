"""The hot chain: experts that hit, computed on the GPU from the bytes of their slots. The face of cupy_hot.cu."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .backend import Rows
from .cold import ACTIVATIONS, RowLayout
from .cupy_driver import Kernel, KernelGraph, attribute, calls, compiled, need_cupy, refused
from .cupy_launch import FITS_NOT, UNIT, Launch, address_of
from .cupy_program import MAX_PAIRS, MAX_ROWS, Phase, check_layout, cut, program
from .errors import BadExecutor

TOKENS = (1, 2, 4, 8)  # kernels are compiled for rows of up to that many tokens
LAUNCHES = ("graph", "direct")
WORK = np.dtype(
    [
        ("slots", "<u8"), ("slot_bytes", "<u8"), ("x", "<u8"), ("act", "<u8"), ("out", "<u8"),
        ("alpha", "<f4"), ("limit", "<f4"), ("kind", "<u4"), ("rows", "<u4"),
        ("slot", "<u4", MAX_ROWS), ("first", "<u2", MAX_ROWS + 2),
        ("token", "<u2", MAX_PAIRS), ("to", "<u2", MAX_PAIRS),
    ],
    align=True,
)  # fmt: skip


def padded(layout: RowLayout) -> int:
    """Bytes of a slot for that layout: a row, and room so that the next slot begins on a line of 256."""
    return -(-layout.row_bytes // 256) * 256


class HotChain:
    """The kernels of one layout on CuPy's current device. Opening compiles them and makes their one buffer.

    slot_bytes: distance of two slots, bytes; default, `padded` of the layout. sms: blocks of a launch; default, one for
    each SM. Fewer imitate a smaller GPU (results must say so); then the second launch does not begin beside the first,
    since it would do so on other SMs. launches: `graph`, both kernels as one graph whose arguments are set anew each
    time, which costs the host less than `direct`, two launches; a stream that is being captured needs `direct`.

    The bytes of a (row, token) pair's result depend on the row's bytes and the token's input only: not on the slot,
    the other pairs of the launch (identities I1 and I2), `sms` or `launches`. Launches allocate nothing. Work is
    prepared in memory of the chain, so that two threads must not launch at once; launches on two streams at once share
    a buffer of activations, and must be ordered by the caller.
    """

    def __init__(
        self, layout: RowLayout, *, slot_bytes: int | None = None, sms: int | None = None, launches: str = "graph"
    ):
        if launches not in LAUNCHES:
            raise BadExecutor(f"launches={launches!r}: {' or '.join(LAUNCHES)}")
        check_layout(layout)
        self.layout = layout
        self.slot_bytes = padded(layout) if slot_bytes is None else slot_bytes
        if self.slot_bytes % 16 or self.slot_bytes < -(-layout.row_bytes // 16) * 16:
            raise BadExecutor(
                f"slot_bytes={self.slot_bytes} for rows of {layout.row_bytes}: a slot must hold a row and be a "
                f"multiple of 16; padded() gives {padded(layout)}"
            )
        cupy = need_cupy()
        capability = attribute("COMPUTE_CAPABILITY_MAJOR")
        if capability < 8:
            raise BadExecutor(f"a GPU of compute capability {capability}: the hot chain needs 8 (Ampere) or later")
        here = attribute("MULTIPROCESSOR_COUNT")
        self.sms = here if sms is None else sms
        if not 1 <= self.sms <= here:
            raise BadExecutor(f"sms={sms}: this GPU has {here}; give 1 to {here}")
        self.shapes = self._shapes()
        self.tokens = max(self.shapes)  # of one row in one entry of a launch
        self._act = cupy.empty((MAX_PAIRS, layout.inner), np.float32)
        self.work = np.zeros(1, WORK)
        self.work["slot_bytes"], self.work["act"] = self.slot_bytes, self._act.data.ptr
        self.work["kind"] = ACTIVATIONS[layout.activation]
        self.work["alpha"], self.work["limit"] = layout.alpha, layout.limit
        self._rows, self._x, self._out, self._slots = (self.work[name] for name in ("rows", "x", "out", "slots"))
        self._slot, self._first = self.work["slot"][0], self.work["first"][0]
        self._token, self._to = self.work["token"][0], self.work["to"][0]
        module = compiled(program(layout, self.shapes))
        self.kernels = {
            tokens: self._pair(module, tokens, self.sms == here and capability >= 9) for tokens in self.shapes
        }
        self.launches = launches
        graphs = self.kernels if launches == "graph" else {}
        self._graphs = {tokens: KernelGraph(pair) for tokens, pair in graphs.items()}
        self.quick = _quick(self.work, self._graphs) if graphs else None

    def _shapes(self) -> dict[int, tuple[Phase, Phase]]:
        whole = attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR")
        beside = (whole // 2 - attribute("RESERVED_SHARED_MEMORY_PER_BLOCK")) // 16 * 16
        shared = beside, attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        shapes = {}
        for tokens in TOKENS:
            first, second = (cut(self.layout, down, tokens, shared) for down in (False, True))
            if first and second:
                shapes[tokens] = first, second
        if not shapes:
            raise BadExecutor(
                f"hidden={self.layout.hidden}, inner={self.layout.inner}: the inputs of one token and the rings do not "
                f"fit the {shared[1]} bytes of shared memory of a block; compute this layer on the CPU"
            )
        return shapes

    def _pair(self, module: Any, tokens: int, beside: bool) -> tuple[Kernel, Kernel]:
        first, second = self.shapes[tokens]
        grid, block = self.sms, 32 * first.warps
        return (
            Kernel(module, f"gate_up_{tokens}", self.work, grid=grid, block=block, shared_bytes=first.shared_bytes),
            Kernel(
                module,
                f"down_{tokens}",
                self.work,
                grid=grid,
                block=block,
                shared_bytes=second.shared_bytes,
                dependent=beside,
            ),
        )

    def launch(
        self,
        stream: int,
        slots: int,
        slot_ids: ArrayLike,
        offsets: ArrayLike,
        tokens: ArrayLike,
        to: ArrayLike,
        x: int,
        out: int,
    ) -> None:
        """Queues both kernels for m rows; returns before they run.

        stream: handle of a CUDA stream. slots: device address of slot 0, a multiple of 16; slot i begins i * slot_bytes
        later. slot_ids [m]: slots of the rows, at most 64. offsets [m + 1], tokens [pairs]: row i computes
        tokens[offsets[i]:offsets[i + 1]], at least one, rows of x [n, hidden], float32 at that device address; at most
        128 pairs. to [pairs]: for each pair its row of out [*, hidden] float32, which is overwritten, not added to.

        The first kernel waits for what the stream holds; the second begins beside it, reading weights only. Rows that
        are still landing must therefore be waited for by the stream before this call. Raises BadExecutor for more than
        a launch holds; slots, tokens and addresses are not checked.
        """
        rows, pairs = len(slot_ids), len(tokens)  # pyright: ignore[reportArgumentType]
        most = 1
        if pairs != rows:
            offsets = np.asarray(offsets)
            most = int(np.diff(offsets).max(initial=1))
            if most > self.tokens:
                slot_ids, offsets = self._in_pieces(np.asarray(slot_ids), offsets)
                rows, most = len(slot_ids), self.tokens
        if not (1 <= rows <= MAX_ROWS and rows <= pairs <= MAX_PAIRS):
            raise BadExecutor(
                f"{rows} rows and {pairs} pairs in one launch of the hot chain: 1 to {MAX_ROWS} rows, each with a "
                f"token, and at most {MAX_PAIRS} pairs; a row counts once for each {self.tokens} of its tokens"
            )
        self._rows[0], self._slots[0], self._x[0], self._out[0] = rows, slots, x, out
        self._slot[:rows], self._first[: rows + 1] = slot_ids, offsets
        self._token[:pairs], self._to[:pairs] = tokens, to
        self.launch_prepared(stream, most)

    def compute(self, stream: int, work: Rows, x: int, out: int, events: tuple[int, int, int]) -> None:
        """Queues rows at addresses that are multiples of UNIT, with slot_bytes=UNIT, in as many launches as they need.

        events: handles to record before the work, after it, and after it again; 0 is none.
        """
        error = self.quick.start(stream, *work, x, out, *events) if self.quick else FITS_NOT
        if error != FITS_NOT:
            refused(error)
            return
        record = calls().event_record
        if events[0]:
            refused(record(events[0], stream))
        base = int(work.rows.min())
        ids = (work.rows - base) // UNIT
        for rows, offsets, a, b in launches(work.offsets, self.tokens):
            self.launch(stream, base, ids[rows], offsets, work.tokens[a:b], work.places[a:b], x, out)
        for event in filter(None, events[1:]):
            refused(record(event, stream))

    def launch_prepared(self, stream: int, most_tokens: int) -> None:
        """The same for a `work` that the caller has filled: rows, slots, x, out, slot, first, token, to. No checks."""
        for held in self.shapes:
            if most_tokens <= held:
                break
        else:
            raise BadExecutor(f"{most_tokens} tokens on one row: this chain holds {self.tokens}; use launch()")
        if self._graphs:
            self._graphs[held].launch(stream)  # the same two kernels, with the same waits
            return
        gate_up, down = self.kernels[held]
        gate_up.launch(stream)  # waits for all that the stream holds
        down.launch(stream)  # begins at once, waits for gate_up before it reads activations

    def _in_pieces(self, slot_ids: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same pairs with rows of too many tokens repeated, each time for the next of them."""
        cuts = [np.arange(begin, end, self.tokens) for begin, end in itertools.pairwise(offsets)]
        return np.repeat(slot_ids, [len(each) for each in cuts]), np.append(np.concatenate(cuts), offsets[-1])


def _quick(work: np.ndarray, graphs: dict[int, KernelGraph]) -> Launch:
    """The same launches from compiled code."""
    table = np.array([(tokens, *graph.handles) for tokens, graph in sorted(graphs.items())], np.int64)
    of = calls()
    set_node, launch, record = map(address_of, (of.graph_set, of.graph_launch, of.event_record))
    return Launch(work, table, set_node=set_node, launch=launch, record=record)


def launches(offsets: np.ndarray, most: int) -> Iterator[tuple[list[int], list[int], int, int]]:
    """(rows, offsets from 0, first pair, end) of launches that hold at most 64 rows and 128 pairs.

    A row of more than `most` tokens counts once for each `most` of them, and may go on in the next launch.
    """
    ends = offsets.tolist()
    if len(ends) <= MAX_ROWS and ends[-1] == len(ends) - 1:  # one token a row
        yield list(range(len(ends) - 1)), ends, 0, ends[-1]
        return
    rows: list[int] = []
    starts, first = [0], 0
    for row, (begin, end) in enumerate(itertools.pairwise(ends)):
        for a in range(begin, end, most):
            b = min(end, a + most)
            if len(rows) == MAX_ROWS or b - first > MAX_PAIRS:
                yield rows, starts, first, first + starts[-1]
                first, rows, starts = first + starts[-1], [], [0]
            rows.append(row)
            starts.append(b - first)
    if rows:
        yield rows, starts, first, first + starts[-1]
