"""Slots that differ by layer: hits of each layer along its size, and the greedy division of the memory by them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

POINTS = 33  # sizes at which a layer's hits are counted; between them a straight line stands


def sizes_of(n_experts: int) -> list[int]:
    """Sizes from one slot to all experts, evenly."""
    return sorted({round(size) for size in np.linspace(1, n_experts, POINTS)})


def layer_curves(sizes: Sequence[int], hits_at: Callable[[int], Sequence[int]]) -> np.ndarray:
    """[layers, sizes]: hits of each layer where every layer has so many slots."""
    return np.array([hits_at(size) for size in sizes]).T


def allocate(sizes: Sequence[int], hits: np.ndarray, rows: Sequence[int], room: int) -> list[int]:
    """Slots of each layer within `room` bytes, for the most hits: always where one more byte brings most.

    sizes: ascending, the first one is what every layer gets at least; hits [layers, sizes]; rows: bytes of a row by
    layer. A curve is taken as its upper concave hull, since slots of a dent pay only together; for concave curves and
    equal rows no other division has more hits. Ties go to the lower layer.
    """
    slots = [sizes[0]] * len(rows)
    left = room - sum(size * row for size, row in zip(slots, rows, strict=True))
    hulls = [_hull(sizes, curve) for curve in hits]
    queue = [(-_slope(hull, 0) / rows[layer], layer, 0) for layer, hull in enumerate(hulls) if len(hull) > 1]
    heapq.heapify(queue)
    while queue:
        _, layer, part = heapq.heappop(queue)
        hull = hulls[layer]
        length = hull[part + 1][0] - hull[part][0]
        taken = min(length, left // rows[layer])
        slots[layer] += taken
        left -= taken * rows[layer]
        if taken == length and part + 2 < len(hull):
            heapq.heappush(queue, (-_slope(hull, part + 1) / rows[layer], layer, part + 1))
    return slots


def _hull(sizes: Sequence[int], curve: Sequence[int]) -> list[tuple[int, int]]:
    """The corners of the least concave line above a curve, as long as it rises."""
    corners: list[tuple[int, int]] = []
    for point in zip(map(int, sizes), map(int, curve), strict=True):
        while len(corners) > 1 and _slope([*corners, point], len(corners) - 2) <= _slope([*corners, point], -2):
            corners.pop()
        corners.append(point)
    return [corners[0]] + [after for before, after in pairwise(corners) if after[1] > before[1]]


def _slope(corners: Sequence[tuple[int, int]], at: int) -> float:
    (size, hits), (after, more) = corners[at], corners[at + 1]
    return (more - hits) / (after - size)
