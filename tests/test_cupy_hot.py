"""The hot chain on a GPU: against float64 on the dequantised bytes, and the identities that must hold to the byte."""

import functools

import numpy as np
import pytest
from cupy_cases import Slots, gpu, no_allocations

from slotwise.executor.cold import ACTIVATIONS, RowLayout
from slotwise.executor.cupy_hot import HotChain
from slotwise.executor.cupy_program import MAX_PAIRS
from slotwise.executor.errors import BadExecutor

pytestmark = pytest.mark.gpu
LAYOUTS = {  # hidden, inner, dtypes: whole and ragged ends, rows that are and are not multiples of 16 bytes, mixtures
    "f32": (512, 256, ("f32",) * 3),
    "f32 ragged": (136, 72, ("f32",) * 3),
    "f16": (512, 256, ("f16",) * 3),
    "bf16": (512, 256, ("bf16",) * 3),
    "bf16 ragged": (1000, 200, ("bf16",) * 3),
    "Q8_0": (512, 256, ("Q8_0",) * 3),
    "Q8_0 ragged": (1056, 96, ("Q8_0",) * 3),
    "Q4_0": (512, 256, ("Q4_0",) * 3),
    "MXFP4": (512, 256, ("MXFP4",) * 3),
    "MXFP4 ragged": (1632, 96, ("MXFP4",) * 3),
    "Q4_K": (512, 256, ("Q4_K",) * 3),
    "Q6_K": (512, 256, ("Q6_K",) * 3),
    "Q4_K with Q6_K": (512, 256, ("Q4_K", "Q4_K", "Q6_K")),
    "each its own": (512, 256, ("Q8_0", "bf16", "f16")),
    "bias MXFP4": (512, 256, ("MXFP4",) * 3),
    "bias bf16": (512, 256, ("bf16",) * 3),
}


@functools.cache
def slots(name, activation="swiglu"):
    gpu()
    hidden, inner, dtypes = LAYOUTS[name]
    layout = RowLayout(hidden, inner, dtypes, activation, biases=name.startswith("bias"))
    return Slots(HotChain(layout), layout, rows=3)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_pair_is_within_a_hundred_thousandth_of_float64(name, activation):
    here = slots(name, activation)
    for tokens_of in ([[0]], [[0], [1], [2]], [[0, 1], [2], [3, 4]], [[5, 0, 2], [1, 2, 3, 4], [7]]):
        assert here.error(range(len(tokens_of)), tokens_of) <= 1e-5
    for count in (5, 8, 9, 16):  # more than the kernels take at once: in pieces
        assert here.error([1], [range(count)]) <= 1e-5


@pytest.mark.parametrize("name", LAYOUTS)
def test_i2_a_token_alone_gives_the_bytes_that_it_gives_among_others(name):
    here = slots(name)
    alone = [here.compute([row], [[token]])[0] for row in (0, 1) for token in range(9)]
    among = here.compute([1, 2, 0], [range(9), [3], range(9)])
    assert np.array_equal(among[:9], alone[9:])
    assert np.array_equal(among[10:], alone[:9])


@pytest.mark.parametrize("name", LAYOUTS)
def test_i1_a_row_gives_the_same_bytes_from_any_slot(name):
    here = slots(name)
    once = here.compute([0, 1, 2], [[0, 1], [2], [3]])
    here.move(0, 4)
    here.move(2, 0)
    try:
        assert np.array_equal(once, here.compute([4, 1, 0], [[0, 1], [2], [3]]))
    finally:
        here.move(0, 2)
        here.move(4, 0)


def test_fewer_sms_and_direct_launches_give_the_same_bytes():
    here = slots("bf16")
    work = ([2, 0, 1], [[0, 1, 2], [3], [4, 5]])
    once = here.compute(*work)
    for chain in (HotChain(here.layout, sms=1), HotChain(here.layout, sms=7), HotChain(here.layout, launches="direct")):
        assert np.array_equal(once, here.compute(*work, chain=chain))


def test_sixty_four_rows_of_two_tokens_fit_one_launch_and_repeats_are_equal():
    here = slots("Q8_0")
    rows = [i % 3 for i in range(64)]
    tokens_of = [[i % 16, (i + 5) % 16] for i in range(64)]
    once = here.compute(rows, tokens_of, to=list(range(300, 300 + MAX_PAIRS)))
    assert np.array_equal(once, here.compute(rows, tokens_of))
    assert here.error(rows, tokens_of) <= 1e-5


def test_qwen_sized_rows_are_within_the_bound_over_several_blocks():
    gpu()
    layout = RowLayout(2048, 768, ("bf16",) * 3)
    here = Slots(HotChain(layout), layout, rows=5, tokens=4)
    tokens_of = [[0], [0, 1], [3], [0, 1, 2, 3], [2]]
    assert here.error(range(5), tokens_of) <= 1e-5
    once = here.compute(range(5), tokens_of)
    for _ in range(20):  # a race would move bytes
        assert np.array_equal(once, here.compute(range(5), tokens_of))


def test_launches_allocate_nothing():
    here = slots("bf16")
    arguments = ([0, 1], [0, 1, 2], [0, 1], [0, 1], here.x_there.data.ptr, here.out.data.ptr)
    here.chain.launch(here.stream.ptr, here.memory.data.ptr, *arguments)
    with no_allocations():
        for _ in range(300):
            here.chain.launch(here.stream.ptr, here.memory.data.ptr, *arguments)


def test_more_than_a_launch_holds_is_refused_with_the_numbers():
    here = slots("bf16")
    with pytest.raises(BadExecutor, match=r"65 rows and 65 pairs .* 1 to 64 rows"):
        here.compute([0] * 65, [[0]] * 65)
    with pytest.raises(BadExecutor, match=r"129 pairs .* at most 128 pairs"):
        here.compute([0], [[0] * 129])
    with pytest.raises(BadExecutor, match="0 rows"):
        here.compute([], [])
    with pytest.raises(BadExecutor, match=r"sms=0: this GPU has \d+"):
        HotChain(here.layout, sms=0)
