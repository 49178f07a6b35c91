"""How big the pools are: counts, fractions and byte budgets become slots, or a pool of bytes."""

import math
import resource

import pytest
from trace_cases import demanding

import slotwise
from slotwise import BadOption
from slotwise.replay.errors import ReplayWarning

A, B = 0, 1


@pytest.mark.parametrize(
    ("asked", "scope", "granted"),
    [(0, "layer", 0), (3, "layer", 3), ("3", "layer", 3), ("25%", "layer", 2), ("30%", "layer", 2), ("1%", "layer", 1),
     ("0%", "layer", 0), ("100%", "layer", 8), ("25%", "global", 4), ("12.5%", "global", 2), (16, "global", 16)],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:the global pool")
def test_slots_are_a_count_or_a_fraction_of_the_keys_of_a_pool_floored_and_at_least_one(asked, scope, granted):
    """8 experts in each of 2 layers: a layer pool has 8 keys, the global one 16."""
    options = slotwise.replay(demanding(A, n_layers=2), slots=asked, scope=scope).options
    assert (options["slots"], options["slots_asked"]) == (granted, str(asked))


def test_more_slots_than_keys_are_capped_and_said_so():
    with pytest.warns(ReplayWarning, match="^slots 9: a pool has only 8 keys, so 8 are used$"):
        options = slotwise.replay(demanding(A), slots=9).options
    assert (options["slots"], options["slots_asked"]) == (8, "9")


@pytest.mark.parametrize("slots", ["many", "-1", "12.5", "", "1e3", "101%", "-5%", "8,16"])
def test_a_size_that_is_none_is_refused_with_what_to_write(slots):
    with pytest.raises(BadOption, match=r"^slots .*(count \(32\) or a fraction|at most 100%)"):
        slotwise.replay(demanding(A), slots=slots)


def test_exactly_one_of_slots_and_vram_is_given():
    for sizes in ({}, {"slots": 2, "vram": "1KB"}):
        with pytest.raises(BadOption, match=r"give either slots or vram: --slots 32 .* or --vram 8GiB"):
            slotwise.replay(demanding(A, row_bytes=[100]), **sizes)


@pytest.mark.parametrize(
    ("vram", "rows", "scope", "slots", "by_layer", "capacity"),
    [
        ("1000", [100, 100], "layer", 5, None, 1000),  # 1000 // 2 layers = 500 bytes each
        (1099, [100, 100], "layer", 5, None, 1000),
        ("1KB", [100, 200], "layer", None, [5, 2], 900),  # 5 x 100 + 2 x 200
        ("1KiB", [100, 100], "global", 10, None, 1000),  # 1024 // 100
        ("0.001 MB", [100, 100], "global", 10, None, 1000),
        ("99", [100, 100], "layer", 0, None, 0),
        ("1GiB", [100, 200], "layer", 8, None, 2400),  # no more slots than experts
    ],
)
@pytest.mark.filterwarnings("ignore:the global pool")
def test_vram_is_the_bytes_of_all_pools_and_becomes_slots_where_a_pool_has_rows_of_one_size(
    vram, rows, scope, slots, by_layer, capacity
):
    options = slotwise.replay(demanding(A, n_layers=2, row_bytes=rows), vram=vram, scope=scope).options
    found = [options[name] for name in ("slots", "slots_by_layer", "capacity_bytes", "slots_asked")]
    assert found == [slots, by_layer, capacity, str(vram)]


def test_slots_may_be_a_list_with_one_size_for_each_layer():
    result = slotwise.replay(demanding(A, n_layers=2, row_bytes=[100, 200]), slots=[3, "25%"])
    assert (result.options["slots_by_layer"], result.options["slots_asked"]) == ([3, 2], "3, 25%")
    assert result.options["capacity_bytes"] == 3 * 100 + 2 * 200
    for slots, scope in (([3], "layer"), ([3, 2], "global")):
        with pytest.raises(slotwise.BadOption, match=r"one for each of the 2 layers"):
            slotwise.replay(demanding(A, n_layers=2), slots=slots, scope=scope)


def test_rows_that_differ_are_not_called_unknown():
    known = slotwise.replay(demanding(A, n_layers=2, row_bytes=[100, 200]), slots=16, scope="global")
    assert "rows differ in size" in repr(known)
    assert "row size unknown" in repr(slotwise.replay(demanding(A, n_layers=2), slots=16, scope="global"))


@pytest.mark.parametrize(
    ("vram", "bypassed", "evictions", "bytes_loaded"),
    [
        (300, 0, 4, 900),  # one row of each layer fits; from the second step on every load evicts its like
        (299, 0, 5, 900),  # one row at a time: every load but the first evicts
        (199, 3, 2, 300),  # the rows of layer 1 never fit
        (99, 6, 0, 0),
    ],
)
@pytest.mark.filterwarnings("ignore:the global pool")
def test_a_global_pool_of_unequal_rows_is_counted_in_bytes(vram, bypassed, evictions, bytes_loaded):
    """A B A in two layers whose rows have 100 and 200 bytes: 6 demands, never a hit."""
    run = slotwise.replay(demanding(A, B, A, n_layers=2, row_bytes=[100, 200]), vram=vram, scope="global")
    c = run.counters
    assert (c["demands"], c["hits"], c["bypassed"], c["evictions"]) == (6, 0, bypassed, evictions)
    assert (c["bytes_loaded"], run.token_cycle_bytes) == (bytes_loaded, 300)
    assert (run.options["slots"], run.options["capacity_bytes"]) == (None, vram)
    assert f"{vram} of 8 experts" in repr(run)


def test_without_row_sizes_bytes_are_unknown_and_vram_names_the_way_out():
    trace = demanding(A, B)
    run = slotwise.replay(trace, slots=1)
    assert run.counters["bytes_loaded"] is run.counters["bytes_moved"] is run.token_cycle_bytes is None
    assert run.options["capacity_bytes"] is None
    assert math.isnan(run.rates["bytes_per_token"])
    with pytest.raises(BadOption, match="the trace does not record how large a row is; add --row-bytes N"):
        slotwise.replay(trace, vram="1KB")
    told = slotwise.replay(trace, vram="1KB", row_bytes=400)
    assert (told.options["slots"], told.counters["bytes_loaded"], told.token_cycle_bytes) == (2, 800, 400)


@pytest.mark.parametrize("vram", ["lots", "8GiBB", "-1", "1PB", ""])
def test_a_budget_that_is_none_is_refused_with_what_to_write(vram):
    with pytest.raises(BadOption, match="as bytes; write 8GiB, 900MiB, 12GB or a plain number"):
        slotwise.replay(demanding(A, row_bytes=[100]), vram=vram)


@pytest.mark.once
def test_a_model_of_very_many_layers_is_counted_in_small_pieces():
    """A window a step in 30000 layers: 256 cells of counters for all of them would take 2 GB."""
    trace = slotwise.Trace.synthesise(n_tokens=100, n_layers=30_000, n_experts=2, top_k=1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = slotwise.replay(trace, slots=1, window=1, threads=1)
    assert (sum(run.along["demands"]), run.along["demands"][0]) == (3_000_000, 30_000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kilobytes
