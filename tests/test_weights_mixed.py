"""Weights whose layers differ in dtypes or width: the plans are the replay's, the bytes the file's, in any scope."""

import json

import numpy as np
import pytest
from conftest import slotwise as cli
from executor_cases import Model, carry_out
from weights_cases import EXPERTS, MIXED, experts, write_checkpoint, write_gguf

import slotwise
from slotwise.executor.cold import RowLayout
from slotwise.executor.errors import BadExecutor
from slotwise.executor.shapes import as_recorded, shape_for, shape_of

Q4_K, Q6_K = 256 * 144, 256 * 210  # a matrix of 256 x 256: 256 blocks of 256 weights
ROWS = [2 * Q4_K + Q6_K, 3 * Q4_K, 3 * Q4_K, 2 * Q4_K + Q6_K]
HERE = {"headroom": 0, "check": True, "cpu_threads": 1}


def trace():
    return slotwise.synthesise(n_tokens=60, n_layers=4, n_experts=EXPERTS, top_k=2, width=2, seed=1)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "mixed.gguf"
    write_gguf(path, MIXED)
    return path


@pytest.mark.parametrize(
    "options",
    [
        {"slots": 2},
        {"slots": 2, "miss": "fetch", "prefill": "stream"},
        {"slots": 9, "scope": "global"},
        {"slots": 9, "scope": "global", "miss": "split", "overlap": "both"},
        {"vram": 4 * ROWS[0]},  # a layer gets the bytes of one wide row, which is one row everywhere
        {"vram": 4 * 3 * ROWS[1]},  # three narrow rows, or two wide ones
    ],
)
def test_a_run_over_unequal_layers_makes_the_plan_of_a_replay_with_their_row_bytes(mixed, options):
    plans = {key: value for key, value in options.items() if key not in ("miss", "overlap")}
    law = slotwise.replay(trace().with_row_bytes(ROWS), "lfru+guard", width=1, plan_hash=True, **plans)
    for run in slotwise.run(trace(), "lfru+guard", width=1, weights=mixed, **HERE, **options)["runs"]:
        assert run["plan_sha256"] == law.plan_sha256
        assert run["counters"]["hits"] == law.counters["hits"] > 0
        assert run["slots_by_layer"] == law.options["slots_by_layer"]
        if run["miss"] == "cpu":
            assert run["timing"]["bytes_copied"] == law.counters["bytes_loaded"]
    if options == {"vram": 4 * 3 * ROWS[1]}:
        assert law.options["slots_by_layer"] == [2, 3, 3, 2]


def test_every_layer_is_computed_by_its_own_dtypes_wherever_its_rows_lie():
    """In slots as wide as the widest row, in slots of its own width, and on the CPU: no byte of an output differs."""
    model = Model(4, EXPERTS, 2, by_layer=tuple(RowLayout(256, 256, dtypes) for dtypes in MIXED))
    wide = carry_out(model, trace(), "lru", 12, pool={"scope": "global"})
    own, none = carry_out(model, trace(), "lru", 3), carry_out(model, trace(), "lru", 0)
    assert min(wide.counters["hits"], own.counters["hits"]) > 0
    assert wide.outputs == own.outputs == none.outputs


def test_a_checkpoint_may_differ_in_dtype_and_width_by_layer(tmp_path):
    tensors = (
        experts((0, 3), EXPERTS, 32, 64) | experts((1,), EXPERTS, 32, 48) | experts((2,), EXPERTS, 32, 64, np.float16)
    )
    folder = write_checkpoint(tmp_path, tensors)
    (run,) = slotwise.run(trace(), "lru", 9, scope="global", weights=folder, **HERE)["runs"]
    wide, narrow, half = 4 * 3 * 32 * 64, 4 * 3 * 32 * 48, 2 * 3 * 32 * 64
    assert run["rows_by_layer"] == [
        {"layers": "0,3", "intermediate": 64, "dtypes": ["f32"] * 3, "row_bytes": wide},
        {"layers": "1", "intermediate": 48, "dtypes": ["f32"] * 3, "row_bytes": narrow},
        {"layers": "2", "intermediate": 64, "dtypes": ["f16"] * 3, "row_bytes": half},
    ]
    assert (run["hidden"], run["intermediate"], run["dtypes"], run["row_bytes"]) == (32, None, None, None)


def test_layers_that_are_alike_are_told_once_and_ranges_are_short():
    a, b = RowLayout(32, 64, ("bf16",) * 3), RowLayout(32, 64, ("bf16", "bf16", "f32"))
    told = as_recorded([a] * 3)
    assert told == {
        "hidden": 32, "intermediate": 64, "dtypes": ["bf16"] * 3, "row_bytes": a.row_bytes, "rows_by_layer": None
    }  # fmt: skip
    told = as_recorded([a, a, a, b, a, b, b])
    assert [each["layers"] for each in told["rows_by_layer"]] == ["0-2,4", "3,5-6"]
    assert (told["intermediate"], told["dtypes"]) == (64, None)


def test_q4_k_m_is_a_mix_by_layer_and_runs_without_a_file():
    """36 layers: the first and the last eighth, 4 and 5 layers, and layers 6, 9, ..., 30 have down in Q6_K."""
    layouts = shape_of("qwen3 30b a3b").layouts(36, "Q4_K_M")
    six = [layer for layer, layout in enumerate(layouts) if layout.dtypes == ("Q4_K", "Q4_K", "Q6_K")]
    assert six == [*range(4), *range(6, 31, 3), *range(31, 36)]
    assert {layout.dtypes for layout in layouts} == {("Q4_K", "Q4_K", "Q6_K"), ("Q4_K",) * 3}
    (run,) = slotwise.run(trace(), slots=2, hidden=256, intermediate=256, dtype="Q4_K_M", **HERE)["runs"]
    assert [(each["layers"], each["dtypes"][2]) for each in run["rows_by_layer"]] == [("0-1", "Q4_K"), ("2-3", "Q6_K")]


def test_a_model_is_known_by_its_name_and_no_model_is_taken_for_the_tiny_shape():
    for model, expected in (
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", (4096, 14336, "bf16", "swiglu", False)),
        ("openai/gpt-oss-20b", (2880, 2880, "MXFP4", "swiglu_clamped", True)),
    ):
        shape = shape_for(model)
        assert shape is not None
        assert shape[:5] == expected
    assert shape_for("TinyMixtral-4x248M-MoE") is None


def test_what_unequal_rows_cannot_do_is_one_line_that_says_the_way_out(mixed, tmp_path):
    where = tmp_path / "t.parquet"
    trace().save(where)
    words = ("run", where, "--weights", mixed, "--headroom", "0")
    told = cli(*words, "--scope", "global", "--vram", "1MB", code=2).stderr
    assert f"rows of {ROWS[1]} to {ROWS[0]} bytes" in told
    assert "give --slots 7, as many of the widest as fit, or --scope layer" in told  # 7 * 127,488 = 892,416
    assert len(told.splitlines()) == 1
    assert json.loads(cli(*words, "--scope", "global", "--slots", "7", "--json").stdout)["runs"][0]["slots"] == 7
    told = cli(*words, "--vram", "2MB", "--device-bytes", "1MB", code=2).stderr
    assert "3 to 4 slots take 2 MiB" in told
    assert "layer 1 cannot be an alias of layer 0" in cli(*words, "--alias-layers", "1", code=2).stderr
    with pytest.raises(BadExecutor, match="row_bytes=5: rows of a run are as large as its weights"):
        slotwise.run(trace(), slots=2, weights=mixed, row_bytes=5)
    tensors = experts((0, 1, 2), EXPERTS, 32, 64) | experts((3,), EXPERTS, 16, 64)
    with pytest.raises(BadExecutor, match="layers of hidden sizes 16, 32"):
        slotwise.run(trace(), slots=2, weights=write_checkpoint(tmp_path, tensors))


def test_people_read_which_layers_hold_what(mixed, tmp_path):
    where = tmp_path / "t.parquet"
    trace().save(where)
    said = cli("run", where, "--weights", mixed, "--headroom", "0", "--slots", "2").stdout
    assert "layers 0,3: Q4_K Q4_K Q6_K, 256 x 256, 127,488 bytes" in said
    assert "layers 1-2: Q4_K Q4_K Q4_K, 256 x 256, 110,592 bytes" in said
