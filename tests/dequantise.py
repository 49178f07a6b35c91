"""The slow, obvious twins of the cold chain: one weight at a time from the stored bytes, and an expert in float64."""

import numpy as np

FP4 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def half(block, at):
    return float(block[at : at + 2].copy().view("<f2")[0])


def q8_0(block):
    return [half(block, 0) * int(q) for q in block[2:].view(np.int8)]


def q4_0(block):
    nibbles = [int(b) & 15 for b in block[2:]] + [int(b) >> 4 for b in block[2:]]
    return [half(block, 0) * (q - 8) for q in nibbles]


def mxfp4(block):
    nibbles = [int(b) & 15 for b in block[1:]] + [int(b) >> 4 for b in block[1:]]
    return [2.0 ** (int(block[0]) - 127) * FP4[q] for q in nibbles]


def q4_k(block):
    packed = [int(b) for b in block[4:16]]
    scales = [packed[i] & 63 for i in range(4)] + [packed[8 + i] & 15 | packed[i] >> 6 << 4 for i in range(4)]
    minima = [packed[4 + i] & 63 for i in range(4)] + [packed[8 + i] >> 4 | packed[4 + i] >> 6 << 4 for i in range(4)]
    d, d_min = half(block, 0), half(block, 2)
    found = []
    for i in range(256):
        byte = int(block[16 + 32 * (i // 64) + i % 32])
        q = byte >> 4 if i % 64 >= 32 else byte & 15
        found.append(d * scales[i // 32] * q - d_min * minima[i // 32])
    return found


def q6_k(block):
    scales, d = block[192:208].view(np.int8), half(block, 208)
    found = []
    for i in range(256):
        part, quarter, at = i // 128, i % 128 // 32, i % 32
        low = int(block[64 * part + 32 * (quarter % 2) + at]) >> 4 * (quarter // 2) & 15
        high = int(block[128 + 32 * part + at]) >> 2 * quarter & 3
        found.append(d * int(scales[i // 16]) * ((low | high << 4) - 32))
    return found


BLOCKS = {"Q8_0": (34, q8_0), "Q4_0": (18, q4_0), "MXFP4": (17, mxfp4), "Q4_K": (144, q4_k), "Q6_K": (210, q6_k)}


def dequantise(name, stored):
    """Bytes [..., width] of one stored dtype as float64 [..., k]."""
    stored = np.ascontiguousarray(stored)
    if name == "bf16":
        return (stored.view("<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if name in ("f32", "f16"):
        return stored.view({"f32": "<f4", "f16": "<f2"}[name]).astype(np.float64)
    width, of = BLOCKS[name]
    blocks = [of(block) for block in stored.reshape(-1, width)]
    return np.array(blocks, dtype=np.float64).reshape(*stored.shape[:-1], -1)


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def activated(name, g, u, alpha, limit):
    if name == "swiglu":
        return g * sigmoid(g) * u
    if name == "geglu":
        return 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3))) * u
    g, u = np.minimum(g, limit), np.clip(u, -limit, limit)
    return g * sigmoid(alpha * g) * (u + 1)


def expert(layout, row, x):
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
    act = activated(layout.activation, x @ gate.T + gate_bias, x @ up.T + up_bias, layout.alpha, layout.limit)
    return act @ down.T + down_bias
