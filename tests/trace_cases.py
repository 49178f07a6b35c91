"""Random small traces for hypothesis, and the few helpers that the tests of traces share."""

import numpy as np
from hypothesis import strategies as st

from slotwise.traces import Trace


@st.composite
def arrays(draw) -> dict:
    """Arguments of `Trace.from_arrays`: any shape, both id types, steps of several tokens, absent layers, extras."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, layers = draw(st.integers(1, 40)), draw(st.integers(1, 4))
    n_experts = draw(st.sampled_from([1, 2, 7, 20, 254, 255, 256, 300]))
    k = draw(st.integers(1, min(n_experts, 4)))
    experts = np.argsort(rng.random((n, layers, n_experts)), axis=2)[..., :k].astype(np.int64)
    if draw(st.booleans()):
        experts[rng.random((n, layers)) < 0.2] = -1
    step = np.cumsum(rng.random(n) < draw(st.sampled_from([0.1, 0.5, 1.0]))) * 3
    case = {
        "experts": experts,
        "n_experts": n_experts,
        "step": step,
        "request": rng.integers(0, 3, n),
        "position": rng.integers(0, 1000, n),
        "phase": rng.integers(0, 2, n),
    }
    if draw(st.booleans()):
        case["token_id"] = rng.integers(-1, 50_000, n)
    if draw(st.booleans()):
        case["weights"] = rng.random((n, layers, k)).astype(np.float16)
    if layers > 1 and draw(st.booleans()):
        case["predicted"] = rng.integers(-1, n_experts, (n, layers, draw(st.integers(1, 3))))
    if draw(st.booleans()):
        case["row_bytes"] = rng.integers(1, 1000, layers).tolist()
    return case


def tiny(**columns) -> Trace:
    """Five tokens, one layer, top 1 of 4: A B C A B."""
    return Trace.from_arrays(np.array([0, 1, 2, 0, 1]).reshape(5, 1, 1), n_experts=4, **columns)


def demanding(*experts, n_layers=1, n_experts=8, **columns) -> Trace:
    """Top 1, one row an expert, the same at every layer; one row a step unless `step` says otherwise."""
    ids = np.repeat(np.array(experts).reshape(-1, 1, 1), n_layers, axis=1)
    return Trace.from_arrays(ids, n_experts=n_experts, **columns)


def whole(trace: Trace, **what) -> dict[str, np.ndarray]:
    """The blocks of a trace, put together again."""
    blocks = list(trace.blocks(**what))
    joined = {name: np.concatenate([getattr(block, name) for block in blocks]) for name in ("request", "phase")}
    joined |= {f"row_{name}": column for name, column in trace.rows("request", "phase").items()}
    joined |= trace.rows("position", *(["token_id"] if trace.store.has_token_id else []))
    for name in ("experts", "predicted", "weights"):
        if getattr(blocks[0], name) is not None:
            joined[name] = np.concatenate([getattr(block, name) for block in blocks], axis=1)
    joined["starts"] = np.concatenate([block.first_row + block.starts[:-1] for block in blocks] + [[trace.n_tokens]])
    return joined
