"""The machine file: what goes in comes out, what cannot be is refused with the figure's name and range."""

import json
import math
from codecs import BOM_UTF8
from dataclasses import replace

import pytest
from conftest import slotwise as command

import slotwise
from slotwise.policies import parse_policy
from slotwise.replay.machine import check_machine, machine_of
from slotwise.replay.machine_figures import FIGURES, Contention, Figure, Sheet, Wake
from slotwise.replay.machine_presets import PRESETS

SHEET = Sheet("cold", 4096, 1, (1, 2, 8), (1.0,), ((1e-4,), (2e-4,), (7e-4,)), ((1e-5,), (1e-5,), (2e-5,)), 8)


@pytest.fixture(scope="module")
def machine():
    made = slotwise.estimate_machine(link="12GB/s", host_read="45GB/s", device_read="360GB/s")
    return replace(made, sheets=(SHEET,), libraries={"cupy": "14.2"}, driver="580.1", details={"blocks": 3})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "machine.json"


def spoilt(machine, path, *way, value):
    """The file with one value replaced (`...`: removed), and how reading it is refused."""
    found = json.loads(json.dumps(machine.to_dict()))
    at = found
    for step in way[:-1]:
        at = at[step]
    if value is ...:
        del at[way[-1]]
    else:
        at[way[-1]] = value
    path.write_text(json.dumps(found))
    with pytest.raises(slotwise.BadOption) as refused:
        slotwise.read_machine(path)
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith(f"{path}: ")
    return str(refused.value).removeprefix(f"{path}: ")


def test_a_machine_that_is_written_is_read_as_it_was(machine, path):
    assert slotwise.write_machine(machine, path) == path
    read = slotwise.read_machine(path)
    assert read == machine
    assert read.sha256 == machine.sha256
    assert set(json.loads(path.read_text())["figures"]) == set(FIGURES)
    assert [each.name for each in path.parent.iterdir()] == ["machine.json"]


def test_a_file_that_is_there_is_replaced_only_by_force(machine, path):
    path.write_text("mine")
    with pytest.raises(slotwise.BadOption, match=r"machine.json exists; --force replaces it"):
        slotwise.write_machine(machine, path)
    assert path.read_text() == "mine"
    slotwise.write_machine(machine, path, force=True)
    assert slotwise.read_machine(path) == machine


@pytest.mark.parametrize("value", [..., None, -1e-6, 0, 0.0, math.nan, math.inf, 1.0, "8e-6", True, [8e-6]])
@pytest.mark.parametrize("name", ["ids_s", "merge_pair_s"])
def test_a_time_that_cannot_be_is_refused_by_name_and_range(machine, path, name, value):
    said = spoilt(machine, path, "figures", name, "value", value=value)
    assert said.startswith(f"figure {name} is ")
    assert f"a number from 1e-09 to {FIGURES[name].high:g} seconds" in said


@pytest.mark.parametrize("value", [..., -1.0, 0, math.nan, 1e15, 12])
def test_a_rate_that_cannot_be_is_refused_by_name_and_range(machine, path, value):
    said = spoilt(machine, path, "figures", "copy_demand_bytes_per_s", "value", value=value)
    assert said.startswith("figure copy_demand_bytes_per_s is ")
    assert "it is a number from 1e+06 to 1e+14 bytes per second: the link within a batch of demand loads" in said


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_needed(machine, path, name):
    assert spoilt(machine, path, "figures", name, value=...).startswith(f"figure {name} is missing; it is a number")


@pytest.mark.parametrize("value", [..., -1e-9, math.nan, 1.0])
def test_a_spread_that_cannot_be_is_refused(machine, path, value):
    said = spoilt(machine, path, "figures", "ids_s", "spread", value=value)
    assert said.startswith("spread of figure ids_s is ")
    assert "it is a number from 0 to 8e-05 (10 times the value)" in said


@pytest.mark.parametrize("value", [..., -0.5, 0, math.nan, 1.5])
def test_a_share_that_cannot_be_is_refused(machine, path, value):
    said = spoilt(machine, path, "contention", 0, "cold_with_link", "value", value=value)
    assert said.startswith("contention[0] cold_with_link is ")
    assert "it is a number from 0.01 to 1 of its speed alone: speed of the cold chain while the link works" in said


@pytest.mark.parametrize(
    ("way", "value", "said"),
    [
        (
            ("sheets", 0, "seconds", 1, 0),
            0,
            "sheets[0] (2 rows, 1 pairs a row) seconds is 0; it is a number from 1e-09",
        ),
        (("sheets", 0, "spread_s", 1, 0), -1, "sheets[0] (2 rows, 1 pairs a row) spread_s is -1; it is a number"),
        (("sheets", 0, "seconds", 1), [], "sheets[0] seconds has no 1 numbers for 2 rows"),
        (("sheets", 0, "seconds"), [[1e-4]] * 4, "sheets[0] has more lines of numbers than rows"),
        (("sheets", 0, "rows"), [1, 1, 8], "sheets[0]: rows [1.0, 1.0, 8.0] do not rise"),
        (("sheets", 0, "chain"), "warm", "sheets[0] chain is 'warm'; it is hot or cold"),
        (("sheets", 0, "row_bytes"), 0, "sheets[0] row_bytes is 0; it is a whole number from 1 to"),
        (("sheets", 0, "threads"), ..., "sheets[0] threads is None; it is a whole number from 1 to 4096"),
        (("sheets",), [SHEET.__dict__, SHEET.__dict__], "two sheets of the cold chain for rows of 4096 bytes"),
        (("wake", 0, "gap_s"), 0, "wake[0] gap_s is 0; it is a number from 1e-06 to 100 seconds"),
        (("wake", 1, "gap_s"), 1e-4, "wake: gap_s [0.0001, 0.0001, 0.01] do not rise"),
        (("contention",), [], "contention is missing"),
        (("cpu_threads",), 0, "cpu_threads is 0; it is a whole number from 1 to 4096"),
        (("date",), "yesterday", "date 'yesterday': it is written as 2026-01-31"),
        (("label",), "GUESSED", "label 'GUESSED': it is MEASURED or ESTIMATED"),
        (("name",), None, "name is missing; make the file again with `slotwise calibrate`"),
        (("name",), 5, "name is '5'; it is a text"),
        (("figures",), ..., "figures is missing; make the file again with `slotwise calibrate` or `slotwise machine`"),
        (("figures",), [], "figures is '[]'; it is an object with names"),
        (("date",), ..., "date is missing; make the file again"),
        (("cpu_threads",), ..., "cpu_threads is missing; make the file again"),
        (("figures", "ids"), {"value": 1, "spread": 0}, "unknown figure 'ids'; known: ids_s, "),
        (("figure",), {}, "unknown entry 'figure'; known: "),
        (("version",), 1, "version 1 of slotwise.machine; this program reads version 3: make the file again"),
        (("format",), "slotwise.sweep", "is no machine file: its format is not 'slotwise.machine'"),
    ],
)
def test_whatever_else_is_wrong_is_named(machine, path, way, value, said):
    assert spoilt(machine, path, *way, value=value).startswith(said)


@pytest.mark.parametrize("rate", ["link", "host_read", "device_read"])
@pytest.mark.parametrize("value", ["0GB/s", "999999", 0, -1.0, math.nan, math.inf, "26TB/s"])
def test_a_rate_that_no_machine_has_is_refused_by_the_name_it_was_given_by(rate, value):
    with pytest.raises(
        slotwise.BadOption, match=rf"^{rate} '{value}': a rate is from 1e\+06 to 2.5e\+13 bytes per second"
    ):
        slotwise.estimate_machine(["rtx-3060-x16", "ddr4"], **{rate: value})


def test_a_byte_order_mark_at_the_start_changes_nothing(machine, path):
    slotwise.write_machine(machine, path)
    path.write_bytes(BOM_UTF8 + path.read_bytes())
    assert slotwise.read_machine(path) == machine
    assert slotwise.write_report([path], path.parent / "report")


def test_a_file_that_is_no_json_is_refused(path):
    path.write_text("{")
    with pytest.raises(slotwise.BadOption, match=r"is no machine file .*; `slotwise machine` writes one"):
        slotwise.read_machine(path)


@pytest.mark.parametrize("device", [name for name, part in PRESETS.items() if part.device_read])
@pytest.mark.parametrize("memory", ["ddr4", "ddr5"])
def test_every_preset_is_a_machine_whose_rates_stay_below_the_peaks_and_name_their_source(device, memory):
    made = slotwise.estimate_machine([device, memory])
    assert made.label == "ESTIMATED"
    assert made["copy_demand_bytes_per_s"] < PRESETS[device].link
    assert made["host_read_bytes_per_s"] < PRESETS[memory].host_read
    assert set(made.sources) == set(FIGURES)
    assert PRESETS[device].source in made.sources["device_read_bytes_per_s"]


def test_what_is_given_goes_before_presets_and_a_missing_rate_is_named():
    made = slotwise.estimate_machine(["h200"], link="12 GB/s", figures={"ids_s": 2e-5})
    assert (made["copy_ahead_bytes_per_s"], made["ids_s"], made.sources["ids_s"]) == (12e9, 2e-5, "given")
    with pytest.raises(slotwise.BadOption, match="host_read is not known; give --host-read 12GB/s, or a preset"):
        slotwise.estimate_machine(["rtx-4090"])
    with pytest.raises(slotwise.BadOption, match="link '12 apples': write bytes per second, such as 12GB/s"):
        slotwise.estimate_machine(["h200"], link="12 apples")
    with pytest.raises(slotwise.BadOption, match="no figure 'ids'"):
        slotwise.estimate_machine(["h200"], figures={"ids": 1.0})
    with pytest.raises(slotwise.BadOption, match="figure ids_s is nan; it is a number from"):
        slotwise.estimate_machine(["h200"], figures={"ids_s": math.nan})


def test_link_and_cpu_share_the_memory_of_the_host_in_proportion():
    """45 GB/s of memory, of which the CPU wants all and the link 15: each gets 45 / 60 of its own."""
    (beside,) = slotwise.estimate_machine(link=15e9, host_read=45e9, device_read=360e9).contention
    assert (beside.cold_with_link.value, beside.link_with_cold.value) == (0.75, 0.75)


def test_a_record_is_checked_by_the_rules_of_its_file(machine):
    bad = replace(machine, wake=(Wake(-1.0, 1e-5),), contention=(Contention(8, *[Figure(1.0)] * 4),))
    with pytest.raises(slotwise.BadOption, match=r"wake\[0\] gap_s is -1"):
        check_machine(bad)


def test_the_command_writes_what_replay_reads_and_ends_with_2_where_it_cannot(tmp_path):
    out = tmp_path / "m.json"
    words = ("machine", "--preset", "rtx-3060-x4", "--preset", "ddr4", "-o", out)
    assert "ESTIMATED, RTX 3060 12 GB on PCIe 4.0 x4" in command(*words).stdout
    assert command(*words, code=2).stderr == f"slotwise: {out} exists; --force replaces it\n"
    command(*words, "--force")
    assert {row["name"] for row in json.loads(command("machine", "--list", "--json").stdout)} == set(PRESETS)
    found = json.loads(out.read_text())
    found["figures"]["ids_s"]["value"] = -1
    out.write_text(json.dumps(found))
    said = command("replay", "sample", "--row-bytes", "1000", "--machine", out, code=2).stderr
    assert said.startswith(f"slotwise: {out}: figure ids_s is -1; it is a number from 1e-09 to 0.1 seconds")
    assert said.count("\n") == 1
    assert "give a machine with it" in command("replay", "sample", "--overlap", "off", code=2).stderr
    assert "row_bytes" in command("replay", "sample", "--machine", _written(tmp_path), code=2).stderr


def _written(folder):
    return slotwise.write_machine(slotwise.estimate_machine(["h200"]), folder / "h200.json")


def test_single_policies_have_figures_of_their_own(machine, path):
    calls = {"policy_s": Figure(9e-6, 1e-6), "policy_ahead_s": Figure(4e-6)}
    own = replace(machine, policies={"lfru+guard": calls})
    slotwise.write_machine(own, path)
    assert slotwise.read_machine(path) == own
    assert own.policy("lfru+guard") == ("lfru+guard", 9e-6, 4e-6)
    assert own.policy("lfru") == ("lru", machine["policy_s"], machine["policy_ahead_s"])
    assert machine.to_dict()["policies"] == {}
    assert own.sha256 != machine.sha256
    said = spoilt(own, path, "policies", "lfru+guard", "policy_ahead_s", value=...)
    assert said.startswith("policy lfru+guard policy_ahead_s is missing; it is a number from 1e-09")
    said = spoilt(own, path, "policies", "lfru+guard", "ids_s", value={"value": 1e-6, "spread": 0})
    assert said == "policy lfru+guard has 'ids_s'; known: policy_s, policy_ahead_s"
    assert spoilt(own, path, "policies", value=[]) == "policies is '[]'; it is an object with names"


@pytest.mark.once
def test_a_price_takes_the_policys_own_figures_whatever_its_parameters_and_says_whose_it_took(machine, tmp_path):
    calls = {"policy_s": Figure(machine["policy_s"] + 1e-3), "policy_ahead_s": Figure(machine["policy_ahead_s"])}
    own, asked = replace(machine, policies={"lfru": calls}), {"row_bytes": 4096, "steps": 10}

    def price(on, policy):
        return slotwise.replay("sample", policy, 8, machine=on, **asked).price

    ticks = 10 * slotwise.open_trace("sample").n_layers
    dear, cheap = price(own, "lfru(half_life=16)"), price(machine, "lfru(half_life=16)")
    assert dear.parts["policy_s"] - cheap.parts["policy_s"] == pytest.approx(1e-3 * ticks)
    assert (dear.to_dict()["policy_cost_of"], cheap.to_dict()["policy_cost_of"]) == ("lfru", "lru")
    assert price(own, "lfru+gate").options["policy_cost_of"] == "lru"
    words = ["replay", "sample", "--slots", "8", "--row-bytes", "4096", "--steps", "10", "--policy"]
    file = slotwise.write_machine(own, tmp_path / "machine.json")
    said = "no figures of lfu"
    assert said in " ".join(command(*words, "lfu", "--machine", file).stdout.split())
    assert said[:13] not in command(*words, "lfru", "--machine", file).stdout


@pytest.mark.parametrize(
    ("policy", "family"),
    [
        ("lru", "lru"),
        ("lfru(half_life=16)+gate(admit=2)+guard", "lfru+guard+gate"),
        ("lru+pin(profile=here/p.json, n=3)", "lru+pin"),
    ],
)
def test_a_family_is_named_without_parameters(policy, family):
    assert parse_policy(policy).family == family


def test_a_policy_of_a_file_is_named_without_its_folder(tmp_path):
    text = "class Mine(Policy):\n    def priority(p, key, at):\n        return key\n"
    (tmp_path / "mine.py").write_text("from slotwise.policies import Policy\n\n\n" + text)
    assert parse_policy(f"{tmp_path}/mine.py+gate").family == "mine.py:Mine+gate"


@pytest.mark.parametrize("entry", ["value", "spread"])
def test_a_figure_of_more_digits_than_a_float_holds_is_refused_by_name(entry):
    found = json.loads(json.dumps(slotwise.estimate_machine(["h200"]).to_dict()))
    found["figures"]["ids_s"][entry] = 10**400
    with pytest.raises(slotwise.BadOption, match=r"m.json: .*figure ids_s is 1000000000+; it is a number from"):
        machine_of(found, "m.json")


def test_estimated_figures_are_of_their_threads_alone():
    machine = slotwise.estimate_machine(["rtx-3060-x16", "ddr4"])
    asked = {"policy": "lru", "slots": 8, "steps": 5, "row_bytes": 1 << 20, "machine": machine}
    assert slotwise.replay("sample", **asked, cpu_threads=machine.cpu_threads).price.tokens_per_s > 0
    with pytest.raises(slotwise.BadOption, match=r"cpu_threads=64: the figures of .* are those of 8 threads; ask for"):
        slotwise.replay("sample", **asked, cpu_threads=64)
