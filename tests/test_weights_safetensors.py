"""Rows from checkpoints: the bytes of the file, one line for what is damaged, and a model that really runs."""

import json
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
        (lambda t: t.update({"model.layers.1.mlp.experts.1.up_proj.weight": np.zeros((16, 8), np.int8)}), "is 'I8'"),
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


@pytest.mark.parametrize("prefix", ["", "model.", "model.language_model.", "language_model.model.", "transformer."])
def test_layers_behind_a_foreign_prefix_are_not_the_models(tmp_path, prefix):
    own = {prefix + name.removeprefix("model."): array for name, array in experts(layers=(0,)).items()}
    foreign = {
        name.replace("model.", other, 1): array + 1
        for other in ("mtp.", "model.mtp.", "model.visual.", "vision_tower.model.")
        for name, array in experts(layers=(0, 7)).items()
    }
    checkpoint = Checkpoint(write_checkpoint(tmp_path, own | foreign))
    assert checkpoint.model_layers == [0]
    store = checkpoint.fill(HostStore(checkpoint.layouts, 2, make_backend("numpy")))
    parts = [own[f"{prefix}layers.0.mlp.experts.1.{name}.weight"].tobytes() for name in ("gate_proj", "up_proj")]
    assert store.row(0, 1).tobytes().startswith(b"".join(parts))


NAME = "model.layers.1.mlp.experts.1.up_proj.weight"


def test_two_tensors_for_one_place_are_both_named(tmp_path):
    tensors = experts()
    other = "layers.1.mlp.experts.01.w3.weight"
    folder = write_checkpoint(tmp_path, tensors | {other: tensors[NAME]})
    with pytest.raises(BadExecutor) as told:
        Checkpoint(folder)
    assert NAME in str(told.value)
    assert other in str(told.value)
    write_checkpoint(folder, tensors)
    (folder / "second.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    with pytest.raises(BadExecutor, match=r"second.safetensors: model.* of model.safetensors are the same matrix"):
        Checkpoint(folder)
    text = json.dumps({NAME: {}})
    text = (text[:-1] + ", " + text[1:]).encode()
    (folder / "second.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    with pytest.raises(BadExecutor, match=f"second.safetensors: .*'{NAME}' is in it twice"):
        Checkpoint(folder)


def _change_header(path, change):
    whole = path.read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    header = json.loads(whole[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + whole[8 + length :])


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("shape", [None, "88", [8.0, 16], [True, 128], [-16, -8], [0, 8], [128], 128, {"a": 1}, [2**40, 2**40]]),
        ("data_offsets", [None, "ab", 3, [0], [0, 1, 2], [0.0, 512.0], [None, 1], {"0": 1, "1": 2}, [-512, 0]]),
        ("dtype", [None, [], {}, ["F32"], "F\n32", 32]),
    ],
)
def test_malformed_entries_are_one_line_naming_file_and_tensor(tmp_path, key, values):
    path = write_checkpoint(tmp_path, experts()) / "model.safetensors"
    whole = path.read_bytes()
    changes = [lambda header, value=value: header[NAME].update({key: value}) for value in values]
    for change in (*changes, lambda header: header[NAME].pop(key), lambda header: header.update({NAME: [1]})):
        path.write_bytes(whole)
        _change_header(path, change)
        with pytest.raises(BadExecutor) as told:
            Checkpoint(tmp_path)
        assert str(told.value).startswith(f"{path}: {NAME} ")
        assert "\n" not in str(told.value)


def test_endless_numbers_endless_nesting_and_absent_files_are_one_line(tmp_path):
    path = write_checkpoint(tmp_path, experts()) / "model.safetensors"
    whole = path.read_bytes()
    long = NAME.replace("experts.1", "experts." + "9" * 5000)
    _change_header(path, lambda header: header.update({long: header.pop(NAME)}))
    with pytest.raises(BadExecutor, match=r"model.safetensors: model.layers.1.mlp.experts.999.*over 6 digits") as told:
        Checkpoint(tmp_path)
    assert len(str(told.value)) < 400
    deep = b"[" * 100_000
    for text, rule in ((deep, "is not JSON"), (b"[]", "is not a JSON object")):
        path.write_bytes(struct.pack("<Q", len(text)) + text)
        with pytest.raises(BadExecutor, match=f"model.safetensors: its header {rule}"):
            Checkpoint(tmp_path)
    path.unlink()
    path.symlink_to("absent")
    with pytest.raises(BadExecutor, match=r"model.safetensors: not a readable file"):
        Checkpoint(tmp_path)
    path.unlink()
    path.write_bytes(whole)
    for text, rule in (
        (deep.decode(), "not a readable config"),
        ('{"hidden_act": ["silu"]}', "hidden_act=.'silu'.;"),
        ('{"hidden_act": {}}', "hidden_act={};"),
        ("[]", "hidden_act=None;"),
    ):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(BadExecutor, match=f"config.json: {rule}"):
            Checkpoint(tmp_path)


def test_a_trained_model_runs_from_its_checkpoint_and_is_held_against_a_replay(shared):
    folder = shared / "models" / "tiny-olmoe"
    trace = slotwise.synthesise(n_tokens=40, n_layers=6, n_experts=32, top_k=4, width=2, seed=1)
    (run,) = slotwise.run(trace, "lfru+guard", 8, width=2, weights=folder, headroom=0, check=True)["runs"]
    assert (run["hidden"], run["intermediate"], run["dtypes"]) == (128, 64, ["bf16"] * 3)
    assert run["counters"]["hits"] > 0
    with pytest.raises(BadExecutor, match="6 MoE layers of 32 experts"):
        slotwise.run("sample", slots=8, weights=folder)
