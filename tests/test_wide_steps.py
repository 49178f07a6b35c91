"""Steps far wider than a pool: every list that a tick fills has room for them."""

import numpy as np
import pytest
from oracle_case import Case

import slotwise

GUARDED = {"name": "lfru", "params": {}, "guard": {"warm": 2, "ratio": 0.25, "counts": 4}}
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def wide(n_tokens=300, n_layers=3, n_experts=6, top_k=2, width=4, seed=0):
    """Two steps of many tokens whose predictions repeat each other and leave the range."""
    draw = np.random.default_rng(seed)
    ids = np.tile(np.arange(n_experts), (n_tokens, 1))
    experts = [draw.permuted(ids, axis=1)[:, :top_k].tolist() for _ in range(n_layers)]
    predicted = [draw.integers(-1, n_experts + 3, (n_tokens, width)).tolist() for _ in range(n_layers)]
    step = [0] * (n_tokens // 2) + [1] * (n_tokens - n_tokens // 2)
    return Case(n_experts, experts, [0] * n_tokens, step, [0] * n_tokens, {1: predicted})


@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("policy", ["lru", GUARDED], ids=str)
def test_a_step_of_150_tokens_may_look_ahead(policy, scope):
    trace = wide()
    how = {"slots": 3, "width": 4, "batch_gate": 1000, "scope": scope}
    law, run = trace.by_law(policy, **how), trace.by_replay(policy, **how)
    assert run.plan_sha256 == law.plan_sha256
    assert run.counters["invalid"] == law.counters["invalid"] > 100


def test_a_live_step_of_thousands_of_tokens_fits_into_its_plan():
    pool = slotwise.Pool("lru", n_layers=2, n_experts=4, slots=2, batch_gate=10_000)
    rows = np.tile(np.array([[3, 1]], np.uint8), (5000, 1))
    assert pool.step(0, rows).misses.tolist() == [3, 1]
    plan = pool.prefetch(1, np.tile(np.array([[0, 1, 2, 9]], np.uint8), (5000, 1)))
    assert [load.expert for load in plan.loads] == [0, 1]
    assert pool.counters["predictions"] == 20_000
    assert pool.counters["invalid"] == 20_000 - 3
