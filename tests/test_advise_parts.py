"""The steps that choose and those that judge, the length of the start, and memory divided by hits: all by hand."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.advise_parts import parts_of, speed, warm_up
from slotwise.advise_slots import allocate, sizes_of
from slotwise.replay.price import Price


def price(misses, *, demands=10, request=0, phase=1, asked="decode"):
    """Steps of one token and one second each."""
    n = len(misses)
    full = lambda value: np.broadcast_to(np.asarray(value), n).copy()  # noqa: E731
    return Price(
        label="ESTIMATED", options={}, phase=asked, totals=np.zeros((2, 64)), step_s=full(1.0), step_tokens=full(1),
        step_phase=full(phase), step_request=full(request), step_demands=full(demands), step_misses=full(misses),
        step_bytes=full(0),
    )  # fmt: skip


def cut(request, **more):
    parts = parts_of(price(np.zeros(len(request)), request=request, **more))
    assert not (parts.chosen & parts.judged).any()
    return int(parts.chosen.sum()), int(parts.judged.sum()), parts.by


def test_the_cut_lies_between_requests_where_it_can():
    assert cut([0] * 60 + [1] * 100 + [2] * 40) == (60, 140, "request")  # 60 is nearer to 100 than 160 is
    assert cut([0] * 20 + [1] * 180) == (100, 100, "step")  # a tenth is too little
    assert cut([0, 1] * 100) == (100, 100, "step")  # no cut leaves either request whole
    assert cut([0] * 50 + [1, 2] * 30 + [3] * 90) == (110, 90, "request")  # 1 and 2 go to and fro
    assert cut([0] * 60 + [1, 2] * 70) == (60, 140, "request")
    assert cut([-1] * 200) == (100, 100, "step")


def test_a_short_run_holds_nothing_out():
    parts = parts_of(price(np.zeros(127)))
    assert parts.by is None
    assert parts.chosen.all()
    assert parts.judged.all()


def test_only_steps_of_the_phase_are_cut():
    phase = np.array([0] * 50 + [1] * 200)
    parts = parts_of(price(np.zeros(250), phase=phase))
    assert not parts.chosen[:50].any()
    assert parts.chosen[50:150].all()
    assert parts.judged[150:].all()


def test_a_price_of_some_steps_has_their_speed_and_no_causes():
    whole = price(np.zeros(200))
    whole.step_s[100:] = 0.5
    some = whole.only(np.arange(200) >= 100)
    assert (whole.tokens_per_s, some.tokens_per_s) == (200 / 150, 2.0)
    assert speed(some) == {"tokens_per_s": 2.0, "tokens_per_s_interval": (2.0, 2.0)}
    assert np.isnan(some.parts["both_s"])


def test_the_start_is_over_where_a_window_hits_95_percent_of_the_later_half():
    misses = np.full(1000, 2)  # steady: 8 of 10 hit; 95 % of that is 7.6
    misses[:40] = 10
    misses[40:60] = 4
    found = warm_up(price(misses), "persistent")  # windows of 10 steps: 0, 0, 0, 0, 60 %, 60 %, 80 %
    assert found == {"steps": 60, "window_steps": 10, "steady_hit_rate": 0.8, "first_hit_rate": 0.0, "tokens": 60,
                     "seconds": 60.0}  # fmt: skip
    assert warm_up(price(np.full(50, 10)), "persistent") is None
    assert warm_up(price(np.full(0, 10)), "persistent") is None
    assert warm_up(price(np.full(100, 5)), "persistent")["steps"] == 0


def test_where_pools_are_reset_the_start_is_counted_in_each_request():
    one = np.full(50, 0)
    one[:3] = 10
    found = warm_up(price(np.tile(one, 4), request=np.repeat(range(4), 50)), "request")
    assert (found["steps"], found["tokens"], found["window_steps"]) == (3, 12, 1)


def total(sizes, hits, slots):
    return sum(np.interp(n, sizes, curve) for n, curve in zip(slots, hits, strict=True))


@given(st.lists(st.lists(st.integers(0, 9), min_size=4, max_size=4), min_size=1, max_size=4), st.integers(0, 12))
def test_no_division_of_equal_rows_has_more_hits_where_curves_are_concave(steps, spare):
    sizes = [1, 2, 3, 4, 5]
    hits = np.array([np.cumsum([20, *sorted(each, reverse=True)]) for each in steps])
    rows, room = [7] * len(steps), 7 * (len(steps) + spare) + 3
    slots = allocate(sizes, hits, rows, room)
    assert all(1 <= n <= 5 for n in slots)
    assert sum(slots) * 7 <= room
    every = (each for each in product(sizes, repeat=len(steps)) if sum(each) * 7 <= room)  # the slow, obvious twin
    assert total(sizes, hits, slots) == max(total(sizes, hits, each) for each in every)


def test_a_byte_goes_where_it_brings_most_and_dents_are_bridged():
    assert allocate([1, 2, 3], np.array([[0, 5, 6], [0, 4, 8]]), [10, 10], 40) == [2, 2]
    assert allocate([1, 2, 3], np.array([[0, 5, 6], [0, 0, 9]]), [10, 10], 40) == [2, 2]  # 5, then 4.5 a slot
    assert allocate([1, 2, 3], np.array([[0, 5, 6], [0, 0, 12]]), [10, 10], 40) == [1, 3]
    assert allocate([1, 2, 3], np.array([[0, 5, 6], [0, 4, 8]]), [20, 10], 50) == [1, 3]  # 0.25 a byte against 0.4
    assert allocate([1, 5, 9], np.array([[0, 8, 8], [0, 4, 8]]), [1, 1], 12) == [5, 7]
    assert allocate([1, 5], np.array([[3, 3], [0, 4]]), [1, 1], 20) == [1, 5]  # what brings nothing is not given


def test_sizes_run_from_one_slot_to_all_experts():
    assert sizes_of(4) == [1, 2, 3, 4]
    assert (sizes_of(128)[0], sizes_of(128)[-1], len(sizes_of(128))) == (1, 128, 33)
    assert sizes_of(1) == [1]


@pytest.mark.parametrize("verify", [1, 2])
def test_the_line_of_anchors_is_solved_for_two_and_fitted_for_more(verify):
    from slotwise.anchors import fit_anchors

    def replayed(slots):  # 100 steps that miss 10 - slots each, and give `verify` tokens
        found = price(np.full(100, 10 - slots))
        found.step_tokens[:] = verify
        return found

    # a step of 10 misses takes 20 ms, one of 5 takes 15: base 10 ms, a miss 1 ms
    two = fit_anchors([f"slots=0,tps={verify * 50}", f"slots=5,tps={verify * 200 / 3:.9f}"], "lru", replayed)
    assert (two.base_s, two.miss_s) == (pytest.approx(0.01), pytest.approx(0.001))
    assert two.priced(replayed(8)).tokens_per_s == pytest.approx(verify / 0.012)
    seconds = {0: 0.020, 5: 0.0153, 10: 0.010}
    three = fit_anchors([f"slots={n},tps={verify / s:.9f}" for n, s in seconds.items()], "lru", replayed)
    assert (three.base_s, three.miss_s) == (pytest.approx(0.0101), pytest.approx(0.001))
    assert three.points[1]["misses_per_token"] == 5 / verify


@pytest.mark.parametrize(
    ("anchors", "said"),
    [
        (["slots=0,tps=50"], "1 anchor: a line needs two runs of the same engine, such as --anchor slots=0"),
        (["slots=3,tps=50", "slots=3,tps=51"], r"slots=3: 7.00 misses a token, 51 tokens/s\): lru misses alike there"),
        (["slots=0,tps=50", "slots=5,tps=40"], "a miss would take -1e"),
        (["slots=0,tps=10", "slots=9,tps=1000"], "a step without misses would take -1"),
        (["slots=0,tps=0", "slots=9,tps=10"], "anchor slots=0,tps=0: .* tokens per second above 0 .* give a speed"),
        (["slots=0,tps=1" + "0" * 400, "slots=9,tps=10"], "anchor slots=0,tps=inf: .* at most 1e"),
        (["slots=0", "slots=9,tps=10"], "anchor 'slots=0': write slots per layer"),
        (["slots=-1,tps=3", "slots=9,tps=10"], "anchor 'slots=-1,tps=3'"),
    ],
)
def test_anchors_that_tell_no_base_and_cost_are_refused_in_a_line(anchors, said):
    from slotwise.anchors import fit_anchors
    from slotwise.replay.errors import BadOption

    with pytest.raises(BadOption, match=said):
        fit_anchors(anchors, "lru", lambda slots: price(np.full(100, 10 - slots)))
