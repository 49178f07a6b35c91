"""What the tests of real weights share: GGUF files and checkpoints of our own making, layers alike or not."""

import json
import struct

import numpy as np
import pytest

from slotwise.executor.dtypes import encode

HIDDEN = INNER = 256
EXPERTS = 4
KINDS = {np.dtype(np.float32): "F32", np.dtype(np.uint16): "BF16", np.dtype(np.float16): "F16", np.dtype(np.int8): "I8"}
MIXED = [("Q4_K", "Q4_K", "Q6_K"), ("Q4_K",) * 3, ("Q4_K",) * 3, ("Q4_K", "Q4_K", "Q6_K")]  # as K-quant files mix them


def write_gguf(
    path, layers=(("Q4_K", "Q4_K", "Q6_K"),) * 2, arch="qwen3moe", biases="", leave_out=(), inner=INNER, instead=None
):
    """A file of layers with these dtypes of gate, up and down. Returns the bytes [expert, out, ...] by layer, part.

    biases: their dtype, "" for none. instead: arrays, by name, that take the place of tensors.
    """
    gguf = pytest.importorskip("gguf", reason="the extra `test` brings the package gguf")
    writer = gguf.GGUFWriter(path, arch)
    draw, made = np.random.default_rng(0), {}

    def add(name, data, dtype):
        if name in (instead or {}):
            writer.add_tensor(name, instead[name])
        else:
            writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[dtype])

    for layer, dtypes in enumerate(layers):
        for part, name, (n_out, n_in) in zip(
            ("gate", "up", "down"), dtypes, [(inner, HIDDEN), (inner, HIDDEN), (HIDDEN, inner)], strict=True
        ):
            tensor = f"blk.{layer}.ffn_{part}_exps.weight"
            if tensor in leave_out:
                continue
            made[layer, part] = encode(name, draw.normal(0, n_in**-0.5, (EXPERTS, n_out, n_in)).astype(np.float32))
            add(tensor, made[layer, part], name)
            if biases:
                bias = draw.normal(size=(EXPERTS, n_out)).astype(np.float32)
                made[layer, part, "bias"] = encode(biases.lower(), bias)
                add(f"blk.{layer}.ffn_{part}_exps.bias", made[layer, part, "bias"], biases)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return made


def write_checkpoint(folder, tensors, act="silu", cut=0):
    """A checkpoint of (name, array) pairs; bf16 arrays come as uint16."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, array in tensors.items():
        raw = array.tobytes()
        header[name] = {
            "dtype": KINDS[array.dtype], "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]
        }  # fmt: skip
        data += raw
    text = json.dumps(header).encode()
    whole = struct.pack("<Q", len(text)) + text + data
    (folder / "model.safetensors").write_bytes(whole[: len(whole) - cut])
    (folder / "config.json").write_text(json.dumps({"hidden_act": act}))
    return folder


def experts(
    layers=(1, 2), n=2, hidden=8, inner=16, dtype=np.float32, names=("gate_proj", "up_proj", "down_proj"), where="mlp"
):
    """Matrices of a checkpoint's experts, by name."""
    draw = np.random.default_rng(0)
    return {
        f"model.layers.{layer}.{where}.experts.{e}.{name}.weight": draw.normal(
            0, 0.3, size=(hidden, inner) if i == 2 else (inner, hidden)
        ).astype(dtype)
        for layer in layers
        for e in range(n)
        for i, name in enumerate(names)
    }
