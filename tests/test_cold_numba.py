"""`--cold numba`: the twin of the native chain, asked for by name: the same experts, within the same bound."""

import json
import sys

import numpy as np
import pytest
from cold_cases import computed, error, inputs, job, needs_native, some_row
from conftest import run
from conftest import slotwise as cli
from executor_cases import Model, carry_out

import slotwise
from slotwise.executor.backend import make_backend
from slotwise.executor.cold import ACTIVATIONS, ColdChain, RowLayout, cold_module
from slotwise.executor.cold_numba import COMPUTED, _half
from slotwise.executor.dtypes import DTYPES
from slotwise.executor.errors import BadExecutor
from slotwise.executor.reference import expert

EXACT = 1e-5


@pytest.fixture(scope="module")
def chain():
    with ColdChain(2, kind="numba") as opened:
        yield opened


@pytest.mark.parametrize("dtype", COMPUTED)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_dtype_and_activation_is_computed_within_the_bound_and_alone_as_among_others(chain, dtype, activation):
    hidden, inner = (96, 160) if dtype == "Q8_0" else (77, 45)
    layout = RowLayout(hidden, inner, (dtype,) * 3, activation, biases=activation == "geglu")
    rows, x = [some_row(layout, seed) for seed in range(3)], inputs(8, hidden)
    tokens_of = [[0, 3, 7], [], list(range(8))]
    found = computed(chain, layout, rows, tokens_of, x)
    expected = np.concatenate([expert(layout, row, x[tokens]) for row, tokens in zip(rows, tokens_of, strict=True)])
    assert error(found, expected) < EXACT
    alone = [computed(chain, layout, [rows[0]], [[t]], x)[0] for t in tokens_of[0]]
    assert found[:3].tobytes() == np.array(alone).tobytes()
    with ColdChain(1, kind="numba") as one:
        assert computed(one, layout, rows, tokens_of, x).tobytes() == found.tobytes()


def test_projections_of_different_dtypes_at_offsets_with_gaps(chain):
    layout = RowLayout(96, 64, ("f16", "Q8_0", "bf16"), offsets=(101, 20_003, 40_001), biases=(-1, 60_002, -1))
    row, x = some_row(layout, 1), inputs(3, 96)
    assert error(computed(chain, layout, [row], [[0, 1, 2]], x), expert(layout, row, x)) < EXACT


def test_every_half_is_read_as_numpy_reads_it():
    """Subnormal, infinite, NaN."""
    halves = np.arange(65536, dtype=np.uint16)
    bits = np.zeros(65536, np.uint32)
    for at, half in enumerate(halves.tolist()):
        _half(bits, bits.view(np.float32), at, half)
    assert np.array_equal(bits.view(np.float32), halves.view(np.float16).astype(np.float32), equal_nan=True)


@needs_native
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_synthetic_rows_have_the_bytes_of_the_native_fill(chain, dtype):
    ours, theirs = np.zeros(300_000, np.uint8), np.zeros(300_000, np.uint8)
    with ColdChain(1) as native:
        for seed in (0, 12345, -1):
            chain.fill_normal(ours, dtype, seed, 0.07)
            native.fill_normal(theirs, dtype, seed, 0.07)
            assert ours.tobytes() == theirs.tobytes()


def test_jobs_are_ordered_timed_and_held_to_their_arrays(chain):
    layout = RowLayout(64, 64, ("f32",) * 3)
    row, x = some_row(layout, 0), inputs(8, 64)
    layer, arrays = chain.layer(layout), job([row] * 4, [list(range(8))] * 4)
    out = np.empty((32, 64), np.float32)
    tickets = [chain.submit(layer, *arrays, x, out) for _ in range(70)]
    for ticket in tickets:
        chain.wait(ticket)
        assert chain.done(ticket)
    spans = [chain.times(ticket) for ticket in tickets[-60:]]
    assert spans == sorted(spans)
    with pytest.raises(ValueError, match="too long ago: its times are kept for 64 jobs"):
        chain.times(tickets[0])
    with pytest.raises(ValueError, match="this chain gave out tickets 1 to"):
        chain.wait(10**6)
    rows, offsets, tokens = arrays
    for wrong, told in (
        ((rows, offsets[:-1], tokens), "offsets for 4 rows"),
        ((rows, offsets, tokens + 5), "there are 0 to 7"),
        ((rows * 0, offsets, tokens), "row 0 has the address 0"),
        ((rows.astype(np.int32), offsets, tokens), "one dimension of int64"),
        ((rows, offsets[::-1].copy(), tokens), "offsets must rise from 0"),
    ):
        with pytest.raises(BadExecutor, match=told):
            chain.submit(layer, *wrong, x, out)
    with pytest.raises(BadExecutor, match="a place from 0 to 31: there are 0 to 9"):
        chain.submit(layer, *arrays, x, out[:10])
    copied = np.zeros_like(row)
    chain.copy(copied, row)
    assert np.array_equal(copied, row)
    assert chain.read(row) == int(np.bitwise_xor.reduce(row.view(np.uint64)))


def test_a_job_that_failed_is_said_by_whoever_waits_or_closes():
    layout = RowLayout(64, 64, ("f32",) * 3)
    row, x, out = some_row(layout, 0), inputs(1, 64), np.empty((1, 64), np.float32)
    chain = ColdChain(1, kind="numba").open()
    layer, arrays = chain.layer(layout), job([row], [[0]])
    chain.fail_next()
    with pytest.raises(RuntimeError, match="failed in the worker: its output is not to be used"):
        chain.wait(chain.submit(layer, *arrays, x, out))
    chain.fail_next()
    chain.submit(layer, *arrays, x, out)
    with pytest.raises(RuntimeError, match="1 jobs failed that nobody waited for"):
        chain.close()


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name not in COMPUTED])
def test_what_it_does_not_compute_is_refused_with_what_it_does(chain, dtype):
    with pytest.raises(BadExecutor, match=f"{dtype}: the cold chain numba computes f32, f16, bf16, Q8_0"):
        chain.layer(RowLayout(256, 256, ("f32", "f32", dtype)))


def test_options_that_it_has_not_and_chains_that_there_are_not_are_refused():
    with pytest.raises(BadExecutor, match="activations=int8: the cold chain numba computes"):
        ColdChain(1, kind="numba", activations="int8").open().layer(RowLayout(64, 64, ("f32",) * 3))
    with pytest.raises(BadExecutor, match="pins no threads"):
        ColdChain(1, kind="numba", cores=[0]).open()
    with pytest.raises(BadExecutor, match="no cold chain 'fortran'; there are native, numba"):
        cold_module("fortran")
    assert "no cold chain 'fortran'" in cli("run", "sample", "--shape", "tiny", "--cold", "fortran", code=2).stderr


def test_a_run_gives_the_same_bytes_wherever_its_rows_lie():
    model = Model(layout=RowLayout(32, 64, ("Q8_0",) * 3))
    trace = model.trace((1, 1, 3, 1, 12, 2, 1))
    runs = [
        carry_out(model, trace, "lru", slots, cold="numba", backend=make_backend("numpy", cold="numba"), **options)
        for slots, options in ((0, {}), (8, {}), (3, {"miss": "fetch"}), (3, {"overlap": False}), (3, {"threads": 3}))
    ]
    assert len({each.outputs for each in runs}) == 1
    assert runs[1].counters["hits"] > 0


def test_without_the_extension_the_default_is_refused_and_numba_runs_by_name():
    """The default never changes by itself; asked for, the whole run needs no native code."""
    script = (
        "import sys; sys.modules['slotwise.executor._cold'] = None\n"
        "from slotwise.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    )
    words = (sys.executable, "-c", script, "run", "sample", "--shape", "tiny", "--headroom", "0", "--alias-layers", "1")
    words = (*words, "--steps", "20", "--slots", "32", "--check", "--json")
    told = run(*words, code=2).stderr
    assert "install a C compiler" in told
    assert "--cold numba" in told
    assert len(told.splitlines()) == 1
    (found,) = json.loads(run(*words, "--cold", "numba").stdout)["runs"]
    law = slotwise.replay("sample", slots=32, steps=20, plan_hash=True)
    assert (found["plan_sha256"], found["cold"]) == (law.plan_sha256, "numba")
    told = run(sys.executable, "-c", script, "backends").stdout
    assert "which was not built when slotwise was installed" in " ".join(told.split())
