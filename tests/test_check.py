"""`slotwise run --check`: what is computed, copied or decided wrongly ends with exit code 1 and one line on where."""

import ctypes
import re

import numpy as np
import pytest
from conftest import some
from executor_cases import spoil

import slotwise
from slotwise.cli.main import FAILED, main
from slotwise.executor.backend import Rows
from slotwise.executor.backend_numpy import NumpyBackend
from slotwise.executor.cold import ColdChain, RowLayout
from slotwise.executor.dtypes import DTYPES
from slotwise.executor.plan_hash import PlanHash
from slotwise.executor.reference import errors, expert, moe_layer
from slotwise.executor.store import HostStore

WORDS = "run sample --shape tiny --headroom 0 --steps 30 --alias-layers 2 --cpu-threads 1 --slots 16 --check".split()


def failure(capsys, *words) -> str:
    """The one line that a run says which fails."""
    code = main([*WORDS, *words])
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (FAILED, "", 1), err
    return err


@pytest.mark.parametrize("dtype", some(DTYPES, 1))
@pytest.mark.parametrize("miss", ["cpu", "fetch"])
def test_every_stored_dtype_is_within_the_bound_of_float64(dtype, miss):
    (run,) = slotwise.run(
        "sample", "lru", 16, hidden=256, intermediate=256, dtype=dtype, headroom=0, steps=5, alias_layers=1,
        cpu_threads=1, check=True, miss=miss,
    )["runs"]  # fmt: skip
    assert 0 < run["largest_error"] < 1e-5


class Imprecise(NumpyBackend):
    """Outputs of the hot chain are a hundred-thousandth too large, twice."""

    def settle(self, tick):
        hot = len(tick.jobs)
        super().settle(tick)
        if hot:
            tick.out *= np.float32(1 + 2.1e-5)


class Forgetful(NumpyBackend):
    """The hot chain leaves out its last row."""

    def hot(self, tick, work, after=()):
        n = work.offsets[-2]
        part = Rows(work.rows[:-1], work.offsets[:-1], work.tokens[:n], work.places[:n])
        return super().hot(tick, part, after)


class Careless(NumpyBackend):
    """The last byte of every row is lost on its way."""

    def _carry(self, copies, after):
        super()._carry(copies, after)
        for copy in copies:
            ctypes.memset(copy.target + copy.n_bytes - 1, 0x5A, 1)


class Hasty(NumpyBackend):
    """Where nobody looks closely, hot outputs change."""

    def settle(self, tick):
        super().settle(tick)
        if not self.timing:
            tick.out *= np.float32(1.000001)


@pytest.mark.once
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Imprecise, r"step \d+, layer \d+, token \d+: error 2\.\de-05 relative to float64 .* at most 1e-05"),
        (Forgetful, r"step \d+, layer \d+, token \d+: error nan, the output is not finite: a part of it was never"),
        (Careless, r"layer \d+, slot \d+: not the bytes of expert \d+, 1 of 98304 differ, the first is byte 98303"),
        (Hasty, r"two runs of one configuration computed different outputs"),
    ],
)
def test_what_is_wrong_is_told_in_one_line_that_says_where(monkeypatch, capsys, kind, told):
    spoil(monkeypatch, kind)
    assert re.match(f"slotwise: {told}", failure(capsys))


@pytest.mark.once
def test_plans_that_are_not_the_replays_are_told(monkeypatch, capsys):
    add = PlanHash.add
    monkeypatch.setattr(PlanHash, "add", lambda self, plan, step, layer: step == 7 or add(self, plan, step, layer))
    assert failure(capsys).startswith("slotwise: the plans differ from the replay's; counters (replay, run): equal")


def test_the_reference_sums_what_its_experts_give_and_skips_absent_ids():
    layout = RowLayout(32, 16, ("Q8_0", "Q8_0", "f32"), "swiglu_clamped", biases=True)
    draw = np.random.default_rng(0)
    with ColdChain(1) as chain:
        store = HostStore([layout], 4, NumpyBackend()).fill(3, chain)
    x, weights = draw.normal(0, 1, (3, 32)).astype(np.float32), draw.random((3, 2), np.float32)
    ids = np.array([[2, 0], [255, 2], [255, 255]], np.uint8)
    each = [expert(layout, store.row(0, e), x) for e in range(4)]
    y = moe_layer(store, 0, x, ids, weights)
    w = weights.astype(np.float64)
    np.testing.assert_allclose(y[0], w[0, 0] * each[2][0] + w[0, 1] * each[0][0], rtol=1e-13)
    np.testing.assert_allclose(y[1], w[1, 1] * each[2][1], rtol=1e-13)
    assert not y[2].any()
    assert errors(np.zeros((1, 32)), y[2:]).tolist() == [0]
    assert np.isnan(errors(np.ones((1, 32)), y[2:]))
    assert errors(2 * y[:1], y[:1]).tolist() == [1]
