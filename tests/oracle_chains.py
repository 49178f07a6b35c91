"""What the slow price is made of: batches, jobs, and the seconds of a chain by the sheets or rates of a machine."""

import math


class Batch:
    """Rows that are copied together: they have landed when nothing is left of the batch."""

    def __init__(self, seconds, n_bytes=0):
        self.left, self.n_bytes = seconds, n_bytes


class Job:
    """Work of a chain: not before a time, nor before these batches have landed."""

    def __init__(self, at, seconds, batches=()):
        self.at, self.left, self.batches, self.ended = at, seconds, list(batches), None

    def gated(self):
        return any(batch.left > 0 for batch in self.batches)


def between(x, xs, ys):
    """Linear between knots; below the first its value, beyond the last the last slope, if it rises."""
    if x <= xs[0] or len(xs) == 1:
        return ys[0]
    for low in range(len(xs) - 1):
        if x <= xs[low + 1] or low == len(xs) - 2:
            value = ys[low] + (x - xs[low]) * (ys[low + 1] - ys[low]) / (xs[low + 1] - xs[low])
            return max(value, ys[low + 1]) if x > xs[-1] else value
    raise AssertionError


def chain_time(machine, chain, row_bytes, tokens, rows, pairs, threads, most=1):
    """(seconds, spread) of a chain. most: tokens of the row that has the most."""
    if tokens > 1:
        held = next(power for power in (1 << i for i in range(64)) if power >= most)
        pairs += machine[f"{chain}_by_most"] * (held * rows - pairs)
    sheets = [s for s in machine.sheets if (s.chain, s.row_bytes) == (chain, row_bytes)]
    sheets = sorted((s for s in sheets if chain == "hot" or s.threads == threads), key=lambda s: s.tokens)
    if not sheets:
        memory = {"hot": "device", "cold": "host"}[chain]
        read, compute = machine[f"{memory}_read_bytes_per_s"], machine[f"{memory}_compute_bytes_per_s"]
        seconds = machine[f"{chain}_base_s"] + row_bytes * max(rows / read, pairs / max(compute, read))
        return seconds, seconds / 10

    def on(sheet, table):
        lines = [between(pairs / rows, sheet.pairs_per_row, line) for line in table]
        if len(lines) == 1:
            return lines[0] * max(1.0, rows / sheet.rows[0])
        return between(rows, sheet.rows, lines)

    found = []
    for name in ("seconds", "spread_s"):
        of = [on(sheet, getattr(sheet, name)) for sheet in sheets]
        known = [sheet.tokens for sheet in sheets]
        found.append(of[-1] if tokens >= known[-1] else between(tokens, known, of))
    return tuple(found)


def beside(machine):
    """What hot and cold chain keep of their speeds beside each other, and what a tick with both takes more."""
    if not machine.overlap:
        return 1.0, 1.0, 0.0
    return tuple(machine.overlap[name].value for name in ("hot_with_cold", "cold_with_hot", "overlap_s"))


def pays(machine, hot, cold, host_s):
    """Whether both chains at once, (seconds, spread) each, are expected to end before one by one and then the host."""
    hot_share, cold_share, overlap_s = beside(machine)
    left_s = max(0.0, cold[0] - machine["submit_hot_s"])
    if hot[0] / hot_share <= left_s / cold_share:
        first = hot[0] / hot_share
        last = first + left_s - first * cold_share
    else:
        first = left_s / cold_share
        last = first + hot[0] - first * hot_share
    return last + surplus(first, last, math.hypot(hot[1], cold[1])) + overlap_s < hot[0] + cold[0] + host_s


def surplus(a, b, spread):
    """E[max] of two normal times beyond the larger one, by summing over a fine grid of their difference."""
    gap = abs(a - b) / spread if spread else math.inf
    if gap > 5:
        return 0.0
    step = 1e-3
    grid = [gap + (i + 0.5) * step for i in range(int(10 / step))]
    density = [math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) for z in grid]
    return spread * sum((z - gap) * p for z, p in zip(grid, density, strict=True)) * step
