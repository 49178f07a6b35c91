"""Rows from checkpoints: the bytes of the file, one line for what is damaged, and a model that really runs."""

import struct

import numpy as np
import pytest
from weights_cases import experts, write_checkpoint

import slotwise
from slotwise.executor.backend import make_backend
from slotwise.executor.errors import BadExecutor
from slotwise.executor.store import HostStore
from slotwise.executor.weights_safetensors import Checkpoint


@pytest.mark.parametrize("names", [("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2")])
def test_a_row_is_gate_up_and_down_as_they_are_stored_and_dense_layers_are_left_out(tmp_path, names):
    where = "mlp" if names[0] == "gate_proj" else "block_sparse_moe"
    tensors = experts(names=names, where=where) | {"model.layers.0.mlp.gate_proj.weight": np.zeros((2, 2), np.int8)}
    checkpoint = Checkpoint(write_checkpoint(tmp_path, tensors))
    assert (checkpoint.model_layers, checkpoint.n_experts) == ([1, 2], 2)
    store = checkpoint.fill(HostStore(checkpoint.layouts, 2, make_backend("numpy")))
    for index, layer in enumerate(checkpoint.model_layers):
        for e in range(2):
            parts = [tensors[f"model.layers.{layer}.{where}.experts.{e}.{name}.weight"].tobytes() for name in names]
            assert store.row(index, e).tobytes() == b"".join(parts)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda t: t.pop("model.layers.1.mlp.experts.1.up_proj.weight"), "layer 1, expert 1: no up projection"),
        (
            lambda t: t.update({"model.layers.1.mlp.experts.1.up_proj.weight": np.zeros((4, 8), np.float32)}),
            "are alike",
        ),
        (lambda t: t.update({"model.layers.1.mlp.experts.1.up_proj.weight": np.zeros((16, 8), np.int8)}), "is I8"),
        (lambda t: t.clear(), "no tensor named like"),
    ],
)
def test_what_is_missing_or_not_alike_is_named(tmp_path, change, told):
    tensors = experts()
    change(tensors)
    with pytest.raises(BadExecutor, match=told):
        Checkpoint(write_checkpoint(tmp_path, tensors))


def test_damaged_files_are_one_line(tmp_path):
    with pytest.raises(BadExecutor, match=r"no \*.safetensors"):
        Checkpoint(tmp_path)
    with pytest.raises(BadExecutor, match="truncated or damaged"):
        Checkpoint(write_checkpoint(tmp_path, experts(), cut=4))
    with pytest.raises(BadExecutor, match="hidden_act='relu'"):
        Checkpoint(write_checkpoint(tmp_path, experts(), act="relu"))
    path = tmp_path / "model.safetensors"
    for raw in (b"", b"\xff" * 64, struct.pack("<Q", 4) + b"{{{{", struct.pack("<Q", 2**60) + b"{}"):
        path.write_bytes(raw)
        with pytest.raises(BadExecutor, match="damaged, or not safetensors"):
            Checkpoint(tmp_path)


def test_a_trained_model_runs_from_its_checkpoint_and_is_held_against_a_replay(shared):
    folder = shared / "models" / "tiny-olmoe"
    trace = slotwise.synthesise(n_tokens=40, n_layers=6, n_experts=32, top_k=4, width=2, seed=1)
    (run,) = slotwise.run(trace, "lfru+guard", 8, width=2, weights=folder, headroom=0, check=True)["runs"]
    assert (run["hidden"], run["intermediate"], run["dtypes"]) == (128, 64, ["bf16"] * 3)
    assert run["counters"]["hits"] > 0
    with pytest.raises(BadExecutor, match="6 MoE layers of 32 experts"):
        slotwise.run("sample", slots=8, weights=folder)
