"""How a validation runs its blocks: what comes before them, what is in one, and what is kept of the machine."""

import numpy as np
import pytest
from cold_cases import built

import slotwise
from slotwise.executor.backend_numpy import NumpyBackend

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
