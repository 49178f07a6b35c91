"""The lag that a machine implies: checked by hand on a machine made for it, and reported as what was derived."""

import json
from dataclasses import replace

import pytest
from conftest import slotwise as command

import slotwise
from slotwise.replay.machine_figures import FIGURES, Figure

US = 1e-6
ROW = 1_000_000


@pytest.fixture(scope="module")
def machine():
    """A tick is 100 us at any hits, all of them in `ids_s`, and a row takes the link 30 us; the rest is nothing."""
    made = slotwise.estimate_machine(link="12GB/s", host_read="45GB/s", device_read="360GB/s")
    rates = {name: 1e14 for name in FIGURES if name.endswith("bytes_per_s")}
    figures = dict.fromkeys(FIGURES, 1e-9) | rates
    figures |= {"ids_s": 100 * US, "copy_ahead_batch_s": 10 * US, "copy_ahead_bytes_per_s": ROW / (30 * US)}
    return replace(made, figures={name: Figure(value) for name, value in figures.items()})


def lag(machine, width, **asked):
    asked = {"lag_prefetch": "auto", "row_bytes": ROW, "steps": 5, "bounds": False} | asked
    return slotwise.replay("sample", "lru", "25%", width=width, machine=machine, **asked)


@pytest.mark.parametrize(("width", "ticks"), [(0, 0), (1, 0), (2, 0), (3, 0), (4, 1), (6, 1), (7, 2), (8, 2)])
def test_the_lag_is_the_begun_ticks_of_landing_less_the_first(machine, width, ticks):
    """10 us a batch and 30 us a row: two rows take 70 us of a tick of 100, three 100 of a little more, four 130."""
    result = lag(machine, width)
    assert result.options["lag_prefetch"] == ticks
    assert result.price.options["lag_auto"]
    assert not lag(machine, width, lag_prefetch=ticks).price.options["lag_auto"]


def test_a_longer_tick_hides_more_of_the_copy(machine):
    assert lag(machine, 8).options["lag_prefetch"] == 2
    assert lag(machine, 8, dense_us=100.0).options["lag_prefetch"] == 1
    assert lag(machine, 8, dense_us=200.0).options["lag_prefetch"] == 0


def test_hits_are_expected_in_the_share_of_experts_that_have_slots_and_misses_take_the_cold_chain(machine):
    """At a row of 100 us on the CPU 8 misses make a tick of some 900 us; with every expert resident it is 100 us."""
    cold = replace(machine, figures={**machine.figures, "host_read_bytes_per_s": Figure(ROW / (100 * US)),
                                     "copy_ahead_bytes_per_s": Figure(ROW / (300 * US))})  # fmt: skip

    def found(slots, **asked):
        asked = {"lag_prefetch": "auto", "row_bytes": ROW, "steps": 5, "bounds": False} | asked
        return slotwise.replay("sample", "lru", slots, width=8, machine=cold, **asked).options["lag_prefetch"]

    assert found("100%") == 24  # 2410 us in ticks of 100
    assert found("50%") == 4  # in ticks of 500: 4 misses
    assert found("12.5%") == 3  # in ticks of 800: 7 misses
    assert found("50%", miss="fetch") == 24  # no row is computed on the CPU


def test_the_same_plan_comes_of_the_number_that_was_derived(machine):
    asked = {"plan_hash": True, "steps": 40}
    auto = lag(machine, 4, **asked)
    assert auto.plan_sha256 == lag(machine, 4, lag_prefetch=1, **asked).plan_sha256
    assert auto.plan_sha256 != lag(machine, 4, lag_prefetch=0, **asked).plan_sha256


def test_commands_report_the_number_and_that_it_was_derived(machine, tmp_path):
    file = slotwise.write_machine(machine, tmp_path / "machine.json")
    words = "--lag-prefetch", "auto", "--width", "4", "--steps", "10"
    priced = "--row-bytes", str(ROW), "--machine", file
    found = json.loads(command("replay", "sample", *words, *priced, "--json").stdout)
    assert (found["lag_prefetch"], found["price"]["lag_auto"]) == (1, True)
    said = "lag_prefetch 1 follows from the machine"
    assert said in command("replay", "sample", *words, *priced).stdout
    result = tmp_path / "r.parquet"
    sweep = "sweep", "sample", "--policy", "lru", "--slots", "32", *words, *priced, "-o", result
    command(*sweep)
    again = json.loads(command(*sweep, "--json").stdout)
    assert (again["new"], again["kept"]) == (0, 1), "a derived lag is a number like another"
    small = replace(machine, figures={**machine.figures, "copy_ahead_bytes_per_s": Figure(98304 / (30 * US))})
    file = slotwise.write_machine(small, tmp_path / "small.json")
    run = "run", "sample", "--shape", "tiny", "--headroom", "0", "--alias-layers", "1", "--policy", "lru", "--check"
    assert f"{said} file" in command(*run, *words, "--machine", file).stdout
    (one,) = json.loads(command(*run, *words, "--machine", file, "--json").stdout)["runs"]
    assert (one["lag_prefetch"], one["lag_auto"], one["machine_sha256"]) == (1, True, small.sha256)


@pytest.mark.parametrize(
    "words",
    [
        ("replay", "sample", "--row-bytes", "1000"),
        ("sweep", "sample", "--policy", "lru", "--slots", "8", "-o", "r.parquet"),
        ("compare", "sample", "-o", "report"),
        ("run", "sample", "--shape", "tiny"),
    ],
)
def test_without_a_machine_there_is_no_lag_to_derive(words):
    refused = command(*words, "--lag-prefetch", "auto", code=2).stderr
    assert "lag_prefetch='auto': it follows from a machine file; give machine, or a number of ticks" in " ".join(
        refused.split()
    )


def test_a_lag_is_a_number_or_auto(machine):
    with pytest.raises(slotwise.BadOption, match="lag_prefetch='often'"):
        lag(machine, 4, lag_prefetch="often")
    assert "'often' is not a valid integer" in command("replay", "sample", "--lag-prefetch", "often", code=2).stderr
