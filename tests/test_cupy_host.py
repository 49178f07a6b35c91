"""What the hot chain decides on the host, where no GPU is needed: how its kernels are cut, and what it refuses."""

import importlib.util

import numpy as np
import pytest

from slotwise.executor.cold import RowLayout
from slotwise.executor.cupy_driver import need_cupy
from slotwise.executor.cupy_hot import TOKENS, WORK, HotChain, padded
from slotwise.executor.cupy_program import GRANULE, check_layout, cut, pitch, program, slices
from slotwise.executor.dtypes import DTYPES, dtype_named
from slotwise.executor.errors import BadExecutor

H200 = 115712, 232448  # bytes of shared memory: so that two blocks fit an SM, and at most
SMALL = 50176, 101376  # an RTX 30 or 40
SHAPES = [
    RowLayout(2048, 768, ("bf16",) * 3),
    RowLayout(2048, 768, ("Q4_K", "Q4_K", "Q6_K")),
    RowLayout(2880, 2880, ("MXFP4",) * 3, biases=True),
    RowLayout(4096, 14336, ("Q8_0",) * 3),
    RowLayout(64, 32, ("MXFP4", "Q4_0", "Q8_0")),
]


@pytest.mark.parametrize("shared", [H200, SMALL])
@pytest.mark.parametrize("layout", SHAPES)
def test_every_kernel_that_is_cut_fits_shared_memory_and_makes_whole_units(layout, shared):
    found = [(down, tokens, cut(layout, down, tokens, shared)) for down in (False, True) for tokens in TOKENS]
    assert all(phase for _, tokens, phase in found if tokens == 1)
    for down, tokens, phase in found:
        if phase is None:
            continue
        along, across = (layout.inner, layout.hidden) if down else (layout.hidden, layout.inner)
        assert across % phase.outputs == 0
        assert phase.outputs * tokens <= 32  # a lane for each output
        assert phase.depth >= 2
        assert tokens * along * 4 < phase.shared_bytes <= shared[1]
        names = layout.dtypes[2:] if down else layout.dtypes[:2]
        assert phase.slice_weights >= along or not any(phase.slice_weights % (32 * GRANULE[name]) for name in names)


@pytest.mark.parametrize("name", DTYPES)
def test_a_slice_is_whole_blocks_and_its_place_holds_it_wherever_it_begins(name):
    of = dtype_named(name)
    for along in (768, 2048, 2816):
        weights = slices([name], along, 1536)
        width = of.bytes_of(min(weights, along))
        assert pitch(name, along, weights, 0) % 16 == 0
        assert pitch(name, along, weights, 0) >= width + (0 if of.bytes_of(along) % 16 == width % 16 == 0 else 15)


def test_a_small_slice_is_chosen_so_that_no_lane_stays_idle():
    assert slices(["bf16"], 768, 1536) == 768  # three times 32 lanes of 8 weights, whole
    assert slices(["bf16"], 2048, 1536) == 512  # 2 of the 8 steps; 3 would leave one of 9 idle
    assert slices(["f32"], 96, 1536) == 96


def test_the_argument_of_a_launch_lies_as_the_structure_of_the_kernels():
    assert [WORK.fields[name][1] for name in WORK.names] == [0, 8, 16, 24, 32, 40, 44, 48, 52, 56, 312, 444, 700]
    assert WORK.itemsize == 960
    assert (
        program(SHAPES[0], {1: (cut(SHAPES[0], False, 1, H200), cut(SHAPES[0], True, 1, H200))}).count("CHAIN(1, ") == 1
    )


def test_rows_of_many_tokens_are_repeated_for_the_next_of_them():
    chain = HotChain.__new__(HotChain)
    chain.tokens = 8
    ids, offsets = chain._in_pieces(np.array([5, 6, 7]), np.array([0, 17, 18, 26]))
    assert ids.tolist() == [5, 5, 5, 6, 7]
    assert offsets.tolist() == [0, 8, 16, 17, 18, 26]


def test_a_slot_begins_on_a_line_of_memory():
    assert padded(RowLayout(2048, 768, ("bf16",) * 3)) == 3 * 2048 * 768 * 2
    assert padded(RowLayout(64, 32, ("MXFP4",) * 3)) == 3328  # 3 * 64 * 17 = 3264, and up to the next 256


def test_layouts_that_cannot_be_read_sixteen_bytes_at_a_time_are_refused_with_the_way_out():
    with pytest.raises(BadExecutor, match="inner=12: the hot chain needs a multiple of 8"):
        check_layout(RowLayout(16, 12, ("f32",) * 3))
    with pytest.raises(BadExecutor, match=r"up of bf16 begins at byte 1000 .* a multiple of 16"):
        check_layout(RowLayout(32, 8, ("MXFP4", "bf16", "bf16"), offsets=(0, 1000, 4000)))
    with pytest.raises(BadExecutor, match="bias of gate begins at byte 30001"):
        check_layout(RowLayout(32, 8, ("bf16",) * 3, biases=(30001, -1, -1)))
    check_layout(RowLayout(2880, 2880, ("MXFP4",) * 3, biases=True))


def test_an_absent_cupy_is_named_with_what_to_install():
    if importlib.util.find_spec("cupy") is not None:
        pytest.skip("cupy is installed here")
    with pytest.raises(BadExecutor, match=r"needs CuPy.*slotwise\[cuda12\] or slotwise\[cuda13\]"):
        need_cupy()
