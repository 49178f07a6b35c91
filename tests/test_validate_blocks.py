"""How a validation runs its blocks: what comes before them, what is in one, and what is kept of the machine."""

import json

import numpy as np
import pytest
from cold_cases import built

import slotwise
from slotwise.executor.backend_numpy import NumpyBackend
from slotwise.validate_blocks import blocks_of

pytestmark = pytest.mark.skipif(not built(), reason="the cold chain was not built")
SMALL = {"slots": ["25%"], "steps": 6, "headroom": 0, "alias_layers": 1, "blocks": 2, "again": False}


@pytest.fixture(scope="module")
def machine():
    return slotwise.calibrate(shape="tiny", quick=True, cpu_threads=1)


def test_all_warm_up_before_the_first_block_and_a_block_is_everything_once_and_the_sentinel_twice_by_chance(
    machine, tmp_path
):
    asked = SMALL | {"policies": ["lru", "lfru"], "slots": ["25%", "50%"], "out": tmp_path / "V.json"}
    heard, four = [], {f"{policy}, {slots} slots" for policy in ("lru", "lfru") for slots in ("25%", "50%")}

    def listen(done, total, what):
        heard.append(what.split(", width")[0])
        if what.startswith("block 2"):
            raise KeyboardInterrupt

    def of(word):
        return [said.split(": ", 1)[1] for said in heard if said.startswith(word)]

    with pytest.raises(KeyboardInterrupt):
        slotwise.validate("sample", machine, **asked, progress=listen)
    first = of("block 1")
    assert sorted(first) == sorted([*four, *["lru, 25% slots"] * 2])
    assert set(of("warm-up")) == four
    assert max(i for i, said in enumerate(heard) if "warm-up" in said) < heard.index(f"block 1 of 2: {first[0]}")
    heard.clear()
    found = slotwise.validate("sample", machine, **asked, progress=lambda done, total, what: heard.append(what))
    again = [said.split(": ")[0] for said in heard]
    assert again.index("warm-up") < again.index("block 2 of 2")
    assert "block 1 of 2" not in again
    assert len(found["each_block"]) == 2
    orders = [np.random.default_rng((0, number)).permutation(6).tolist() for number in range(2)]
    assert orders[0] != orders[1], "what the order of a block is drawn from"


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("tokens_per_s", 0, 1), float("nan"), "has tokens_per_s of nan"),
        (("tokens_per_s", 1, 0), 0, "has tokens_per_s of 0"),
        (("tokens_per_s",), [[1.0], [1.0]], "has no tokens_per_s of 4 runs of 2 configurations"),
        (("load", "steal_s"), None, "has a load whose steal_s is None"),
        (("load", "device"), {"clock": 3}, "has a load whose device is no table of the least and the most"),
        (("load",), 3, "is no object with a load"),
    ],
)
def test_kept_blocks_that_cannot_be_are_refused_before_anything_runs(machine, tmp_path, path, value, told):
    part = tmp_path / "V.json.part"
    block = {
        "tokens_per_s": [[1.0, 1.0, 1.0], [1.0]],
        "load": {"steal_s": 0, "involuntary_switches": 0, "most_rss_bytes": 1, "device": None},
    }
    part.write_text(json.dumps({"question": "q", "blocks": [block]}))
    with blocks_of(tmp_path / "V.json", "q", [3, 1]) as kept:
        assert kept.blocks == [block]
    inner = block
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    part.write_text(json.dumps({"question": "q", "blocks": [block]}))
    with (
        pytest.raises(slotwise.BadOption) as refused,
        blocks_of(tmp_path / "V.json", "q", [3, 1]),
    ):
        pass
    assert str(refused.value) == f"{part}: block 1 {told}; remove the file, and all blocks run again"
    part.write_text(json.dumps({"question": "q"}))
    with (
        pytest.raises(slotwise.BadOption, match="its blocks are no list; remove it"),
        blocks_of(tmp_path / "V.json", "q", [3, 1]),
    ):
        pass


def test_two_at_once_do_not_share_a_result_and_none_is_replaced(machine, tmp_path):
    out = tmp_path / "V.json"
    asked = SMALL | {"policies": ["lru"], "blocks": 1, "out": out}

    def meanwhile(done, total, what):
        if what.startswith("plan"):
            with pytest.raises(slotwise.BadOption, match=r"another validation is working on .*; wait for it, or name"):
                slotwise.validate("sample", machine, **asked)
        if what == "done":
            out.write_text("somebody's")

    with pytest.raises(slotwise.BadOption, match="exists: a validation replaces none"):
        slotwise.validate("sample", machine, **asked, progress=meanwhile)
    assert out.read_text() == "somebody's"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["V.json", "V.json.part"]


def test_what_is_wrong_with_the_options_is_told_before_the_result_is_looked_at(machine, tmp_path):
    out = tmp_path / "V.json"
    out.write_text("a result")
    with pytest.raises(slotwise.BadOption, match="steps=0: no step of sample is left to run"):
        slotwise.validate("sample", machine, **SMALL | {"steps": 0, "out": out})


def test_what_the_machine_did_meanwhile_is_kept_for_every_block(machine, monkeypatch, tmp_path):
    asked = SMALL | {"policies": ["lru"]}
    silent = slotwise.validate("sample", machine, **asked)["each_block"]
    for block in silent:
        load = block["load"]
        assert load["device"] is None
        assert min(load["rss_bytes"], load["most_rss_bytes"]) > 0
        assert load["steal_s"] >= 0
        assert load["involuntary_switches"] >= 0
    clock = iter(range(1000, 2000))
    monkeypatch.setattr(NumpyBackend, "conditions", lambda self: {"sm_clock_mhz": float(next(clock))})
    told = slotwise.validate("sample", machine, **asked)["each_block"]
    first = 1000 + 2  # after the timed run and the warm-up; a block is three runs of the one configuration
    assert [block["load"]["device"] for block in told] == [
        {"sm_clock_mhz": [first, first + 2]}, {"sm_clock_mhz": [first + 3, first + 5]}
    ]  # fmt: skip


def test_a_gate_is_validated_against_the_price_of_the_same_gate(machine):
    found = slotwise.validate("sample", machine, **SMALL | {"policies": ["lru"], "blocks": 1}, overlaps=["on", "auto"])
    assert [row["overlap"] for row in found["configurations"]] == ["on", "auto"]
    assert found["plans"] == "equal"
