"""Rows from GGUF files: the bytes of the tensors, by a writer that is not ours, and one line for what cannot be run."""

import numpy as np
import pytest
from weights_cases import EXPERTS, write_gguf

import slotwise
from slotwise.executor.backend import make_backend
from slotwise.executor.errors import BadExecutor
from slotwise.executor.store import HostStore
from slotwise.executor.weights import open_weights

pytest.importorskip("gguf", reason="the extra `test` brings the package gguf")


@pytest.mark.parametrize("biases", ["", "F32"])
def test_a_row_is_gate_up_down_and_biases_as_they_are_stored(tmp_path, biases):
    path = tmp_path / "m.gguf"
    made = write_gguf(path, biases=biases, arch="gpt-oss" if biases else "qwen3moe")
    weights = open_weights(path)
    layout = weights.layouts[0]
    assert layout.dtypes == ("Q4_K", "Q4_K", "Q6_K")
    assert layout.activation == ("swiglu_clamped" if biases else "swiglu")
    store = weights.fill(HostStore(weights.layouts, EXPERTS, make_backend("numpy")))
    for layer in range(2):
        for e in range(EXPERTS):
            parts = [made[layer, part][e].tobytes() for part in ("gate", "up", "down")]
            if biases:
                parts += [made[layer, part, "bias"][e].tobytes() for part in ("gate", "up", "down")]
            assert store.row(layer, e).tobytes() == b"".join(parts)


@pytest.mark.parametrize("stored", ["F16", "BF16"])
def test_biases_stored_in_halves_are_float32_in_the_row(tmp_path, stored):
    made = write_gguf(tmp_path / "m.gguf", biases=stored, arch="gpt-oss")
    weights = open_weights(tmp_path / "m.gguf")
    store = weights.fill(HostStore(weights.layouts, EXPERTS, make_backend("numpy")))
    for e in range(EXPERTS):
        for start, part in zip(weights.layouts[1].bias_starts, ("gate", "up", "down"), strict=True):
            halves = made[1, part, "bias"][e].view("<u2")
            bits = halves.view("<f2").astype("<f4") if stored == "F16" else (halves.astype("<u4") << 16).view("<f4")
            assert store.row(1, e)[start : start + bits.nbytes].tobytes() == bits.tobytes()


@pytest.mark.parametrize(
    ("tensor", "array", "told"),
    [
        ("blk.0.ffn_up_exps.bias", np.zeros((EXPERTS, 128), np.float32), r"\[128, 4\]; needed is \[256, 4\]"),
        ("blk.0.ffn_up_exps.bias", np.zeros((256, EXPERTS), np.float32), r"\[4, 256\]; needed is \[256, 4\]"),
        ("blk.1.ffn_down_exps.bias", np.zeros(EXPERTS * 256, np.float32), r"\[1024\]; needed is \[256, 4\]"),
        ("blk.1.ffn_gate_exps.bias", np.zeros((EXPERTS, 256), np.int32), "is I32; biases are read from F32, F16, BF16"),
        ("blk.0.ffn_gate_exps.weight", np.zeros((256, 256), np.float32), r"needed are \[in, out, experts\]"),
    ],
)
def test_tensors_of_another_shape_or_dtype_are_named(tmp_path, tensor, array, told):
    write_gguf(tmp_path / "m.gguf", biases="F32", arch="gpt-oss", instead={tensor: array})
    with pytest.raises(BadExecutor, match=f"m.gguf: {tensor} .*{told}"):
        open_weights(tmp_path / "m.gguf")


def test_a_run_computes_the_stored_blocks_and_is_held_against_a_replay(tmp_path):
    write_gguf(tmp_path / "m.gguf")
    trace = slotwise.synthesise(n_tokens=30, n_layers=2, n_experts=EXPERTS, top_k=2, seed=1)
    (run,) = slotwise.run(trace, "lru", 3, weights=tmp_path / "m.gguf", headroom=0, check=True)["runs"]
    assert run["dtypes"] == ["Q4_K", "Q4_K", "Q6_K"]
    assert run["counters"]["hits"] > 0


def test_what_cannot_be_run_is_one_line(tmp_path):
    path = tmp_path / "m.gguf"
    write_gguf(path, leave_out=("blk.1.ffn_up_exps.weight",))
    with pytest.raises(BadExecutor, match="layer 1 has no ffn_up_exps"):
        open_weights(path)
    whole = path.read_bytes()
    for cut in (5, 40, len(whole) // 2):
        path.write_bytes(whole[:cut])
        with pytest.raises(BadExecutor, match=r"damaged or truncated GGUF|no tensor named like"):
            open_weights(path)
    path.write_bytes(b"text")
    with pytest.raises(BadExecutor, match="neither a GGUF file nor"):
        open_weights(path)
    with pytest.raises(BadExecutor, match="no such file or folder"):
        open_weights(tmp_path / "absent")
