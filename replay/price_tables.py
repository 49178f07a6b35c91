"""What each chain takes for the rows of a trace: a machine's sheets, or what its rates say, as arrays to look up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit

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


@njit(forceinline=True)
def chain_s(one, sheets, shape, kind, chain, tokens, rows, pairs):
    """Seconds of a chain (0 hot, 1 cold) and their spread, for so many rows that serve so many pairs."""
    if tokens == 1 and rows < one.shape[2]:
        return one[kind, chain, rows, 0], one[kind, chain, rows, 1]
    each = pairs / rows
    return (
        at_tokens(sheets, shape, kind, chain, tokens, rows, each, 0),
        at_tokens(sheets, shape, kind, chain, tokens, rows, each, 1),
    )


@njit(cache=True)
def at_tokens(sheets, shape, kind, chain, tokens, rows, each, what):
    """Between the sheets of the next fewer and the next more tokens; beyond the last, the last."""
    count = shape[kind, chain, 0]
    upper = 0
    while upper < count - 1 and sheets[kind, chain, upper, 0, 0, 0] < tokens:
        upper += 1
    high = on_sheet(
        sheets[kind, chain, upper, what],
        shape[kind, chain, 1 + 2 * upper],
        shape[kind, chain, 2 + 2 * upper],
        rows,
        each,
    )
    there = sheets[kind, chain, upper, 0, 0, 0]
    if upper == 0 or tokens >= there:
        return high
    below = sheets[kind, chain, upper - 1, 0, 0, 0]
    low = on_sheet(
        sheets[kind, chain, upper - 1, what],
        shape[kind, chain, 2 * upper - 1],
        shape[kind, chain, 2 * upper],
        rows,
        each,
    )
    return low + (tokens - below) / (there - below) * (high - low)


@njit(cache=True)
def on_sheet(sheet, n_rows, n_pairs, rows, each):
    """Linear between the knots of both axes; beyond the last it goes on, but never falls."""
    at = 1
    while at < n_rows - 1 and sheet[at + 1, 0] <= rows:
        at += 1
    low = along(sheet[at], sheet[0], n_pairs, each)
    if n_rows == 1:
        return low * max(1.0, rows / sheet[1, 0])
    if rows <= sheet[1, 0]:
        return low
    high = along(sheet[at + 1], sheet[0], n_pairs, each)
    value = low + (rows - sheet[at, 0]) / (sheet[at + 1, 0] - sheet[at, 0]) * (high - low)
    return max(value, high) if rows > sheet[n_rows, 0] else value


@njit(cache=True)
def along(values, knots, count, at):
    """The same for one axis, from index 1 on."""
    if count == 1 or at <= knots[1]:
        return values[1]
    i = 1
    while i < count - 1 and knots[i + 1] <= at:
        i += 1
    value = values[i] + (at - knots[i]) / (knots[i + 1] - knots[i]) * (values[i + 1] - values[i])
    return max(value, values[i + 1]) if at > knots[count] else value
