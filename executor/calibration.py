"""Measures what a machine takes for each part of a tick, on any backend: plain numbers, for a machine file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from slotwise.policies import Pool

from .backend import Backend
from .calibration_chains import beside, by_most, sheets, wake
from .calibration_host import TURNS, HostLoops, overlap_s
from .calibration_link import computed_figures, link_figures
from .calibration_policies import POLICIES, policy_figures
from .ceilings import l3_bytes
from .cold import ColdChain, RowLayout
from .cores import caches_bytes
from .errors import BadExecutor
from .executor import Executor
from .stopwatch import FLOOR, Value
from .store import HostStore

LAYERS = 4  # of the model that ticks are measured on, at least
MOST_LAYERS = 128  # whose rows are kept: of very small ones more would take longer than all that is measured
TOKENS = (1, 2, 4, 8)  # of a step, to the usual batch gate
PAIRS = (1, 2, 4)  # tokens that a row serves
MANY_TOKENS = (32, 256)  # of the steps of a prompt
POOL_BYTES = 512 << 20  # rows that a chain reads in turn, at least: 8 times the L2 of an H200


class Effort(NamedTuple):
    """How much is measured: bytes of rows (None: 8 times L3), steps of each kind of tick, seconds for parts of it."""

    pool_bytes: int | None = None
    steps: int = 60
    sheets_s: float = 40.0
    beside_s: float = 1.0
    waits: int = 40


FULL = Effort()
QUICK = Effort(pool_bytes=4 << 20, steps=6, sheets_s=0.5, beside_s=0.05, waits=4)


class Measured(NamedTuple):
    """Figures by name with their spread, and of single policies; the rest as the machine file has it, as plain rows."""

    figures: dict[str, Value]
    sheets: list[dict[str, Any]]
    wake: list[dict[str, float]]
    contention: list[dict[str, Any]]
    policies: dict[str, dict[str, Value]]
    overlap: dict[str, Value]


def calibrate(
    make: Callable[[], Backend],
    chain: ColdChain,
    layout: RowLayout,
    *,
    n_experts: int,
    top_k: int,
    link_pad: int = 0,
    policies: Sequence[str] = (),
    effort: Effort = FULL,
    seed: int = 0,
    progress: Callable[[int, int, str], None] | None = None,
) -> Measured:
    """Measures everything, with rows of one layout.

    make: a new backend at each call. chain: opened. n_experts: of a layer, at least 4 * top_k, so that a tick finds
    experts that no slot holds. link_pad: as `Executor` takes it. policies: whose calls are measured
    beside lru's and those of POLICIES. progress: called with (parts done, parts, the next).
    Raises BadExecutor, BadPolicy.
    """
    if n_experts < 4 * top_k or top_k < 2:
        raise BadExecutor(f"experts={n_experts}, top_k={top_k}: at least 2 chosen ones, and four times as many experts")
    parts = (
        "the host", "hot and cold chain", "the host", "the link", "waking up", "chains and link beside each other",
        "the host", "what policies take",
    )  # fmt: skip
    begun = enumerate((*parts, "done"))

    def said() -> None:
        done, what = next(begun)
        if progress:
            progress(done, len(parts), what)

    random = np.random.default_rng(seed)
    with closing(make()) as kept:
        pool_bytes = effort.pool_bytes or max(POOL_BYTES, 8 * l3_bytes())
        stored = min(MOST_LAYERS, max(1, -(-pool_bytes // (n_experts * layout.row_bytes))))
        layouts = [layout] * max(LAYERS, stored)
        store = HostStore(layouts, n_experts, kept, alias_layers=stored).fill(seed, chain)
        loops = HostLoops(
            make, store, chain, top_k=top_k, link_pad=link_pad, steps=effort.steps, random=random
        )  # fmt: skip
        bench = partial(_bench, make, store, chain, min(pool_bytes, POOL_BYTES), top_k=top_k, link_pad=link_pad)
        said()
        loops.turns(TURNS // 3)
        said()
        with bench() as executor:
            grids, rates = sheets(
                executor, random, tokens=TOKENS, pairs=PAIRS, many=MANY_TOKENS, budget_s=effort.sheets_s
            )
        said()
        loops.turns(TURNS // 3)
        said()
        with bench() as executor:
            figures = link_figures(executor, random, rounds=effort.steps) | by_most(
                executor, random, times=effort.waits
            )
            said()
            late = wake(executor, random, times=effort.waits)
            said()
            contention, overlap = beside(executor, random, seconds=effort.beside_s)
            figures["copy_computed_bytes_per_s"], share = computed_figures(
                executor, random, rounds=effort.steps, link=figures,
                link_with_cold=contention[0]["link_with_cold"]["value"],
            )  # fmt: skip
            contention[0]["cold_with_own"] = share._asdict()
            figures["own_caches_bytes"] = Value(caches_bytes(2), 0.0)
        said()
        loops.turns(TURNS - 2 * (TURNS // 3))
        host = loops.figures(_chain_s(grids, "cold", 1) * (1 / contention[0]["cold_with_link"]["value"] - 1))
        gain_s = _gain_s(grids, top_k // 2, host["submit_hot_s"].value, *(each.value for each in overlap.values()))
        overlap["overlap_s"] = overlap_s(
            make, store, chain, top_k=top_k, steps=effort.steps, gain_s=gain_s, random=random
        ).checked()  # fmt: skip
        said()
        calls = policy_figures(
            (*POLICIES, *policies), host, n_experts=n_experts, top_k=top_k, steps=effort.steps, random=random
        )  # fmt: skip
    said()
    every = {name: Value(max(FLOOR, value), spread) for name, (value, spread) in (rates | figures | host).items()}
    return Measured({name: value.checked() for name, value in every.items()}, grids, late, contention, calls, overlap)


def _chain_s(grids: list[dict[str, Any]], chain: str, rows: int) -> float:
    """What a chain takes for so many rows of one token each."""
    (grid,) = (grid for grid in grids if grid["tokens"] == 1 and grid["chain"] == chain)
    return float(np.interp(rows, grid["rows"], [line[0] for line in grid["seconds"]]))


def _gain_s(
    grids: list[dict[str, Any]], rows: int, submit_hot_s: float, hot_with_cold: float, cold_with_hot: float
) -> float:
    """What both chains at once gain on so many rows of one token each, at the shares of speed that they keep."""
    hot_s, cold_s = (_chain_s(grids, chain, rows) for chain in ("hot", "cold"))
    left_s = max(0.0, cold_s - submit_hot_s)
    first_s = min(hot_s / hot_with_cold, left_s / cold_with_hot)
    return hot_s + cold_s - first_s - max(hot_s - first_s * hot_with_cold, left_s - first_s * cold_with_hot)


@contextmanager
def _bench(
    make: Callable[[], Backend], store: HostStore, chain: ColdChain, pool_bytes: int, *, top_k: int, link_pad: int
) -> Iterator[Executor]:
    """An executor whose slots hold so many bytes of rows, timed; what chains and link are measured on.

    Its pool decides nothing: copies and chains are called directly.
    """
    a_slot_each = store.n_layers * store.row_bytes[0]
    slots = min(store.n_experts, max(2 * top_k, -(-pool_bytes // a_slot_each)))
    pool = Pool("lru", n_layers=store.n_layers, n_experts=store.n_experts, slots=slots, full=True)
    with Executor(
        pool, store, make(), chain, top_k=top_k, headroom_bytes=0, link_pad=link_pad,
        max_tokens=max(MANY_TOKENS), timing=True,
    ) as executor, executor.backend.queue():  # fmt: skip
        _fill(executor)
        yield executor


def _fill(executor: Executor) -> None:
    """A row in every slot."""
    backend, transfers, slots = executor.backend, executor.transfers, executor.slots
    for layer, count in enumerate(executor.pool.physical_slots):
        for first in range(0, count, 64):
            some = range(first, min(count, first + 64))
            backend.copy([transfers.copy_of(layer, slot, slots.address(layer, slot)) for slot in some])
    backend.drain()
    backend.copy_spans()
