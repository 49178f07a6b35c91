"""The cold chain computes what float64 computes, and the bytes of a token hang on token, row and variant alone."""

import numpy as np
import pytest
from cold_cases import computed, error, inputs, needs_native, some_row
from hypothesis import given
from hypothesis import strategies as st

from slotwise.executor.cold import ACTIVATIONS, ColdChain, RowLayout
from slotwise.executor.dtypes import DTYPES, encode
from slotwise.executor.reference import expert

pytestmark = needs_native
EXACT, ROUNDED = 1e-5, 0.03  # errors of a token relative to its length: activations in float32, and rounded to int8


def shape_of(dtype):
    """Hidden and inner size: odd multiples of the block, and no multiple of any vector where there is no block."""
    block = DTYPES[dtype].block
    return {1: (77, 45), 32: (5 * 32, 3 * 32), 256: (3 * 256, 256)}[block]


@pytest.fixture(scope="module")
def cases():
    """Per dtype and activation: layout, bytes of a row, x [8, hidden], y [8, hidden] in float64."""
    made = {}
    for dtype in DTYPES:
        for at, activation in enumerate(ACTIVATIONS):
            layout = RowLayout(*shape_of(dtype), (dtype,) * 3, activation, biases=at == 2)
            row, x = some_row(layout, at), inputs(8, layout.hidden, at)
            made[dtype, activation] = layout, row, x, expert(layout, row, x)
    return made


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activations", ["float32", "int8"])
def test_every_variant_computes_one_to_eight_tokens_within_the_bound(cases, variant, dtype, activations):
    shape = shape_of(dtype)
    if activations == "int8" and (shape[0] % 32 or shape[1] % 32):
        shape = (96, 64)
    with ColdChain(2, variant=variant, activations=activations) as chain:
        for activation in ACTIVATIONS:
            layout, row, x, expected = cases[dtype, activation]
            if shape != (layout.hidden, layout.inner):
                layout = RowLayout(*shape, layout.dtypes, activation)
                row, x = some_row(layout, 3), inputs(8, shape[0])
                expected = expert(layout, row, x)
            bound = ROUNDED if activations == "int8" and DTYPES[dtype].block > 1 else EXACT
            for n in range(1, 9):
                found = computed(chain, layout, [row], [list(range(n))], x)
                assert error(found, expected[:n]) < bound, (activation, n)


def test_projections_of_different_dtypes_at_offsets_with_gaps(variant):
    layout = RowLayout(512, 256, ("Q4_K", "Q8_0", "Q6_K"), offsets=(100, 200_003, 600_001), biases=(-1, 900_002, -1))
    row, x = some_row(layout, 1), inputs(3, 512)
    with ColdChain(1, variant=variant) as chain:
        assert error(computed(chain, layout, [row], [[0, 1, 2]], x), expert(layout, row, x)) < EXACT


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_every_size_from_1_to_70_has_the_right_tail(variant, dtype):
    with ColdChain(1, variant=variant) as chain:
        for size in (*range(1, 36), 63, 64, 65, 70):
            layout = RowLayout(size, 71 - size, (dtype,) * 3, "geglu")
            row, x = some_row(layout, size), inputs(2, size)
            assert error(computed(chain, layout, [row], [[0, 1]], x), expert(layout, row, x)) < EXACT, size


def test_every_byte_of_a_block_is_read_as_the_slow_twin_reads_it(variant):
    """Random bytes reach scales, minima and codes that encoded values never have, and subnormal MXFP4 scales."""
    draw = np.random.default_rng(5)
    for dtype in ("Q8_0", "Q4_0", "MXFP4", "Q4_K", "Q6_K"):
        layout = RowLayout(256, 256, (dtype, dtype, dtype))
        width = DTYPES[dtype].block_bytes
        blocks = draw.integers(0, 256, (layout.row_bytes // width, width), dtype=np.uint8)
        for at in {"Q8_0": [1], "Q4_0": [1], "MXFP4": [], "Q4_K": [1, 3], "Q6_K": [209]}[dtype]:
            blocks[:, at] = blocks[:, at] & 0x80 | 0x20  # halves of about a hundredth
        if dtype == "MXFP4":
            blocks[:, 0] = draw.integers(0, 128, len(blocks))
        row, x = blocks.ravel().copy(), inputs(2, 256)
        with ColdChain(1, variant=variant) as chain:
            found = computed(chain, layout, [row], [[0, 1]], x)
        assert error(found, expert(layout, row, x)) < EXACT, dtype


def test_activations_far_out_keep_their_limits_and_nan_stays_nan(variant):
    """All three are identities: silu(-200) * -200 is 0, silu(200) * 200 is 40000, clamped gates stop at 7."""
    eye = encode("f32", np.eye(4)).ravel()
    row = np.concatenate([eye, eye, eye])
    x = np.array([[-200, 200, 0, np.nan]], np.float32)
    with ColdChain(1, variant=variant) as chain:
        swiglu = computed(chain, RowLayout(4, 4, ("f32",) * 3), [row], [[0]], np.nan_to_num(x))
        np.testing.assert_allclose(swiglu, [[0, 40000, 0, 0]], rtol=1e-6, atol=1e-30)
        clamped = computed(chain, RowLayout(4, 4, ("f32",) * 3, "swiglu_clamped"), [row], [[0]], np.nan_to_num(x))
        np.testing.assert_allclose(clamped, [[0, 7 / (1 + np.exp(-1.702 * 7)) * 8, 0, 0]], rtol=1e-6, atol=1e-30)
        for activation in ACTIVATIONS:
            assert np.isnan(computed(chain, RowLayout(4, 4, ("f32",) * 3, activation), [row], [[0]], x)).all()


@given(data=st.data())
def test_the_bytes_of_a_token_are_the_same_alone_and_in_any_job_on_any_threads(variants, data):
    """I0, I1, I2: a token alone on one thread, against the same token among others, in other rows and addresses."""
    variant = data.draw(st.sampled_from(variants))
    dtype = data.draw(st.sampled_from(list(DTYPES)))
    activations = data.draw(st.sampled_from(["float32", "int8"]))
    hidden, inner = (256, 256) if DTYPES[dtype].block == 256 else (96, 160)
    layout = RowLayout(hidden, inner, (dtype,) * 3, data.draw(st.sampled_from(list(ACTIVATIONS))), biases=True)
    rows = [some_row(layout, seed) for seed in range(3)]
    n = data.draw(st.integers(1, 20))
    x = inputs(n, hidden)
    picks = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=5))
    tokens_of = [data.draw(st.lists(st.integers(0, n - 1), max_size=11)) for _ in picks]
    with ColdChain(1, variant=variant, activations=activations, spin_us=0) as one:
        alone = {
            (pick, t): computed(one, layout, [rows[pick]], [[t]], x)[0]
            for pick, tokens in zip(picks, tokens_of, strict=True)
            for t in tokens
        }
    copies = [
        np.concatenate([np.zeros(at, np.uint8), rows[pick]])[at:] for at, pick in enumerate(picks)
    ]  # addresses move
    unaligned = np.empty(x.size + 1, np.float32)[1:].reshape(x.shape)
    unaligned[:] = x
    with ColdChain(data.draw(st.integers(1, 3)), variant=variant, activations=activations) as chain:
        found = computed(chain, layout, copies, tokens_of, data.draw(st.sampled_from([x, unaligned])))
    expected = [alone[pick, t] for pick, tokens in zip(picks, tokens_of, strict=True) for t in tokens]
    assert found.tobytes() == np.array(expected, np.float32).reshape(found.shape).tobytes()


def test_a_large_job_has_the_bytes_of_one_thread_on_two_and_three(variant):
    layout = RowLayout(512, 768, ("Q4_K",) * 3)
    rows, x = [some_row(layout, seed) for seed in range(4)], inputs(8, 512)
    tokens = [[0], [1, 2], list(range(8)), [7, 3, 5]]
    seen = set()
    for threads in (1, 2, 3):
        with ColdChain(threads, variant=variant) as chain:
            seen |= {computed(chain, layout, rows, tokens, x).tobytes() for _ in range(5)}
    assert len(seen) == 1
