"""What published systems saw on real machines appears in priced replays, each on a machine made for it."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import slotwise
from slotwise.replay.machine_figures import Contention, Figure

ROW = 4_718_592  # bytes: a row of 2048 x 768 in a byte a weight
GATED = "lru+gate(window=16, admit=3)"


def machine(link, **more):
    return slotwise.estimate_machine(link=link, host_read=41e9, device_read=324e9, **more)


SLOW, FAST = machine(6.9e9), machine(27e9)  # PCIe 4.0 with 4 and with 16 lanes


def priced(on, policy="lru", slots=32, **options):
    options = {"row_bytes": ROW, "phase": "decode", "dense_us": 60.0, "bounds": False} | options
    return slotwise.replay("sample", policy, slots, machine=on, **options)


@pytest.mark.parametrize("policy", ["lru", "lfru+guard"])
def test_on_a_saturated_link_look_ahead_loses_at_every_width_although_it_hits_more(policy):
    runs = [priced(SLOW, policy, width=width) for width in (0, 1, 2, 4, 8)]
    assert all(run.price.busy["link"] > 0.98 for run in runs)
    assert all(a.rates["hit_rate"] < b.rates["hit_rate"] for a, b in pairwise(runs))
    assert all(a.price.tokens_per_s > b.price.tokens_per_s for a, b in pairwise(runs))
    for run in runs[1:]:
        ratio, (_, high) = run.price.compared(runs[0].price)
        assert ratio < high < 1


def test_there_no_precision_is_enough_and_where_the_link_is_idle_the_recorded_one_is():
    lost = priced(SLOW, width=4, bounds=True).price
    won = priced(machine(55e9), width=4, dense_us=300.0, bounds=True).price
    assert lost.precision < lost.break_even_precision
    assert lost.tokens_per_s < lost.without.tokens_per_s
    assert won.precision > won.break_even_precision
    assert won.without.tokens_per_s < won.tokens_per_s < won.ceiling.tokens_per_s


def test_the_wider_the_more_prefetched_rows_come_late_although_they_are_right():
    """With the window of a layer and room for all, the link brings in the first row in time, and not the eighth."""
    in_time, right = [], []
    for width in (1, 2, 4, 8):
        run = priced(machine(25e9), GATED, 64, width=width, dense_us=100.0)
        in_time.append(1 - run.price.late["late_hits"] / run.counters["prefetch_hits"])
        right.append((run.counters["prefetch_hits"] + run.counters["used_late"]) / run.counters["loads_speculative"])
    assert in_time[0] > 0.9
    assert in_time[-1] < 0.5
    assert all(a > b + 0.05 for a, b in pairwise(in_time))
    assert min(right) > 0.8


@pytest.mark.parametrize("on", [SLOW, FAST], ids=["4 lanes", "16 lanes"])
def test_one_upload_a_layer_and_step_beats_eight(on):
    speeds = [priced(on, max_loads=most).price.tokens_per_s for most in (1, 2, 4, 8)]
    assert all(a > b for a, b in pairwise(speeds))


def gain_of_overlap(**options):
    on, off = (priced(FAST, GATED, 64, dense_us=0.0, overlap=side, **options).price for side in ("on", "off"))
    return on.compared(off)[0]


@pytest.mark.once
def test_overlap_gains_most_with_verify_batches_little_on_short_chains_and_nothing_in_prefill():
    one, batch = gain_of_overlap(), gain_of_overlap(verify_tokens=4)
    short, prefill = gain_of_overlap(row_bytes=16_384), gain_of_overlap(phase="prefill")
    assert 1.01 < one < batch
    assert 1 <= short < one
    assert prefill == pytest.approx(1, abs=1e-3)


def test_the_policy_that_hits_more_can_be_the_slower_one():
    more, less = priced(SLOW, "lru", width=4), priced(SLOW, GATED)
    assert more.rates["hit_rate"] > less.rates["hit_rate"] + 0.04
    assert more.price.tokens_per_s < less.price.tokens_per_s / 2


def test_the_time_of_a_step_is_nearly_linear_in_its_misses():
    """28.3 ms + 0.284 ms a miss, 4.18 ms + 0.047 ms a miss: published fits. Here a miss costs reading its row."""
    alone = replace(FAST, contention=(Contention(8, *[Figure(1.0)] * 4),))
    price = priced(alone, GATED, 32, dense_us=900.0).price
    base_s, miss_s, explained = price.line
    assert explained > 0.98
    assert miss_s == pytest.approx(ROW / 41e9, rel=0.25)
    assert base_s > 24 * 900e-6


def test_a_bound_on_prediction_is_the_same_replay_with_an_oracle():
    price = priced(FAST, GATED, width=2, bounds=True).price
    assert price.ceiling.tokens_per_s == priced(FAST, GATED, width=2, predictor="oracle").price.tokens_per_s
    assert price.without.tokens_per_s == priced(FAST, GATED).price.tokens_per_s


def test_break_even_is_where_the_gain_is_nothing():
    """If the loads cost as much as the used ones save, the precision is the break-even precision, by its definition."""
    price = priced(FAST, GATED, width=4, bounds=True).price
    saved = price.without.line[1]
    cost_s = price.seconds - price.without.seconds + price.used * saved  # of all speculative loads
    assert price.break_even_precision == pytest.approx(cost_s / saved / price.loaded)


def test_a_price_says_what_it_stands_on():
    price = priced(FAST).price
    found = price.to_dict()
    assert (found["label"], found["machine_sha256"]) == ("ESTIMATED", FAST.sha256)
    low, high = found["tokens_per_s_interval"]
    assert low < found["tokens_per_s"] < high
    assert sum(found["parts"].values()) == pytest.approx(found["seconds"])
    assert found["tpot_p50_s"] < found["tpot_p95_s"] < found["tpot_p99_s"]
    assert found["bytes_per_token"] == pytest.approx(
        priced(FAST).by_phase["decode"]["bytes_moved"] / priced(FAST).by_phase["decode"]["tokens"]
    )
    assert np.array_equal(price.step_s, priced(FAST).price.step_s)


def test_rows_that_the_cpu_has_just_read_come_more_slowly_where_the_link_comes_to_them_at_once():
    """Seen on an H200: 297 us for a row of 9.4 MB in place of 189, as it lies in the caches of single cores."""

    def busy(link, dense_us, **figures):
        return priced(machine(link, figures=figures), GATED, 32, dense_us=dense_us).price

    idle, late = (busy(27e9, 2000.0, copy_computed_bytes_per_s=rate) for rate in (27e9, 13.5e9))
    assert late.busy["link"] > 1.7 * idle.busy["link"]
    queued, same = (
        priced(machine(4e9, figures={"copy_computed_bytes_per_s": rate}), "lru", 32).price for rate in (4e9, 2e9)
    )
    assert queued.busy["link"] > 0.98
    assert same.tokens_per_s == pytest.approx(queued.tokens_per_s, rel=0.02)


def test_steps_of_several_tokens_cost_what_their_fullest_row_does_where_a_chain_goes_by_it():
    """Seen on an H200: 24 rows of 1 to 4 tokens take the 67 us of 24 rows of 4, and not the 47 that their mean says."""

    def hot(by_most, verify):
        figures = {"hot_by_most": by_most, "device_compute_bytes_per_s": 20e9, "device_read_bytes_per_s": 20e9}
        price = priced(machine(55e9, figures=figures), "lru", 128, verify_tokens=verify).price
        return price.busy["gpu"] * price.seconds

    assert hot(1.0, 1) == pytest.approx(hot(0.0, 1)), "a row of a single token is as full as any"
    assert hot(1.0, 4) > 1.2 * hot(0.0, 4)
    assert hot(0.0, 4) < hot(0.5, 4) < hot(1.0, 4)


def test_a_busy_link_makes_ids_and_cold_results_later():
    names = "link_ids_s", "link_host_s", "link_cold_s"
    none, all_three = (
        priced(machine(6.9e9, figures=dict.fromkeys(names, seconds)), GATED).price for seconds in (1e-9, 20e-6)
    )
    assert none.tokens_per_s > 1.02 * all_three.tokens_per_s
    idle = [
        priced(machine(55e9, figures=dict.fromkeys(names, seconds)), "lru", 128, max_loads=0).price.tokens_per_s
        for seconds in (1e-9, 20e-6)
    ]
    assert idle[1] == pytest.approx(idle[0], rel=1e-3), "nothing is loaded"
