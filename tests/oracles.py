"""The law of a pool written once more, as slowly and plainly as possible: the judge of the compiled replay.

Pure dictionaries and lists; nothing is shared with the package but the arrays of a trace.
"""

import itertools

from oracle_counts import OracleResult
from oracle_policies import mix
from oracle_pool import Step
from oracle_run import Oracle


def steps_of(experts, spans, request, phase, predicted=None):
    """Steps from nested rows `experts[layer][row]`; `spans` are the rows (first, last + 1) of each step."""
    return [
        Step(
            request=request[i],
            phase=phase[i],
            n_rows=last - first,
            experts=[layer[first:last] for layer in experts],
            predicted=None if predicted is None else [layer[first:last] for layer in predicted],
        )
        for i, (first, last) in enumerate(spans)
    ]


def oracle_replay(experts, *, starts, request, phase, predicted=None, policy="lru", **options) -> OracleResult:
    """Replay rows `experts[layer][row]` of ids (None = absent) by the law; `starts` are the row offsets of the steps.

    `policy` is `{"name", "params", "guard", "gate", "pin"}`; counts of profiles are `[layer][expert]`.
    """
    if isinstance(policy, str):
        policy = {"name": policy, "params": {}}
    steps = steps_of(experts, list(itertools.pairwise(starts)), request, phase, predicted)
    return Oracle(steps, policy=policy, **options).run()


def nested(ids, absent):
    """An id array as nested lists, with None for `absent`."""
    return [[[None if e == absent else e for e in row] for row in layer] for layer in ids.tolist()]


def rows_of(trace, *, horizon=1, predicted=False):
    """The arguments of `oracle_replay` that a slotwise Trace holds."""
    out = {"experts": [[] for _ in range(trace.n_layers)], "starts": [0], "request": [], "phase": []}
    out["predicted"] = [[] for _ in range(trace.n_layers)] if predicted else None
    for block in trace.blocks(predicted=predicted, horizon=horizon):
        absent = 255 if block.experts.dtype.itemsize == 1 else 65535
        before = out["starts"][-1]
        out["starts"] += [before + int(row) for row in block.starts[1:]]
        out["request"] += block.request.tolist()
        out["phase"] += block.phase.tolist()
        for name in ("experts", "predicted") if predicted else ("experts",):
            for layer, rows in zip(out[name], nested(getattr(block, name), absent), strict=True):
                layer.extend(rows)
    return {"n_experts": trace.n_experts, "row_bytes": trace.row_bytes, **out}


def verify_spans(request, phase, starts, *, verify_tokens, accept, seed):
    """Row spans of the speculative verify steps built from a decode trace; prefill steps stay as they are.

    A step offers up to `verify_tokens` rows and never crosses a request or a phase; the next one starts after the
    accepted prefix: one row, plus the leading successes of the draws for the others.
    """
    spans, row = [], 0
    while row < len(request):
        if phase[row] == 0:
            end = min(s for s in starts if s > row)
            spans.append((row, end))
            row = end
            continue
        end = row + 1
        while end < min(row + verify_tokens, len(request)) and (request[end], phase[end]) == (request[row], 1):
            end += 1
        kept = 1
        while row + kept < end and mix(seed, len(spans), kept - 1) < accept * 2**64:
            kept += 1
        spans.append((row, end))
        row += kept
    return spans


def pollution(real, shadow):
    """Demand misses of a run that the same run without prefetch would have hit."""
    return len(real.missed - shadow.missed)
