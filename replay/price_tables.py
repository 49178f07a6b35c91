"""What each chain takes for the rows of a trace: a machine's sheets, or what its rates say, as arrays to look up."""

# pyright: reportCallIssue=false

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit

from slotwise.policies.pointers import data_of

from .errors import BadOption
from .machine import Machine
from .machine_figures import Sheet

ROW_KNOTS = (1, 2, 8, 64)
ESTIMATED_SPREAD = 0.1


def sheets_for(machine: Machine, chain: str, row_bytes: int, threads: int) -> tuple[list[Sheet], bool]:
    """The sheets of a chain for rows of this size by rising tokens, and whether they were measured for it.

    Where the file has none, one that the rates imply: reading the rows, or computing where many tokens share them.
    Raises BadOption where the file has sheets of this size, but for other threads.
    """
    mine = [sheet for sheet in machine.sheets if sheet.chain == chain and sheet.row_bytes == row_bytes]
    found = [sheet for sheet in mine if chain == "hot" or sheet.threads == threads]
    if found:
        return sorted(found, key=lambda sheet: sheet.tokens), True
    if mine:
        known = ", ".join(sorted({str(sheet.threads) for sheet in mine}))
        raise BadOption(
            f"cpu_threads={threads}: {machine.name} was measured with {known} threads; ask for one of these"
        )
    if chain == "cold" and threads != machine.cpu_threads:
        raise BadOption(
            f"cpu_threads={threads}: the figures of {machine.name} are those of {machine.cpu_threads} threads; ask for "
            "these, or leave it out"
        )
    memory = "device" if chain == "hot" else "host"
    read, compute = machine[f"{memory}_read_bytes_per_s"], machine[f"{memory}_compute_bytes_per_s"]
    shared = max(1.0, compute / read)  # tokens a row from which on computing takes longer than reading
    knots = (1.0, shared, 1000 * shared) if shared > 1 else (1.0, 1000.0)
    seconds = tuple(
        tuple(machine[f"{chain}_base_s"] + rows * row_bytes * max(1 / read, pairs / compute) for pairs in knots)
        for rows in ROW_KNOTS
    )
    spread = tuple(tuple(ESTIMATED_SPREAD * each for each in line) for line in seconds)
    return [Sheet(chain, row_bytes, 1, ROW_KNOTS, knots, seconds, spread, threads if chain == "cold" else None)], False


def pack(sheets: Sequence[Sequence[Sequence[Sheet]]]) -> tuple[np.ndarray, np.ndarray]:
    """Sheets [kind][chain] -> arrays for `chain_s`.

    The first [kinds, 2, sheets, 2, rows + 1, pairs + 1]: seconds and spread, the axes at index 0, tokens in the corner.
    The second [kinds, 2, 1 + 2 * sheets]: how many sheets, then rows and pairs of each.
    """
    every = [sheet for kind in sheets for chain in kind for sheet in chain]
    most = max(len(chain) for kind in sheets for chain in kind)
    n_rows, n_pairs = max(len(sheet.rows) for sheet in every), max(len(sheet.pairs_per_row) for sheet in every)
    table = np.zeros((len(sheets), 2, most, 2, n_rows + 1, n_pairs + 1))
    shape = np.zeros((len(sheets), 2, 1 + 2 * most), np.int64)
    for k, kind in enumerate(sheets):
        for c, chain in enumerate(kind):
            shape[k, c, 0] = len(chain)
            for i, sheet in enumerate(chain):
                r, p = len(sheet.rows), len(sheet.pairs_per_row)
                shape[k, c, 1 + 2 * i : 3 + 2 * i] = r, p
                table[k, c, i, :, 0, 0] = sheet.tokens
                table[k, c, i, :, 1 : r + 1, 0] = sheet.rows
                table[k, c, i, :, 0, 1 : p + 1] = sheet.pairs_per_row
                table[k, c, i, 0, 1 : r + 1, 1 : p + 1] = sheet.seconds
                table[k, c, i, 1, 1 : r + 1, 1 : p + 1] = sheet.spread_s
    return table, shape


@njit(cache=True)
def single(sheets, shape, most):
    """[kinds, 2, most + 1, 2]: seconds and spread of steps of one token, for 0 to `most` rows."""
    out = np.zeros((sheets.shape[0], 2, most + 1, 2))
    for kind in range(sheets.shape[0]):
        for chain in range(2):
            for rows in range(1, most + 1):
                out[kind, chain, rows, 0] = at_tokens(sheets, shape, kind, chain, 1, rows, 1.0, 0)
                out[kind, chain, rows, 1] = at_tokens(sheets, shape, kind, chain, 1, rows, 1.0, 1)
    return out


@njit(cache=True)
def at_tokens(sheets, shape, kind, chain, tokens, rows, each, what):
    """Seconds (what 0) or spread (1) of so many rows, each for so many tokens of a step."""
    n_sheets, n_rows, n_pairs = sheets.shape[2], sheets.shape[4], sheets.shape[5]
    return on_sheets(data_of(sheets), data_of(shape), n_sheets, n_rows, n_pairs, kind, chain, tokens, rows, each, what)


@njit(forceinline=True)
def chain_s(alone, known, sheets, shape, n_sheets, n_rows, n_pairs, kind, chain, tokens, rows, pairs, most, by_most):
    """Seconds of a chain (0 hot, 1 cold) and their spread, for so many rows that serve so many pairs.

    alone, sheets, shape: pointers to what `single` and `pack` made; known: rows that `alone` knows; n_sheets, n_rows,
    n_pairs: axes 2, 4, 5 of sheets. most: tokens of the row that has the most. by_most: how far from the mean to that,
    rounded up to a power of two, as which kernels are compiled, all rows are priced.
    """
    if tokens == 1 and rows <= known:
        at = ((kind * 2 + chain) * (known + 1) + rows) * 2
        return alone[at], alone[at + 1]
    each = pairs / rows
    if by_most > 0:
        held = 1
        while held < most:
            held *= 2
        each += by_most * (held - each)
    return (
        on_sheets(sheets, shape, n_sheets, n_rows, n_pairs, kind, chain, tokens, rows, each, 0),
        on_sheets(sheets, shape, n_sheets, n_rows, n_pairs, kind, chain, tokens, rows, each, 1),
    )


@njit(error_model="numpy")
def on_sheets(sheets, shape, n_sheets, n_rows, n_pairs, kind, chain, tokens, rows, each, what):
    """Between the sheets of the next fewer and the next more tokens; beyond the last, the last."""
    first, size = (kind * 2 + chain) * n_sheets, n_rows * n_pairs
    counts = (kind * 2 + chain) * (1 + 2 * n_sheets)
    upper = 0
    while upper < shape[counts] - 1 and sheets[(first + upper) * 2 * size] < tokens:
        upper += 1
    there = sheets[(first + upper) * 2 * size]
    at = ((first + upper) * 2 + what) * size
    high = on_sheet(sheets, at, n_pairs, shape[counts + 1 + 2 * upper], shape[counts + 2 + 2 * upper], rows, each)
    if upper == 0 or tokens >= there:
        return high
    at -= 2 * size
    below = sheets[(first + upper - 1) * 2 * size]
    low = on_sheet(sheets, at, n_pairs, shape[counts + 2 * upper - 1], shape[counts + 2 * upper], rows, each)
    return low + (tokens - below) / (there - below) * (high - low)


@njit(error_model="numpy")
def on_sheet(sheets, first, step, n_rows, n_pairs, rows, each):
    """Linear between the knots of both axes; beyond the last it goes on, but never falls. A row of it has `step`."""
    at = 1
    while at < n_rows - 1 and sheets[first + (at + 1) * step] <= rows:
        at += 1
    low = along(sheets, first + at * step, first, n_pairs, each)
    if n_rows == 1:
        return low * max(1.0, rows / sheets[first + step])
    if rows <= sheets[first + step]:
        return low
    high = along(sheets, first + (at + 1) * step, first, n_pairs, each)
    here, there = sheets[first + at * step], sheets[first + (at + 1) * step]
    value = low + (rows - here) / (there - here) * (high - low)
    return max(value, high) if rows > sheets[first + n_rows * step] else value


@njit(error_model="numpy")
def along(sheets, values, knots, count, at):
    """The same for one axis, from index 1 on."""
    if count == 1 or at <= sheets[knots + 1]:
        return sheets[values + 1]
    i = 1
    while i < count - 1 and sheets[knots + i + 1] <= at:
        i += 1
    here, there = sheets[knots + i], sheets[knots + i + 1]
    value = sheets[values + i] + (at - here) / (there - here) * (sheets[values + i + 1] - sheets[values + i])
    return max(value, sheets[values + i + 1]) if at > sheets[knots + count] else value
