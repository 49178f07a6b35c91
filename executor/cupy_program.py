"""The source of the hot chain's kernels for one layout, and how they are cut to fit the shared memory of a block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .cold import RowLayout
from .cupy_driver import source
from .dtypes import dtype_named
from .errors import BadExecutor

MAX_ROWS = 64  # of one launch
MAX_PAIRS = 128
# As the kernels read each dtype: weights of a granule, which one lane takes at a time; what a part must be aligned to.
GRANULE = {"f32": 4, "f16": 8, "bf16": 8, "Q8_0": 8, "Q4_0": 8, "MXFP4": 8, "Q4_K": 32, "Q6_K": 16}
ALIGNED_TO = {"f32": 16, "f16": 16, "bf16": 16, "Q8_0": 2, "Q4_0": 2, "MXFP4": 1, "Q4_K": 16, "Q6_K": 2}
TAIL_BYTES = 16  # a word that begins at the end of the last stage reads past it


class Phase(NamedTuple):
    """How one kernel is cut: warps of a block, output rows that a warp makes at once, weights of a slice of them,
    stages of a warp's ring, bytes of shared memory."""

    warps: int
    outputs: int
    slice_weights: int
    depth: int
    shared_bytes: int


def pitch(dtype: str, along: int, slice_weights: int, start: int) -> int:
    """Bytes of shared memory that hold a slice of one output row of `along` weights: Part::PITCH of cupy_hot.cu."""
    of = dtype_named(dtype)
    stride, width = of.bytes_of(along), of.bytes_of(min(along, slice_weights))
    return width if not (stride % 16 or width % 16 or start % 16) else -(-(width + 15) // 16) * 16


def slices(dtypes: Sequence[str], along: int, most_bytes: int) -> int:
    """Weights of a slice: whole granules for all 32 lanes, few of them idle, at most `most_bytes` of any dtype."""
    step = 32 * max(GRANULE[name] for name in dtypes)
    steps = -(-along // step)
    widest = max(dtype_named(name).block_bytes / dtype_named(name).block for name in dtypes)
    fit = max(1, int(most_bytes // (widest * step)))
    best = min(range(1, min(fit, steps) + 1), key=lambda count: (-(-steps // count) * count - steps, -count))
    return along if best >= steps else best * step


def cut(layout: RowLayout, down: bool, tokens: int, shared: tuple[int, int]) -> Phase | None:
    """The shape of a kernel for rows of that many tokens, or None where shared memory does not hold their inputs.

    shared: bytes that a block may have so that another finds room beside it, and bytes that a block may have at most.
    """
    along = layout.inner if down else layout.hidden
    parts = (2,) if down else (0, 1)
    names = [layout.dtypes[i] for i in parts]
    # Measured on an H200, rows of 2048 x 768 in bf16, Q8_0, Q4_K and Q6_K, against 8 to 16 warps and 1 to 4 outputs:
    # one token wants many warps, several want the inputs in shared memory read seldom.
    warps, outputs = (16, 4 if down else 1) if tokens == 1 else (8, 4 if down else 2)
    if tokens == 1 and names == ["Q6_K"]:
        outputs = 2  # what it holds of four output rows does not fit the registers
    inputs = tokens * along * 4 + TAIL_BYTES
    for room in shared:
        for most_bytes in (1536, 1024, 512):
            weights = slices(names, along, most_bytes)
            stage = outputs * sum(pitch(layout.dtypes[i], along, weights, layout.starts[i]) for i in parts)
            depth = min(6, (room - inputs) // (warps * stage))
            if depth >= 2:
                return Phase(warps, outputs, weights, depth, inputs + warps * stage * depth)
    return None


def program(layout: RowLayout, shapes: dict[int, tuple[Phase, Phase]]) -> str:
    """The source of all kernels of a layout: its constants, the body that layouts share, two kernels for each shape."""
    constants = {"HIDDEN": layout.hidden, "INNER": layout.inner, "MAX_ROWS": MAX_ROWS, "MAX_PAIRS": MAX_PAIRS}
    for i, name in enumerate(("GATE", "UP", "DOWN")):
        constants[name] = dtype_named(layout.dtypes[i]).code
        constants |= {f"{name}_AT": layout.starts[i], f"{name}_BIAS_AT": layout.bias_starts[i]}
    head = "".join(f"#define {name} {value}\n" for name, value in constants.items())
    tail = "".join(
        f"CHAIN({tokens}, {first.warps}, {', '.join(map(str, (*first[1:], *second[1:])))})\n"
        for tokens, (first, second) in shapes.items()
    )
    return head + source("cupy_hot.cu") + tail


def check_layout(layout: RowLayout) -> None:
    """Raises BadExecutor for a layout that the kernels cannot read 16 bytes at a time."""
    elsewhere = "compute this layer on the CPU, or store it so"
    for name, value in (("hidden", layout.hidden), ("inner", layout.inner)):
        if value % 8:
            raise BadExecutor(f"{name}={value}: the hot chain needs a multiple of 8; {elsewhere}")
    for part, name, start in zip(("gate", "up", "down"), layout.dtypes, layout.starts, strict=True):
        if start % ALIGNED_TO[name]:
            raise BadExecutor(
                f"{part} of {name} begins at byte {start} of a row: the hot chain needs a multiple of "
                f"{ALIGNED_TO[name]}; give the RowLayout such offsets"
            )
    for part, start in zip(("gate", "up", "down"), layout.bias_starts, strict=True):
        if start >= 0 and start % 4:
            raise BadExecutor(f"the bias of {part} begins at byte {start} of a row: give the RowLayout a multiple of 4")
