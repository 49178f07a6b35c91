"""Speculation that waits on the host: what the link is not handed yet, in order, and what demand overtakes.

`waiting` [n, 2] is a ring of (layer * n_experts + expert, number of its batch), the key -1 where a row was taken out;
`driver` [n, 2] a ring of the speculative batches that the link was handed: where each ends, and its bytes; `q` the
places of both. What fits is judged when the demand of a tick is known.
"""
# pyright: reportCallIssue=false

from __future__ import annotations

import numpy as np

from . import price_link as link
from .price_link import WAITS, enqueue, inlined, internal

HEAD, TAIL, BATCHES, DRIVER_HEAD, DRIVER_TAIL, N_COUNTS = range(6)


@inlined
def fits(s, f, q, driver, n_bytes):
    """Whether the link may be handed so many speculative bytes more; a batch alone always may."""
    size = driver.shape[0]
    while q[DRIVER_HEAD] < q[DRIVER_TAIL] and driver[q[DRIVER_HEAD] % size, 0] <= s[link.DONE]:
        q[DRIVER_HEAD] += 1
    there = 0.0
    for i in range(q[DRIVER_HEAD], q[DRIVER_TAIL]):
        there += driver[i % size, 1]
    return there == 0 or there + n_bytes <= f[link.MAX_QUEUED]


@internal
def pump(s, f, q, driver, waiting, land, row_s, row_bytes, events, n_events, position):
    """Hands the link batches that wait, in order, while they fit."""
    size, n_experts = waiting.shape[0], land.shape[1]
    while q[HEAD] < q[TAIL]:
        batch = waiting[q[HEAD] % size, 1]
        end, rows, seconds, n_bytes = q[HEAD], 0, 0.0, 0.0
        while end < q[TAIL] and waiting[end % size, 1] == batch:
            key = waiting[end % size, 0]
            if key >= 0:
                rows += 1
                seconds += row_s[key // n_experts, 1]
                n_bytes += row_bytes[key // n_experts]
            end += 1
        if rows and not fits(s, f, q, driver, n_bytes):
            break
        if rows:
            n_events, position = enqueue(s, f, events, n_events, f[link.AHEAD_BATCH], rows, seconds, position)
            driver[q[DRIVER_TAIL] % driver.shape[0], 0] = position
            driver[q[DRIVER_TAIL] % driver.shape[0], 1] = n_bytes
            q[DRIVER_TAIL] += 1
            for at in range(q[HEAD], end):
                key = waiting[at % size, 0]
                if key >= 0:
                    land[key // n_experts, key % n_experts] = position
        q[HEAD] = end
    return n_events, position


@internal
def forget(q, waiting, key):
    """Takes a row out of what waits."""
    size = waiting.shape[0]
    for at in range(q[HEAD], q[TAIL]):
        if waiting[at % size, 0] == key:
            waiting[at % size, 0] = -1


@internal
def tighten(q, waiting):
    """Closes the gaps in what waits, when the ring is full."""
    size = waiting.shape[0]
    to = q[HEAD]
    for at in range(q[HEAD], q[TAIL]):
        if waiting[at % size, 0] >= 0:
            waiting[to % size, 0] = waiting[at % size, 0]
            waiting[to % size, 1] = waiting[at % size, 1]
            to += 1
    q[TAIL] = to


@internal
def in_batches(s, f, q, driver, waiting, layer, n_loads, land, row_s, row_bytes, events, n_events, position, loads):
    """Speculative loads where batches are small, or where the link is handed only so much: what does not fit waits."""
    n_experts = land.shape[1]
    first = 0
    chunk = int(f[link.CHUNK]) if f[link.CHUNK] > 0 else n_loads
    while first < n_loads:
        rows = min(chunk, n_loads - first)
        n_bytes = rows * row_bytes[layer]
        goes = f[link.MAX_QUEUED] == np.inf
        if not goes:
            for i in range(first, first + rows):
                if land[layer, loads[i]] == WAITS:
                    forget(q, waiting, layer * n_experts + loads[i])
            goes = q[HEAD] == q[TAIL] and fits(s, f, q, driver, n_bytes)
        if goes:
            n_events, position = enqueue(
                s, f, events, n_events, f[link.AHEAD_BATCH], rows, rows * row_s[layer, 1], position
            )
            for i in range(first, first + rows):
                land[layer, loads[i]] = position
            if f[link.MAX_QUEUED] < np.inf:
                driver[q[DRIVER_TAIL] % driver.shape[0], 0] = position
                driver[q[DRIVER_TAIL] % driver.shape[0], 1] = n_bytes
                q[DRIVER_TAIL] += 1
        else:
            if q[TAIL] - q[HEAD] + rows > waiting.shape[0]:
                tighten(q, waiting)
            q[BATCHES] += 1
            for i in range(first, first + rows):
                waiting[q[TAIL] % waiting.shape[0], 0] = layer * n_experts + loads[i]
                waiting[q[TAIL] % waiting.shape[0], 1] = q[BATCHES]
                q[TAIL] += 1
                land[layer, loads[i]] = WAITS
        first += rows
    return n_events, position
