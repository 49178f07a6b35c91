"""What the link takes for a batch of copies: beyond its rows, for each row, and for each byte of them."""

from __future__ import annotations

import statistics
import time
from itertools import pairwise
from typing import Any

import numpy as np

from .backend import Copy
from .calibration_chains import Bench
from .executor import Executor
from .stopwatch import FLOOR, Value, rate_of, settled

ROWS = (1, 8)
SMALLER = 16  # the part of a row that tells what a row costs beyond its bytes
QUEUED = 4  # speculative batches that are handed over at once
COMPUTED = (1, 2, 4)  # rows of a batch that the cold chain computes at the same time


def link_figures(executor: Executor, random: np.random.Generator, *, rounds: int) -> dict[str, Value]:
    """copy_demand_* for batches that find the link idle, copy_ahead_* for such as queue behind one another."""
    full = executor.store.row_bytes[0]
    small = max(1, full // SMALLER)
    cells = [(kind, rows, size) for kind in ("demand", "ahead") for rows in ROWS for size in (small, full)]
    taken: dict[tuple[str, int, int], list[float]] = {cell: [] for cell in cells}
    for turn in range(rounds + 1):
        for i in random.permutation(len(cells)):
            kind, rows, size = cells[i]
            batches = 1 if kind == "demand" else QUEUED
            seconds = _moved(executor, random, batches, rows, size) / batches
            if turn:
                taken[cells[i]].append(seconds)
    found: dict[str, Value] = {}
    for kind in ("demand", "ahead"):
        value = {cell[1:]: settled(seconds) for cell, seconds in taken.items() if cell[0] == kind}
        found |= {f"copy_{kind}_{name}": figure for name, figure in _figures(value, small, full).items()}
    return found


def computed_figures(
    executor: Executor, random: np.random.Generator, *, rounds: int, link: dict[str, Value], link_with_cold: float
) -> tuple[Value, Value]:
    """Rows that the cold chain computes while they are loaded: the link's bytes per second within such a batch, and the
    share of its own speed that the cold chain keeps.

    What cores have just read lies in caches of theirs, from where a device may get it more slowly than from memory.
    link: the figures of other batches, from which this takes what a batch and a row cost beyond bytes. link_with_cold:
    the speed of the link beside the cold chain, which a price counts anyhow.
    """
    bench = Bench(executor, random)
    taken: dict[str, dict[int, list[float]]] = {
        name: {rows: [] for rows in COMPUTED} for name in ("alone", "cold", "link")
    }
    for turn in range(rounds + 1):
        for rows in random.permutation(COMPUTED).tolist():
            alone = bench.cold(1, rows, 1)
            work = bench.rows("cold", 1, rows, 1)
            copies = bench.copies(work.rows)
            job, submitted = bench.start(1, work), time.monotonic()
            ticket = executor.transfers.start(copies)
            cold = bench.waited(job, submitted)
            for name, seconds in (("alone", alone), ("cold", cold), ("link", _spent(executor, ticket))):
                if turn:
                    taken[name][rows].append(seconds)
    found = {name: [settled(each) for each in seconds.values()] for name, seconds in taken.items()}
    moving_s = sum(each.value for each in found["link"]) - sum(
        (1 - link_with_cold) * cold.value + link["copy_demand_batch_s"].value + rows * link["copy_demand_row_s"].value
        for rows, cold in zip(COMPUTED, found["cold"], strict=True)
    )
    spread = {name: max(each.spread / each.value for each in found[name]) for name in ("link", "cold")}
    shares = [alone.value / cold.value for alone, cold in zip(found["alone"], found["cold"], strict=True)]
    share = min(1.0, max(0.01, statistics.mean(shares)))
    return (
        rate_of(sum(COMPUTED) * executor.store.row_bytes[0], max(FLOOR, moving_s), spread["link"]),
        Value(share, share * spread["cold"]).checked(),
    )


def _figures(value: dict[tuple[int, int], Value], small: int, full: int) -> dict[str, Value]:
    """batch + rows * row + bytes / B through the means at (rows, bytes of a row)."""
    ((one, many),) = pairwise(ROWS)
    a_full, a_small = ((value[many, size].value - value[one, size].value) / (many - one) for size in (full, small))
    grows = (a_full - a_small) / (full - small) if full > small else 0.0
    if not 0 < grows * full <= a_full:  # rows so small that their bytes do not show: all of it is theirs
        grows = max(FLOOR, a_full) / full
    row, last = max(FLOOR, a_full - grows * full), value[many, full]
    share = last.spread / last.value
    batch = max(FLOOR, value[one, full].value - row - grows * full)
    return {
        "batch_s": Value(batch, value[one, full].spread),
        "row_s": Value(row, last.spread / many),
        "bytes_per_s": rate_of(1, grows, share),
    }


def _moved(executor: Executor, random: np.random.Generator, batches: int, rows: int, size: int) -> float:
    """Seconds in which the link moved so many batches, padding too, of parts of rows of random experts."""
    store, slots = executor.store, executor.slots
    counts = executor.pool.physical_slots
    ticket = None
    for _ in range(batches):
        layers, experts = random.integers(0, store.n_layers, rows), random.integers(0, store.n_experts, rows)
        copies = [
            Copy(store.addresses[layer][expert], slots.address(layer, i % counts[layer]), size)
            for i, (layer, expert) in enumerate(zip(layers.tolist(), experts.tolist(), strict=True))
        ]
        ticket = executor.transfers.start(copies)
    return _spent(executor, ticket)


def _spent(executor: Executor, ticket: Any) -> float:
    """Seconds in which the link moved batches, padding too, until this one has landed."""
    backend = executor.backend
    while not backend.landed(ticket):
        time.sleep(1e-5)
    backend.drain()
    return sum(ended - began for began, ended, _ in backend.copy_spans())
