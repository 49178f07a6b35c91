"""Rows from GGUF files: the bytes of the tensors, by a writer that is not ours, and one line for what cannot be run."""

import pytest
from weights_cases import EXPERTS, write_gguf

import slotwise
from slotwise.executor.backend import make_backend
from slotwise.executor.errors import BadExecutor
from slotwise.executor.store import HostStore
from slotwise.executor.weights import open_weights

pytest.importorskip("gguf", reason="the extra `test` brings the package gguf")


@pytest.mark.parametrize("biases", [False, True])
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
