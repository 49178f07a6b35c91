"""Rates by hand, and how figures are written."""

import math

import numpy as np
import pytest

from slotwise.reports import metrics
from slotwise.reports.metrics import COUNTERS, NULLABLE, RATES, rates, tokens_of

# The hand-checkable trace of three layers, two slots each: 30 demands, 12 hits, 18 misses, 12 evictions; here with a
# look-ahead made up beside it: 10 predictions, of which 3 redundant, 1 dropped, 6 loaded: 2 hit, 1 late, 3 wasted.
HAND = dict.fromkeys(COUNTERS, 0) | {
    "demands": 30, "hits": 12, "hits_demand": 10, "prefetch_hits": 2, "misses": 18, "compulsory": 12,
    "loads_demand": 18,
    "fills": 24, "evictions": 12, "predictions": 10, "redundant": 3, "dropped_guard": 1, "loads_speculative": 6,
    "used_late": 1, "wasted": 3, "pollution": 9, "bytes_loaded": 24_000, "bytes_moved": 30_000, "routed": 30,
}  # fmt: skip
EXPECTED = {
    "hit_rate": 0.4, "prefetch_hit_rate": 2 / 30, "compulsory_share": 2 / 3, "misses_per_token": 3.6,
    "loads_per_token": 4.8,
    "speculative_loads_per_token": 1.2, "bytes_per_token": 6000, "evictions_per_token": 2.4, "hits_per_load": 0.5,
    "used_share": 0.5, "used_late_share": 1 / 6, "wasted_share": 0.5, "redundant_share": 0.3, "dropped_share": 0.1,
    "pollution_share": 0.5,
}  # fmt: skip


def test_rates_of_five_tokens_are_those_worked_out_by_hand():
    found = rates(HAND, 5)
    assert found.keys() == EXPECTED.keys()
    assert found == pytest.approx(EXPECTED)


def test_every_rate_states_its_formula():
    for rate in RATES.values():
        assert "/" in (rate.of.__doc__ or "").splitlines()[0]


@pytest.mark.parametrize("name", RATES)
def test_nothing_by_nothing_is_nan_and_prints_as_a_dash(name):
    nothing = dict.fromkeys([*COUNTERS, *NULLABLE], 0)
    assert math.isnan(rates(nothing, 0)[name])
    assert metrics.written(math.nan, RATES[name].unit) == "–"


def test_a_count_that_was_not_taken_gives_nan_and_not_nought():
    unknown = HAND | {"bytes_moved": None, "pollution": None}
    assert math.isnan(rates(unknown, 5)["bytes_per_token"])
    assert math.isnan(rates(unknown, 5)["pollution_share"])
    assert rates(unknown, 5)["hit_rate"] == 0.4


def test_rates_work_on_columns_too():
    by_layer = {"hits": np.array([3, 0, 0]), "demands": np.array([4, 5, 0])}
    assert metrics.hit_rate(by_layer)[:2].tolist() == [0.75, 0.0]
    assert math.isnan(metrics.hit_rate(by_layer)[2])


def test_tokens_of_a_part_are_its_own_not_its_routed_pairs():
    row = {"n_tokens_counted": 100, "n_layers": 3, "top_k": 2, "routed": 590}
    assert tokens_of(row, row) == 100
    assert tokens_of({"routed": 60, "tokens": 7}, row) == 7


def test_fewer_misses_and_what_the_bound_misses_too():
    assert metrics.fewer_misses({"misses": 15}, {"misses": 20}) == 0.25
    assert metrics.unavoidable_share({"misses": 20}, {"misses": 15}) == 0.75
    assert math.isnan(metrics.fewer_misses({"misses": 0}, {"misses": 0}))
    assert metrics.fewer_or_more(0.25) == "25.0 % fewer misses"
    assert metrics.fewer_or_more(-0.25) == "25.0 % more misses"
    assert metrics.fewer_or_more(0.0) == "equal misses"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.7123, "71.2 %"), (1.0, "100.0 %"), (0.9999, ">99.9 %"), (0.0, "0.0 %"), (0.0001, "<0.1 %"), (None, "–")],
)
def test_per_cent_never_rounds_to_all_or_nothing(value, text):
    assert metrics.percent(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.023, "+2.30"), (-0.023, "−2.30"), (0.00001, "0"), (math.nan, "–")])
def test_points_carry_a_sign(value, text):
    assert metrics.points(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(12.34, "12.3"), (0.04213, "0.0421"), (1234, "1,234"), (0, "0"), (999.96, "1,000")],
)
def test_numbers_have_three_digits(value, text):
    assert metrics.number(value) == text


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "0 B"), (1536, "1.5 KiB"), (226492416, "216 MiB"), (2**40, "1 TiB"), (1023.9 * 2**20, "1 GiB")],
)
def test_bytes_are_binary(n_bytes, text):
    assert metrics.size(n_bytes) == text
