"""What an expert computes, in float64 from the stored bytes: slow and obvious, the judge of every chain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .cold import RowLayout
from .dtypes import FP4, Bytes, dtype_named
from .store import HostStore

Floats = NDArray[np.float64]


def _half(blocks: Bytes, at: int) -> Floats:
    """The float16 at that byte of every block, [n, 1]."""
    return blocks[:, at : at + 2].copy().view("<f2").astype(np.float64)


def _nibbles(packed: Bytes) -> NDArray[Any]:
    """The low nibbles of all bytes, then the high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _q8_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8)


def _q4_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.int64) - 8)


def _mxfp4(blocks: Bytes) -> Floats:
    signed = np.concatenate([FP4, -FP4])
    return np.exp2(blocks[:, :1].astype(np.float64) - 127) * signed[_nibbles(blocks[:, 1:])]


def _q4_k(blocks: Bytes) -> Floats:
    packed = blocks[:, 4:16]
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.hstack([first & 63, third & 15 | first >> 6 << 4])
    minima = np.hstack([second & 63, third >> 4 | second >> 6 << 4])
    q = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    scaled, least = _half(blocks, 0) * scales, _half(blocks, 2) * minima
    return (scaled[:, :, None] * q - least[:, :, None]).reshape(-1, 256)


def _q6_k(blocks: Bytes) -> Floats:
    """In each half: 64 bytes of low nibbles, 32 bytes of high pairs; a quarter has 32 weights."""
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    pairs = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    high = pairs >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    q = (low | high << 4).reshape(-1, 16, 16).astype(np.int64) - 32
    scales = blocks[:, 192:208].view(np.int8)
    return ((_half(blocks, 208) * scales)[:, :, None] * q).reshape(-1, 256)


def _f32(stored: Bytes) -> Floats:
    return stored.view("<f4").astype(np.float64)


def _f16(stored: Bytes) -> Floats:
    return stored.view("<f2").astype(np.float64)


def _bf16(stored: Bytes) -> Floats:
    return (stored.view("<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)


_DECODERS: dict[str, Callable[[Bytes], Floats]] = {
    "f32": _f32, "f16": _f16, "bf16": _bf16,
    "Q8_0": _q8_0, "Q4_0": _q4_0, "MXFP4": _mxfp4, "Q4_K": _q4_k, "Q6_K": _q6_k,
}  # fmt: skip


def dequantise(name: str, stored: Bytes) -> Floats:
    """Bytes [..., width] of one stored dtype as float64 [..., k]. Raises BadExecutor for an unknown dtype."""
    width = dtype_named(name).block_bytes
    blocks = np.ascontiguousarray(stored).reshape(-1, width)
    return _DECODERS[name](blocks).reshape(*stored.shape[:-1], -1)


def activated(layout: RowLayout, g: Floats, u: Floats) -> Floats:
    """The activation of a layout, from what gate and up gave."""
    if layout.activation == "swiglu":
        return g * _sigmoid(g) * u
    if layout.activation == "geglu":
        return 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3))) * u
    g, u = np.minimum(g, layout.limit), np.clip(u, -layout.limit, layout.limit)
    return g * _sigmoid(layout.alpha * g) * (u + 1)


def _sigmoid(z: Floats) -> Floats:
    return 0.5 * (1 + np.tanh(0.5 * z))


def expert(layout: RowLayout, row: Bytes, x: NDArray[Any]) -> Floats:
    """y [n, hidden] in float64 of one row of bytes and x [n, hidden]."""
    shapes = [(layout.inner, layout.hidden), (layout.inner, layout.hidden), (layout.hidden, layout.inner)]
    parts = []
    for name, start, size, bias, shape in zip(
        layout.dtypes, layout.starts, layout.sizes, layout.bias_starts, shapes, strict=True
    ):
        weights = dequantise(name, row[start : start + size].reshape(shape[0], -1))
        added = row[bias : bias + 4 * shape[0]].copy().view("<f4").astype(np.float64) if bias >= 0 else 0.0
        parts.append((weights, added))
    (gate, gate_bias), (up, up_bias), (down, down_bias) = parts
    x = x.astype(np.float64)
    return activated(layout, x @ gate.T + gate_bias, x @ up.T + up_bias) @ down.T + down_bias


def moe_layer(store: HostStore, layer: int, x: NDArray[Any], ids: NDArray[Any], weights: NDArray[Any]) -> Floats:
    """y [n, hidden] in float64 of a whole layer: x [n, hidden], ids and weights [n, k]; absent ids add nothing."""
    y = np.zeros(x.shape, np.float64)
    for chosen in sorted({int(e) for e in ids.ravel() if 0 <= e < store.n_experts}):
        tokens, ranks = np.nonzero(ids == chosen)
        out = expert(store.layouts[layer], store.row(layer, chosen), x[tokens])
        np.add.at(y, tokens, weights[tokens, ranks, None].astype(np.float64) * out)
    return y


def normed(x: NDArray[Any], y: NDArray[Any]) -> Floats:
    """What the next layer takes in, in float64: x + y over the root of its mean square, row by row."""
    total = x.astype(np.float64) + y
    return total / np.sqrt(np.mean(total * total, axis=1, keepdims=True) + 1e-6)


def errors(found: NDArray[Any], expected: Floats) -> Floats:
    """Per token the length of the difference, relative to the length of what was expected; 0 where both are 0."""
    wrong, length = np.linalg.norm(found - expected, axis=1), np.linalg.norm(expected, axis=1)
    return np.where(wrong == 0, 0.0, wrong / np.where(length == 0, np.nan, length))
