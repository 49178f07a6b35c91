"""An independent simulator counts the same misses: libCacheSim's LRU and Belady, looked up expert by expert."""

import pytest
from test_benchmarks import bench

import slotwise

pytest.importorskip("libcachesim", reason="the peer is absent: pip install '.[bench]' (GPL, never a dependency)")


def test_sequential_global_lru_and_belady_miss_as_often_as_theirs_on_the_sample():
    rows = bench("libcachesim_equal")[1:]
    assert {row["policy"] for row in rows} == {"lru", "belady"}
    assert len({row["slots"] for row in rows}) == 6
    assert all(row["equal"] for row in rows)


def test_they_do_so_with_absent_experts_and_ids_of_two_bytes(tmp_path):
    import numpy as np

    ids = np.sort(np.random.default_rng(5).random((60, 5, 400)).argsort(2)[:, :, :6] % 400, 2).astype(np.int64)
    ids[::3, 2:] = -1  # a layer without experts for a token
    slotwise.Trace.from_arrays(ids, n_experts=400).save(tmp_path / "absent.parquet")
    rows = [row for row in bench("libcachesim_equal", tmp_path / "absent.parquet")[1:] if row["trace"] == "absent"]
    assert rows[0]["lookups"] == (ids >= 0).sum()
    assert all(row["equal"] for row in rows)


def test_they_do_so_on_every_captured_trace(shared):
    files = sorted((shared / "traces").glob("*/decode.npz"))
    rows = bench("libcachesim_equal", *files)[1:]
    assert {row["lookups"] for row in rows}
    assert len(rows) == 12 * (1 + len(files))
    assert all(row["equal"] for row in rows)


def test_the_event_contract_counts_otherwise_and_the_check_says_so():
    rows = bench("libcachesim_equal", "--contract", "event", code=1)[1:]
    assert not all(row["equal"] for row in rows)
