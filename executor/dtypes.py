"""The dtypes in which weights are stored and computed: their blocks, and how arrays are encoded for synthetic weights.

Block dtypes are laid out as in GGUF files (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), little-endian;
a block holds consecutive weights of one output row:

Q8_0   32 weights: scale f16, 32 int8 q.                                  w = d * q
Q4_0   32 weights: scale f16, 16 bytes; low nibbles are weights 0-15, high nibbles 16-31.   w = d * (q - 8)
MXFP4  32 weights: exponent byte e, 16 bytes of FP4 E2M1 as in Q4_0.      w = 2^(e - 127) * fp4(q)
Q4_K   256 weights: d f16, d_min f16, 12 bytes of eight 6-bit scales and eight 6-bit minima, 128 bytes; bytes 32j.. hold
       weights 64j + 0-31 in the low nibbles and 64j + 32-63 in the high ones.
       w = d * scale[i // 32] * q - d_min * minimum[i // 32]
Q6_K   256 weights: 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 int8 scales, d f16. In each half of 128,
       low byte l has weights l (low) and 64 + l (high), pair byte l has weights l, 32 + l, 64 + l, 96 + l from its
       lowest bits up.   w = d * scale[i // 16] * (q - 32)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import BadExecutor

Bytes = NDArray[np.uint8]


class Dtype(NamedTuple):
    """One way to store weights: `block` weights take `block_bytes` bytes. `code` is its number in cold.c."""

    name: str
    code: int
    block: int
    block_bytes: int

    def bytes_of(self, n_weights: int) -> int:
        """Bytes of that many consecutive weights. Raises BadExecutor unless they are whole blocks."""
        if n_weights <= 0 or n_weights % self.block:
            raise BadExecutor(
                f"{n_weights} weights in {self.name}: an output row must be whole blocks of {self.block}; "
                f"store it in another dtype, such as bf16"
            )
        return n_weights // self.block * self.block_bytes


DTYPES = {
    dtype.name: dtype
    for dtype in (
        Dtype("f32", 0, 1, 4),
        Dtype("f16", 1, 1, 2),
        Dtype("bf16", 2, 1, 2),
        Dtype("Q8_0", 3, 32, 34),
        Dtype("Q4_0", 4, 32, 18),
        Dtype("MXFP4", 5, 32, 17),
        Dtype("Q4_K", 6, 256, 144),
        Dtype("Q6_K", 7, 256, 210),
    )
}
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])  # the magnitudes of E2M1; bit 3 is the sign


def dtype_named(name: str) -> Dtype:
    """The dtype of that name. Raises BadExecutor with the names that there are."""
    if name not in DTYPES:
        raise BadExecutor(f"no stored dtype {name!r}; the executor computes {', '.join(DTYPES)}")
    return DTYPES[name]


def encode(name: str, values: ArrayLike) -> Bytes:
    """Float values [..., k] in that dtype, bytes [..., bytes_of(k)].

    A plain rounding to the nearest code with scales from the extremes of each block: good enough for synthetic weights,
    not a quantiser to publish models with. Raises BadExecutor for values that are not finite.
    """
    dtype = dtype_named(name)
    floats = np.ascontiguousarray(values, dtype=np.float32)
    width = dtype.bytes_of(floats.shape[-1])
    if not np.isfinite(floats).all():
        raise BadExecutor(f"values to encode in {name} hold NaN or infinity: weights are finite")
    blocks = floats.reshape(-1, dtype.block)
    return np.ascontiguousarray(_ENCODERS[name](blocks)).reshape(*floats.shape[:-1], width)


def _bytes(array: NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(array).view(np.uint8).reshape(len(array), -1)


def _f32(x: NDArray[Any]) -> Bytes:
    return _bytes(x)


def _f16(x: NDArray[Any]) -> Bytes:
    return _bytes(x.astype("<f2"))


def _bf16(x: NDArray[Any]) -> Bytes:
    bits = x.view("<u4")
    return _bytes(((bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16).astype("<u2"))  # to nearest, ties to even


def _scale(largest: NDArray[Any]) -> tuple[Bytes, NDArray[Any]]:
    """Scales as stored halves, and what to divide by: the scale as it will be read, 1 where it is 0."""
    half = largest.astype("<f2")
    read = half.astype(np.float32)
    return _bytes(half), np.where(read == 0, 1, read)


def _codes(x: NDArray[Any], scale: NDArray[Any], low: int, high: int) -> NDArray[Any]:
    return np.clip(np.rint(x / scale), low, high).astype(np.int32)


def _q8_0(x: NDArray[Any]) -> Bytes:
    stored, scale = _scale(np.abs(x).max(axis=1, keepdims=True) / 127)
    return np.hstack([stored, _bytes(_codes(x, scale, -127, 127).astype(np.int8))])


def _nibbles(codes: NDArray[Any]) -> Bytes:
    """Codes 0 to 15 [n, 2m]: the first m in the low nibbles, the others in the high ones."""
    half = codes.shape[1] // 2
    return (codes[:, :half] | codes[:, half:] << 4).astype(np.uint8)


def _q4_0(x: NDArray[Any]) -> Bytes:
    stored, scale = _scale(np.abs(x).max(axis=1, keepdims=True) / 7)
    return np.hstack([stored, _nibbles(_codes(x, scale, -8, 7) + 8)])


def _mxfp4(x: NDArray[Any]) -> Bytes:
    largest = np.abs(x).max(axis=1, keepdims=True)
    exponent = np.clip(np.frexp(largest / 6)[1] + 127, 0, 254)  # the least power of two that brings all within 6
    scaled = x / np.exp2(exponent - 127.0)
    nearest = np.searchsorted((FP4[1:] + FP4[:-1]) / 2, np.abs(scaled))
    return np.hstack([exponent.astype(np.uint8), _nibbles(nearest | np.signbit(scaled) << 3)])


def _q4_k(x: NDArray[Any]) -> Bytes:
    subs = x.reshape(-1, 8, 32)
    least = np.minimum(subs.min(axis=2), 0)
    steps = (np.maximum(subs.max(axis=2), 0) - least) / 15
    stored_d, d = _scale(steps.max(axis=1, keepdims=True) / 63)
    stored_min, d_min = _scale(-least.min(axis=1, keepdims=True) / 63)
    scales, minima = _codes(steps, d, 0, 63), _codes(-least, d_min, 0, 63)
    read = (d * scales)[:, :, None]
    codes = _codes(subs + (d_min * minima)[:, :, None], np.where(read == 0, 1, read), 0, 15)
    packed = np.hstack([
        scales[:, :4] | scales[:, 4:] >> 4 << 6,
        minima[:, :4] | minima[:, 4:] >> 4 << 6,
        scales[:, 4:] & 15 | (minima[:, 4:] & 15) << 4,
    ]).astype(np.uint8)  # fmt: skip
    pairs = codes.reshape(-1, 4, 2, 32)
    nibbles = (pairs[:, :, 0] | pairs[:, :, 1] << 4).astype(np.uint8).reshape(-1, 128)
    return np.hstack([stored_d, stored_min, packed, nibbles])


def _q6_k(x: NDArray[Any]) -> Bytes:
    subs = x.reshape(-1, 16, 16)
    steps = np.abs(subs).max(axis=2) / 31
    stored, d = _scale(steps.max(axis=1, keepdims=True) / 127)
    scales = _codes(steps, d, -127, 127)
    read = (d * scales)[:, :, None]
    codes = _codes(subs, np.where(read == 0, 1, read), -32, 31) + 32
    quarters = codes.reshape(-1, 2, 4, 32)  # [block, half, quarter, l]
    low = quarters & 15
    low = np.stack([low[:, :, 0] | low[:, :, 2] << 4, low[:, :, 1] | low[:, :, 3] << 4], axis=2)
    high = (quarters >> 4 << np.array([0, 2, 4, 6])[:, None]).sum(axis=2)
    packed = [low.reshape(-1, 128), high.reshape(-1, 64), scales.astype(np.int8).view(np.uint8)]
    return np.hstack([*(part.astype(np.uint8) for part in packed), stored])


_ENCODERS = {
    "f32": _f32, "f16": _f16, "bf16": _bf16,
    "Q8_0": _q8_0, "Q4_0": _q4_0, "MXFP4": _mxfp4, "Q4_K": _q4_k, "Q6_K": _q6_k,
}  # fmt: skip
