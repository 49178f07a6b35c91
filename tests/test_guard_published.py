"""The guard without its warm clause, once shipped, dropped nearly every prediction: kept nameable, and kept so."""

import pytest

import slotwise

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def text(shared):
    return slotwise.open_trace(shared / "traces" / "lab24x128" / "text.npz")


def dropped_percent(trace, guard, slots):
    """Percent of the predictions of non-residents that the guard refuses."""
    counters = slotwise.replay(trace, f"lfru(half_life=16)+{guard}", slots, width=4).counters
    asked = counters["predictions"] - counters["invalid"] - counters["redundant"]
    assert asked > 0
    return 100 * counters["dropped_guard"] / asked


@pytest.mark.parametrize(("slots", "published"), [(16, 99.6), (32, 100), (64, 99.8)])
def test_without_the_warm_clause_nearly_all_non_resident_predictions_are_dropped(text, slots, published):
    percent = dropped_percent(text, "guard(warm=0)", slots)
    assert percent >= 99
    assert percent == pytest.approx(published, abs=0.06)


@pytest.mark.parametrize(("slots", "published"), [(16, 45), (32, 25), (64, 0)])
def test_with_the_warm_clause_a_share_passes(text, slots, published):
    assert dropped_percent(text, "guard(warm=2)", slots) == pytest.approx(published, abs=0.6)


@pytest.mark.parametrize("slots", [16, 32])
def test_without_ageing_every_resident_is_warm_and_the_two_guards_are_alike(text, slots):
    shares = [
        slotwise.replay(text, f"lfru+guard(warm={warm})", slots, width=4).counters["dropped_guard"] for warm in (0, 2)
    ]
    asked = slotwise.replay(text, "lfru+guard", slots, width=4).counters
    asked = asked["predictions"] - asked["invalid"] - asked["redundant"]
    assert abs(shares[0] - shares[1]) / asked < 0.01


@pytest.mark.parametrize("slots", [16, 32, 64])
def test_the_guard_loads_less_than_none(text, slots):
    """Published: fewer bytes with the guard than without. The hit rates go the other way, see the report."""
    with_guard, without = (slotwise.replay(text, policy, slots, width=4).counters for policy in ("lfru+guard", "lfru"))
    assert with_guard["fills"] < without["fills"]
    assert with_guard["hits"] < without["hits"]
