"""Where overlap pays: the table by hand, ticks that follow it with the same bytes and plans, prices that agree."""

import json
from dataclasses import replace

import numpy as np
import pytest
from cold_cases import built
from conftest import slotwise as command
from executor_cases import Model, carry_out

import slotwise
from slotwise.executor.overlap import OverlapGate
from slotwise.replay.gate import NEVER, gates_for
from slotwise.replay.machine_figures import Figure, Sheet
from slotwise.replay.pricing import Pricing
from slotwise.reports import write_report

native = pytest.mark.skipif(not built(), reason="the cold chain was not built")
US = 1e-6
TINY = 3 * 128 * 64 * 4  # bytes of a row of the shape `tiny`


FREE = dict.fromkeys(("submit_hot_s", "submit_batch_s", "submit_load_s"), 1e-9)


def machine(
    row_bytes=1000, *, hot_with_cold=1.0, cold_with_hot=1.0, overlap_us=15.0, spread=0.0, threads=1, figures=()
):
    """A row takes the hot chain 10 us and the cold one 40 us, whatever its size and its tokens."""

    def sheet(chain, us):
        grid = tuple((us * rows * US,) for rows in (1, 2))
        return Sheet(chain, row_bytes, 1, (1, 2), (1.0,), grid, ((spread,), (spread,)), threads if us == 40 else None)

    made = slotwise.estimate_machine(link="12GB/s", host_read="45GB/s", device_read="360GB/s", cpu_threads=threads,
                                    figures=dict(figures))  # fmt: skip
    shares = {"hot_with_cold": Figure(hot_with_cold), "cold_with_hot": Figure(cold_with_hot)}
    return replace(
        made, label="MEASURED", sheets=(sheet("hot", 10), sheet("cold", 40)),
        overlap=shares | {"overlap_s": Figure(overlap_us * US)},
    )  # fmt: skip


def loads_from(top_k=4, ahead_s=0.0, figures=FREE, **asked):
    on = machine(figures=figures, **asked)
    (found,) = gates_for(Pricing(on), (1000,), batch_gate=2, n_experts=8, top_k=top_k, ahead_s=ahead_s)
    return found


def test_a_tick_overlaps_where_the_shorter_chain_takes_longer_than_overlap_costs():
    """The shorter chain is hidden: min(10 hot, 40 cold) us against 15."""
    found = loads_from()
    assert found.shape == (3, 9, 9)
    expected = [[not hot or not cold or min(10 * hot, 40 * cold) > 15 for cold in range(5)] for hot in range(5)]
    assert (found[1, :5, :5] == 0).tolist() == expected
    assert loads_from(overlap_us=25)[1, 2, 1] > 0
    assert not loads_from(overlap_us=1e-3).any()


def test_chains_that_slow_each_other_down_gain_less():
    """4 hot rows and 1 cold one take 40 us each. At 70 % of their speeds both end after 57 of 80 us, at 55 after 73."""
    assert loads_from(overlap_us=20, hot_with_cold=0.7, cold_with_hot=0.7)[1, 4, 1] == 0
    assert loads_from(overlap_us=20, hot_with_cold=0.55, cold_with_hot=0.55)[1, 4, 1] > 0
    assert loads_from(overlap_us=1e-3, hot_with_cold=0.5, cold_with_hot=0.5)[1, 4, 1] > 0
    assert loads_from(overlap_us=20, hot_with_cold=1.0, cold_with_hot=0.55)[1, 4, 1] == 0, "40 + 18 us of 80, and 20"


def test_what_the_longer_of_two_uncertain_times_takes_more_counts():
    """Equal means with a spread of 20 us each: their maximum is 20 sqrt(2) / sqrt(2 pi) = 11.3 us longer."""
    assert loads_from(overlap_us=28, spread=20 * US)[1, 4, 1] == 0
    assert loads_from(overlap_us=29, spread=20 * US)[1, 4, 1] > 0


def test_the_more_loads_the_host_has_to_start_the_more_overlap_hides():
    """4 hot rows beside 4 cold ones hide 40 us, and the launch of the hot chain 2 more: 10 of 52 are lost. A batch
    takes the host 3 us, a load 2.5: three make up for it; with 6 us of look-ahead one does, with 13 none."""
    figures = {"submit_hot_s": 2 * US, "submit_batch_s": 3 * US, "submit_load_s": 2.5 * US}
    asked = {"overlap_us": 52, "figures": figures}
    assert loads_from(**asked)[1, 4, 4] == 3
    assert loads_from(**asked, ahead_s=6 * US)[1, 4, 4] == 1
    assert loads_from(**asked, ahead_s=13 * US)[1, 4, 4] == 0


def test_a_gate_looks_up_layer_tokens_rows_and_loads_and_takes_what_lies_beyond_for_the_end():
    tables = [np.zeros((3, 4, 5), np.uint16), np.zeros((3, 4, 5), np.uint16)]
    tables[1][2, 3, 4], tables[1][1, 2, 3] = 300, 2
    gate = OverlapGate([tables[0], tables[1], tables[0]])
    assert gate(1, 1, 2, 3, 1) is False
    assert gate(1, 1, 2, 3, 2) is gate(0, 1, 2, 3, 0) is gate(2, 1, 2, 3, 0) is gate(1, 2, 2, 3, 0) is True
    assert (gate(1, 7, 9, 9, 299), gate(1, 7, 9, 9, 300)) == (False, True)


@native
def test_ticks_follow_the_table_and_neither_bytes_nor_plans_change():
    model = Model()
    trace = model.trace((1, 1, 3, 1, 12, 2, 1, 1, 8, 1, 1, 1, 2))
    asked = {"width": 3, "pool": {"batch_gate": 8}}
    tables = [np.full((9, 9, 9), NEVER, np.uint16) for _ in range(model.n_layers)]
    tables[1][1] = 0  # layer 1, steps of one token
    runs = {
        name: carry_out(model, trace, "lru", 4, overlap=overlap, **asked)
        for name, overlap in (("on", True), ("off", False), ("some", OverlapGate(tables)))
    }
    first = runs["on"]
    assert len({run.outputs for run in runs.values()}) == 1
    assert {run.plan_sha256 for run in runs.values()} == {
        slotwise.replay(trace, "lru", 4, width=3, plan_hash=True).plan_sha256
    }
    counted = {name: run.executor.dispatcher for name, run in runs.items()}
    both = counted["off"].serial
    assert counted["off"].overlapped == 0
    assert 0 < counted["on"].serial < both, "steps above the batch gate"
    assert counted["on"].overlapped + counted["on"].serial == both
    assert 0 < counted["some"].overlapped < counted["on"].overlapped
    assert counted["some"].overlapped + counted["some"].serial == both
    assert first.counters == runs["some"].counters


@pytest.mark.once
@native
def test_a_run_overlaps_the_ticks_that_the_price_overlaps_and_says_how_many(tmp_path):
    on = machine(TINY, overlap_us=25, figures=FREE)
    asked = {"steps": 60, "machine": on}
    price = slotwise.replay("sample", "lru", "25%", row_bytes=TINY, overlap="auto", **asked).price
    out = tmp_path / "R.parquet"
    (run,) = slotwise.run(
        "sample", "lru", "25%", shape="tiny", headroom=0, alias_layers=2, cpu_threads=1, overlap="auto", check=True,
        out=out, **asked,
    )["runs"]  # fmt: skip
    counted = {name: run["timing"][name] for name in ("ticks_overlapped", "ticks_serial")}
    assert counted == price.at_once
    assert min(counted.values()) > 0
    assert (run["overlap"], run["checked"], run["machine_sha256"]) == ("auto", True, on.sha256)
    import pyarrow.parquet as pq

    (row,) = pq.read_table(out).to_pylist()
    assert {name: row["timing"][name] for name in counted} == counted
    page = write_report([out], tmp_path / "report")[0]
    assert "auto" in page.read_text()


@pytest.mark.parametrize("policy", ["lru", "lru+gate(window=16, admit=3)"])
@pytest.mark.parametrize("overlap_us", [1, 25, 200])
def test_by_the_price_the_gate_is_never_slower_than_either_side_by_more_than_two_per_cent(policy, overlap_us):
    on = machine(4096, overlap_us=overlap_us, hot_with_cold=0.8, cold_with_hot=0.7)
    seconds = {
        side: slotwise.replay("sample", policy, 32, row_bytes=4096, machine=on, overlap=side, steps=300).price.seconds
        for side in ("on", "off", "auto")
    }
    assert seconds["auto"] <= 1.02 * min(seconds["on"], seconds["off"])


@pytest.mark.once
def test_commands_take_auto_with_a_machine_and_refuse_it_without(tmp_path):
    words = "run", "sample", "--shape", "tiny", "--headroom", "0", "--alias-layers", "1", "--steps", "20"
    refused = command(*words, "--overlap", "auto", code=2).stderr
    said = "overlap='auto': where it pays is known from a machine file; give machine, or on or off"
    assert said in " ".join(refused.split())
    file = slotwise.write_machine(machine(TINY, overlap_us=25), tmp_path / "machine.json")
    said = command("replay", "sample", "--row-bytes", TINY, "--machine", file, "--overlap", "auto", "--steps", "20")
    assert "overlap: of the ticks with work for both chains" in " ".join(said.stdout.split())
    other = command(*words, "--overlap", "auto", "--machine", file, "--cpu-threads", "2", code=2).stderr
    assert "cpu_threads=2" in other
    if built():
        said = command(*words, "--overlap", "auto", "--machine", file, "--cpu-threads", "1").stdout
        assert "ticks with work for both chains:" in said


def test_what_both_chains_at_once_cost_is_kept_in_the_file_and_none_of_it_where_nobody_measured(tmp_path):
    on = machine(hot_with_cold=0.9, cold_with_hot=0.6)
    path = slotwise.write_machine(on, tmp_path / "machine.json")
    assert slotwise.read_machine(path) == on
    assert on.beside == (0.9, 0.6, 15 * US)
    old = replace(on, overlap={})
    assert old.to_dict()["overlap"] == {}
    assert old.beside == (1.0, 1.0, 0.0)
    found = json.loads(path.read_text())
    del found["overlap"]["overlap_s"]
    path.write_text(json.dumps(found))
    with pytest.raises(slotwise.BadOption, match="overlap overlap_s is missing; it is a number from 1e-09"):
        slotwise.read_machine(path)
