"""A machine is measured: every figure is there, the file prices a replay, and what cannot be measured is refused."""

import json

import numpy as np
import pytest
from cold_cases import built
from conftest import slotwise as command
from cupy_cases import gpu
from executor_cases import no_thread_left

import slotwise
from slotwise.executor.calibration_link import _figures
from slotwise.executor.calibration_policies import CALLS, POLICIES, policy_figures
from slotwise.executor.stopwatch import FLOOR, LEAST_RATE, MOST_RATE, Value, rate_of, settled, usual
from slotwise.replay.machine_figures import FIGURES

pytestmark = pytest.mark.skipif(not built(), reason="the cold chain was not built")
ROW_BYTES = 3 * 128 * 64 * 4  # of the shape `tiny`


@pytest.fixture(scope="module")
def machine():
    with no_thread_left():
        return slotwise.calibrate(shape="tiny", quick=True, cpu_threads=1, policies=["fifo"])


@pytest.mark.once
def test_every_figure_is_measured_and_both_chains_have_a_sheet_for_each_number_of_tokens(machine):
    assert (machine.label, machine.backend, machine.cpu_threads) == ("MEASURED", "numpy", 1)
    assert set(machine.figures) == set(FIGURES)
    assert {(sheet.chain, sheet.tokens, sheet.threads) for sheet in machine.sheets} == {
        (chain, tokens, threads) for chain, threads in (("hot", None), ("cold", 1)) for tokens in (1, 2, 4, 8, 32, 256)
    }
    assert {sheet.row_bytes for sheet in machine.sheets} == {ROW_BYTES}
    for sheet in machine.sheets:
        if sheet.tokens > 8:  # of a prompt: 64 experts, of which a token chooses 8
            assert (sheet.rows, sheet.pairs_per_row[-1]) == ((16, 64), sheet.tokens / 8)
            continue
        every = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64)
        assert sheet.rows == tuple(n for n in every if n <= 8 * sheet.tokens)
        assert sheet.pairs_per_row == tuple(p for p in (1.0, 2.0, 4.0) if p <= sheet.tokens)
    assert [each.gap_s for each in machine.wake] == [1e-4, 1e-3, 1e-2]
    assert [each.threads for each in machine.contention] == [1]
    assert set(machine.overlap) == {"hot_with_cold", "cold_with_hot", "overlap_s"}


@pytest.mark.once
def test_policies_are_held_against_lru_and_a_further_one_can_be_asked_for(machine):
    assert set(machine.policies) == {*POLICIES, "fifo"}
    assert machine.details["asked"]["policies"] == ["fifo"]
    lru = {name: Value(1.0, 0.0) for name in CALLS}
    found = policy_figures(["fifo", "lru"], lru, n_experts=32, top_k=4, steps=4, random=np.random.default_rng(0))
    assert set(found) == {"fifo"}, "lru's figures are those that it is held against"
    assert all(0.9 < value.value < 1.1 and value.spread > 0 for value in found["fifo"].values()), "seconds beside 1"
    with pytest.raises(slotwise.BadPolicy, match="belady needs to know the future"):
        policy_figures(["belady"], lru, n_experts=32, top_k=4, steps=1, random=np.random.default_rng(0))


@pytest.mark.once
def test_the_command_writes_a_file_that_prices_a_replay_and_replaces_none(tmp_path):
    file = tmp_path / "machine.json"
    words = "calibrate", "-o", file, "--shape", "tiny", "--quick"
    printed = json.loads(command(*words, "--json", "--cpu-threads", "1", "--name", "mine").stdout)
    assert printed == json.loads(file.read_text())
    assert slotwise.read_machine(file).to_dict()["name"] == "mine"
    refused = command(*words, code=2)
    assert "exists; choose another name, or replace it with --force" in refused.stderr
    assert json.loads(file.read_text()) == printed
    asked = "replay", "sample", "--steps", "40", "--row-bytes", ROW_BYTES, "--machine", file, "--json"
    price = json.loads(command(*map(str, asked)).stdout)["price"]
    assert (price["label"], price["machine"]) == ("SIMULATED", "mine")
    assert price["tokens_per_s"] > 0
    other = json.loads(command(*map(str, asked[:5]), 4096, "--machine", file, "--json").stdout)["price"]
    assert other["label"] == "ESTIMATED", "no sheet was measured for rows of this size"


@pytest.mark.gpu
def test_a_gpu_is_measured_by_the_same_code():
    gpu()
    machine = slotwise.calibrate(backend="cupy", hidden=256, intermediate=256, dtype="bf16", quick=True)
    assert (machine.label, machine.backend) == ("MEASURED", "cupy")
    assert machine["submit_merge_s"] > FLOOR, "the host launches a kernel"
    assert {sheet.chain for sheet in machine.sheets} == {"hot", "cold"}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"experts": 16}, "experts=16, top_k=8: at least 2 chosen ones, and four times as many experts"),
        ({"backend": "nmupy"}, "no backend 'nmupy'"),
        ({"shape": "huge"}, "no shape 'huge'"),
        ({"sms": 4}, "backend numpy has no sms"),
    ],
)
def test_what_cannot_be_measured_is_refused(asked, said):
    with pytest.raises(slotwise.BadExecutor, match=said):
        slotwise.calibrate(**{"shape": "tiny", "quick": True} | asked)


def test_the_middle_nine_tenths_count_and_differences_never_fall_below_the_floor():
    assert settled([1.0] * 19 + [100.0]) == (1.0, 0.0)
    assert settled([1.0, 3.0]) == (2.0, 1.0)
    assert usual([1.0, 2.0, 30.0]).value == 2.0
    assert usual([-1.0, -2.0, 3.0]).value == FLOOR
    assert Value(5.0, 3.0).less(Value(1.0, 4.0)) == (4.0, 5.0)
    assert Value(1.0, 0.0).less(Value(2.0, 0.0)) == (FLOOR, 0.0)
    assert Value(1.0, 20.0).checked() == (1.0, 10.0)


def test_a_link_of_known_costs_is_found_again():
    """batch 5 us + 2 us a row + bytes at 10 GB/s, at 1 and 8 rows of 1000 and 16000 bytes."""
    took = {(n, size): Value(5e-6 + n * (2e-6 + size / 1e10), 0.0) for n in (1, 8) for size in (1000, 16000)}
    found = _figures(took, 1000, 16000)
    assert found["batch_s"].value == pytest.approx(5e-6)
    assert found["row_s"].value == pytest.approx(2e-6)
    assert found["bytes_per_s"].value == pytest.approx(1e10)


def test_a_rate_whose_seconds_no_clock_shows_stays_within_a_machine_file():
    assert rate_of(1e6, 1e-3, 0.5) == (1e9, 5e8)
    assert rate_of(1e9, FLOOR, 0.5).value == FIGURES["host_compute_bytes_per_s"].high == MOST_RATE
    assert rate_of(12, 1e-3, 0.5).value == FIGURES["host_compute_bytes_per_s"].low == LEAST_RATE


@pytest.mark.once
def test_rows_of_a_few_bytes_are_measured_in_seconds_and_do_not_fill_memory_with_layers():
    machine = slotwise.calibrate(hidden=1, intermediate=1, dtype="f32", quick=True, cpu_threads=1, policies=["lru"])
    assert {sheet.row_bytes for sheet in machine.sheets} == {12}
