"""Stored dtypes: what encode writes, the slow twin reads as the gguf package does; wrong input is refused."""

import numpy as np
import pytest

from slotwise.executor.dtypes import DTYPES, dtype_named, encode
from slotwise.executor.errors import BadExecutor
from slotwise.executor.reference import dequantise

DRAW = np.random.default_rng(0)
ROUNDED_TO = {
    "f32": 1e-7,
    "f16": 1e-3,
    "bf16": 8e-3,
    "Q8_0": 0.01,
    "Q6_K": 0.04,
    "Q4_K": 0.11,
    "Q4_0": 0.13,
    "MXFP4": 0.15,
}


@pytest.mark.parametrize("name", [name for name in DTYPES if name[0] in "QM"])
def test_the_slow_twin_reads_any_bytes_as_the_gguf_package_does(name):
    """Random bytes: every code, every scale, but for halves and exponents that would be NaN or infinite."""
    gguf = pytest.importorskip("gguf", reason="the gguf package reads block dtypes: pip install '.[test]'")
    kind = gguf.GGMLQuantizationType[name]
    width = DTYPES[name].block_bytes
    stored = DRAW.integers(0, 256, (300, width), dtype=np.uint8)
    for at in {"Q8_0": [1], "Q4_0": [1], "MXFP4": [0], "Q4_K": [1, 3], "Q6_K": [209]}[name]:
        stored[:, at] = DRAW.integers(100, 140, 300) if name == "MXFP4" else stored[:, at] & 0xBF
    ours = dequantise(name, stored)
    theirs = gguf.quants.dequantize(stored, kind)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6 * np.abs(theirs).max())


@pytest.mark.parametrize("name", DTYPES)
def test_encoded_normal_values_come_back_within_the_rounding_of_the_dtype(name):
    values = DRAW.normal(0, 1, (5, 1024))
    stored = encode(name, values)
    assert stored.shape == (5, DTYPES[name].bytes_of(1024))
    rms = np.sqrt(np.mean((dequantise(name, stored) - values) ** 2))
    assert rms < ROUNDED_TO[name]


@pytest.mark.parametrize("name", DTYPES)
def test_zeros_and_tiny_values_are_encoded_without_a_division_by_zero(name):
    assert not dequantise(name, encode(name, np.zeros((2, 256)))).any()
    tiny = dequantise(name, encode(name, np.full((1, 256), 1e-9)))
    assert np.abs(tiny).max() <= 2e-9


@pytest.mark.parametrize("name", [name for name, dtype in DTYPES.items() if dtype.block > 1])
def test_a_row_that_is_not_whole_blocks_is_refused_with_the_block(name):
    block = DTYPES[name].block
    with pytest.raises(BadExecutor, match=f"{block + 1} weights in {name}: .* whole blocks of {block}"):
        encode(name, np.zeros((2, block + 1)))


def test_an_unknown_dtype_is_refused_with_those_that_there_are():
    with pytest.raises(BadExecutor, match="no stored dtype 'Q5_K'; the executor computes f32, f16, bf16, Q8_0"):
        dtype_named("Q5_K")


def test_values_that_are_not_finite_are_refused():
    with pytest.raises(BadExecutor, match="NaN or infinity"):
        encode("Q8_0", np.full(32, np.nan))
