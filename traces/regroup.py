"""Other steps of the same tokens: verify batches of M tokens of a request, decode batches of B requests."""

from __future__ import annotations

import heapq

import numpy as np

from .errors import BadTrace
from .meta import check_whole
from .picked import picked
from .trace import Trace


def regroup(trace: Trace, *, tokens: int | None = None, requests: int | None = None) -> Trace:
    """Decode steps put together anew; prefill steps stay, a step for each request in them. No row is added or lost.

    `tokens=M`: M tokens of a request that follow each other share a step, as speculative decoding verifies them if all
    are accepted; a step never crosses a request or a phase, the last one of a stretch is shorter. Without it, rows of a
    request that share a step go on doing so.
    `requests=B`: a step takes so many requests at once, as a server does. Requests begin in the order in which the
    trace begins them; when one ends, the next takes its place, and its prefill runs as steps before.
    Rows of a request keep their order; steps are numbered anew. Raises BadTrace.
    """
    if tokens is None and requests is None:
        raise BadTrace("regroup: give tokens (of a request to a step), requests (to a step), or both")
    for name, value in (("tokens", tokens), ("requests", requests)):
        if value is not None:
            check_whole("regroup", name, value, 1, 2**31 - 1)
    rows = trace.rows("request", "step", "phase")
    by_request = np.argsort(rows["request"], kind="stable")
    request, step, phase = (rows[name][by_request] for name in ("request", "step", "phase"))
    new_request = np.append(True, request[1:] != request[:-1])
    stretch = new_request | np.append(True, phase[1:] != phase[:-1])
    opens = stretch | np.append(True, step[1:] != step[:-1])
    if tokens is not None:
        begins = np.flatnonzero(stretch)
        within = np.arange(len(request)) - np.repeat(begins, np.diff(np.append(begins, len(request))))
        opens = np.where(phase == 1, within % tokens == 0, opens)
    unit = np.cumsum(opens) - 1  # rows of a unit share a step, whatever else does
    first = np.flatnonzero(opens)
    if requests is None:
        place = np.argsort(by_request[first])  # a unit is where its first row was
        steps = np.argsort(place)
    else:
        place, shared = _served(by_request[first], new_request[first], phase[first] == 1, requests)
        steps = np.empty(len(first), np.int64)
        steps[place] = np.cumsum(~shared) - 1
    turn = np.argsort(place)  # of each unit
    order = np.argsort(turn[unit], kind="stable")
    done = [f"{tokens} tokens of a request to a step"] * (tokens is not None)
    done += [f"{requests} requests to a step"] * (requests is not None)
    return picked(
        [trace], by_request[order], request[order], steps[unit][order], trace.meta,
        name=f"{trace.name}-regrouped", done=f"regroup ({', '.join(done)})",
    )  # fmt: skip


def _served(at: np.ndarray, opens: np.ndarray, decode: np.ndarray, seats: int) -> tuple[np.ndarray, np.ndarray]:
    """The order of units that a server with so many seats serves, and which of them (in it) join the step before.

    Units come request by request: `at` is the row where each was, `opens` marks the first of a request. A decode unit
    takes one turn; prefill units run before the turn that follows them.
    """
    begins = np.flatnonzero(opens)
    lengths = np.diff(np.append(begins, len(opens)))
    turns = np.add.reduceat(decode.astype(np.int64), begins)
    free, starts = [0] * min(seats, len(begins)), np.empty(len(begins), np.int64)
    rank = np.argsort(at[begins])
    for request in rank.tolist():
        starts[request] = heapq.heappop(free)
        heapq.heappush(free, int(starts[request] + turns[request]))
    before = np.cumsum(decode) - decode
    turn = np.repeat(starts - before[begins], lengths) + before
    queue = np.repeat(np.argsort(rank), lengths)  # stable: units of a request stay in order
    place = np.lexsort((queue, decode, turn))
    turn, decode = turn[place], decode[place]
    return place, np.append(False, decode[1:] & decode[:-1] & (turn[1:] == turn[:-1]))
