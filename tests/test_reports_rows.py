"""What a report accepts as rows. Also makes the rows of the other report tests: random, but with no identity broken."""

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.reports import BadResult
from slotwise.reports.metrics import COUNTERS, NULLABLE
from slotwise.reports.rows import NESTED, OPTIONS, read_rows

DEFAULTS = {
    "scope": "layer", "contract": "event", "width": 0, "predictor": "trace", "horizon": 1, "lag_demand": 0,
    "lag_prefetch": 0, "max_loads": None, "overflow": "bypass", "reset": "persistent", "miss": "cpu",
    "prefill": "cached",
    "batch_gate": 8, "phase": "all", "steps": None, "verify_tokens": 1, "accept": 1.0, "seed": 0, "row_bytes": None,
}  # fmt: skip
STRENGTH = {"opt": 0.93, "lfru": 0.62, "lfu": 0.58, "lru": 0.5, "fifo": 0.45}


def make_row(
    policy="lru",
    slots=4,
    *,
    trace="toy",
    n_layers=4,
    n_experts=16,
    top_k=2,
    n_windows=10,
    row_bytes=None,
    phases=2,
    **options,
) -> dict[str, Any]:
    """One result row: counts by (layer, window) drawn so that each cell keeps the identities, then summed every way."""
    rng = np.random.default_rng(zlib.crc32(f"{policy} {slots} {options}".encode()))
    row: dict[str, Any] = DEFAULTS | options | {"policy": policy, "slots": slots, "row_bytes": row_bytes}
    steps_per_window = 20
    n_steps = n_windows * steps_per_window
    demands = np.full((n_layers, n_windows), steps_per_window * top_k)
    share = slots / n_experts
    strength = STRENGTH.get(policy.split("(")[0].split("+")[0], 0.4) + 0.01 * len(policy) * ("(" in policy)
    warm = 1 - 0.5 * np.exp(-np.arange(n_windows) / (1 + 4 * share))
    ease = 1 - 0.2 * np.cos(np.arange(n_layers))[:, None] ** 2
    width = row["width"]
    rate = (
        np.clip(share ** (1 - strength) * warm * ease + 0.03 * np.sqrt(width) * (1 - share), 0, 0.97)
        if share < 1
        else 1 - 0.9 * (warm < 0.7) + 0 * ease
    )
    cells = dict.fromkeys([*COUNTERS, "pollution"], 0) | {"demands": demands, "routed": demands}
    cells["hits"] = rng.binomial(demands, np.broadcast_to(rate, demands.shape))
    cells["misses"] = demands - cells["hits"]
    cells["prefetch_hits"] = rng.binomial(cells["hits"], 0.25 if width else 0)
    cells["hits_demand"] = cells["hits"] - cells["prefetch_hits"]
    cells["gated"] = rng.binomial(cells["misses"], 0.8 if "gate" in policy else 0)
    cells["late"] = rng.binomial(cells["misses"] - cells["gated"], 0.1 if row["lag_prefetch"] and width else 0)
    cells["loads_demand"] = cells["misses"] - cells["gated"] - cells["late"]
    cells["compulsory"] = rng.binomial(cells["misses"], 0.1)
    cells["used_late"], cells["wasted"] = cells["late"], rng.binomial(demands, 0.1 if width else 0)
    cells["loads_speculative"] = cells["prefetch_hits"] + cells["used_late"] + cells["wasted"]
    cells["predictions"] = np.maximum(width * steps_per_window, cells["loads_speculative"]) if width else 0
    cells["dropped_guard"] = rng.binomial(
        cells["predictions"] - cells["loads_speculative"], 0.3 if "guard" in policy else 0
    )
    cells["redundant"] = cells["predictions"] - cells["loads_speculative"] - cells["dropped_guard"]
    cells["fills"] = cells["loads_demand"] + cells["loads_speculative"]
    held = np.minimum(slots, np.cumsum(cells["fills"], axis=1))
    cells["evictions"] = cells["fills"] - np.diff(held, axis=1, prepend=0)
    cells["evicted_by_demand"] = cells["evictions"]
    cells = {name: np.broadcast_to(value, demands.shape) for name, value in cells.items()}
    if row_bytes:
        cells |= dict.fromkeys(("bytes_loaded", "bytes_moved"), cells["fills"] * row_bytes)
        if row["miss"] == "fetch":
            cells["bytes_moved"] = (cells["fills"] + cells["gated"]) * row_bytes

    def split(axis_sum):
        return {name: axis_sum(value).tolist() for name, value in cells.items()} | dict.fromkeys(
            set(NULLABLE) - set(cells)
        )

    cut = 1 if phases == 2 else 0
    whole = {name: int(value.sum()) for name, value in cells.items()} | dict.fromkeys(set(NULLABLE) - set(cells))
    windows = {"window_steps": steps_per_window, "first_step": list(range(0, n_steps, steps_per_window))}
    identity = {
        "trace": trace, "trace_sha256": f"{zlib.crc32(trace.encode()):064x}", "content_sha256": f"{trace:x>64}",
        "model": "toy-moe", "n_layers": n_layers,
        "n_experts": n_experts, "top_k": top_k, "n_tokens": n_steps, "n_tokens_counted": n_steps, "n_steps": n_steps,
        "n_requests": n_windows // 2, "slots_asked": str(slots), "slots_by_layer": None, "plan_sha256": None,
        "seconds": 0.01,
        "capacity_bytes": slots * n_layers * row_bytes if row_bytes else None,
        "token_cycle_bytes": n_layers * top_k * row_bytes if row_bytes else None,
    }  # fmt: skip
    splits = {
        "by_layer": split(lambda value: value.sum(1)),
        "by_phase": {
            "prefill": {"tokens": steps_per_window * cut} | split(lambda value: value[:, :cut].sum()),
            "decode": {"tokens": n_steps - steps_per_window * cut} | split(lambda value: value[:, cut:].sum()),
        },
        "by_request": {"request": list(range(n_windows // 2)), "tokens": [2 * steps_per_window] * (n_windows // 2)}
        | split(lambda value: value.reshape(n_layers, -1, 2).sum((0, 2))),
        "along": windows | {"tokens": [steps_per_window] * n_windows} | split(lambda value: value.sum(0)),
    }
    return row | whole | {"residents": int(held[:, -1].sum())} | identity | splits


def emptied(row: Any) -> Any:
    """`row` with every count, whole and split, at nought: what `--phase decode` reports of a trace without decode."""
    if isinstance(row, dict):
        kept = {"request", "first_step", "window_steps"}
        counts = {*COUNTERS, *NULLABLE, "tokens", "by_layer", "by_phase", "by_request", "along", "prefill", "decode"}
        return {k: v if k in kept or k not in counts or isinstance(v, str) else emptied(v) for k, v in row.items()}
    return [0] * len(row) if isinstance(row, list) else 0 if row is not None else None


def make_grid(policies=("lru", "lfru", "opt"), slots=(2, 4, 8, 16), widths=(0,), **options):
    """Rows of a grid, `opt` at width 0 only, as a sweep would write them."""
    return [
        make_row(policy, n, width=width, **options)
        for policy in policies
        for n in slots
        for width in widths
        if not (width and policy == "opt")
    ]


def write_rows(path: Path, rows) -> Path:
    """Rows -> a result file."""
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def edited(path: Path, to: Path, change) -> Path:
    """A copy of a result whose rows `change` has been at."""
    table = pq.read_table(path)
    rows = table.to_pylist()
    for row in rows:
        change(row)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), to)
    return to


def test_a_result_file_comes_back_row_for_row(tmp_path):
    rows = make_grid(widths=(0, 2), row_bytes=1000)
    back = read_rows([write_rows(tmp_path / "r.parquet", rows)])
    assert len(back) == len(rows)
    for row, again in zip(rows, back, strict=True):
        assert all(again[name] == row[name] for name in [*OPTIONS, *COUNTERS, *NULLABLE])
        assert again["by_layer"]["hits"].tolist() == row["by_layer"]["hits"]
        assert again["by_phase"]["decode"]["misses"] == row["by_phase"]["decode"]["misses"]
        assert again["along"]["window_steps"] == 20


def test_the_same_configuration_in_two_files_counts_once(tmp_path):
    first = write_rows(tmp_path / "a.parquet", [make_row("lru", 4), make_row("lru", 8)])
    second = write_rows(tmp_path / "b.parquet", [make_row("lru", 8), make_row("lfru", 8)])
    assert [(row["policy"], row["slots"]) for row in read_rows([first, second])] == [
        ("lru", 4),
        ("lru", 8),
        ("lfru", 8),
    ]


def test_the_same_configuration_with_other_counts_is_an_error_that_names_both_places(tmp_path):
    row = make_row("lru", 4)
    other = {**row, "evictions": row["evictions"] + 1}
    paths = [write_rows(tmp_path / "a.parquet", [row]), write_rows(tmp_path / "b.parquet", [other])]
    with pytest.raises(BadResult, match=r"b\.parquet row 0: lru at 4 slots is also in a\.parquet row 0.*evictions"):
        read_rows(paths)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def broken_inside(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[200:4000] = bytes(3800)
    path.write_bytes(data)


def rewritten(**changes):
    def spoil(path: Path) -> None:
        row = make_row("lru", 4)
        write_rows(
            path, [{**row, **{name: change(row) if callable(change) else change for name, change in changes.items()}}]
        )

    return spoil


def without(column: str):
    return lambda path: pq.write_table(pq.read_table(path).drop_columns([column]), path)


SPOILT = {
    "empty": (lambda path: path.write_bytes(b""), "the file is empty"),
    "text": (lambda path: path.write_text("policy,slots\nlru,4\n"), "no Parquet file"),
    "four bytes": (lambda path: path.write_bytes(b"PAR1"), "truncated or damaged"),
    "truncated": (truncated, "truncated or damaged"),
    "zeroed inside": (broken_inside, "truncated or damaged|no sweep result"),
    "no rows": (lambda path: pq.write_table(pq.read_table(path).slice(0, 0), path), "holds no result rows"),
    "a trace": (lambda path: pq.write_table(pa.table({"experts.000": [b"\0\1"]}), path), "is a trace, not a result"),
    "another table": (lambda path: pq.write_table(pa.table({"a": [1]}), path), "'trace' and .* more is missing"),
    "no contract": (without("contract"), "column 'contract' is missing"),
    "text for a count": (rewritten(hits="many"), "hits is 'many', but must be int"),
    "no policy": (rewritten(policy=None), "policy is None"),
    "negative count": (rewritten(evictions=-3), "evictions is -3, but must be 0 or more"),
    "no layers": (rewritten(n_layers=0), "n_layers is 0"),
    "hits that do not add up": (rewritten(hits=lambda row: row["hits"] + 1), "row 0: demands .* is not hits"),
    "a layer missing": (rewritten(n_layers=5), "by_layer does not have 5 counts of demands"),
    "layers that do not add up": (
        rewritten(by_layer=lambda row: {**row["by_layer"], "hits": [0, 0, 0, 0]}),
        "summed over by_layer",
    ),
    "a split without misses": (
        rewritten(along=lambda row: {k: v for k, v in row["along"].items() if k != "misses"}),
        "along does not have 10 counts of misses",
    ),
    "a hole in a split": (
        rewritten(by_layer=lambda row: {**row["by_layer"], "wasted": [0, None, 0, 0]}),
        "by_layer does not have 4 counts of wasted",
    ),
    "a phase missing": (
        rewritten(by_phase=lambda row: {"decode": row["by_phase"]["decode"]}),
        "by_phase must hold prefill and decode",
    ),
    "windows of different lengths": (
        rewritten(along=lambda row: {**row["along"], "fills": [1, 2]}),
        "along does not have 10 counts of fills",
    ),
    "a split of another type": (rewritten(by_request="none"), "by_request"),
    "lists of text": (rewritten(by_layer=lambda row: {**row["by_layer"], "hits": ["a"] * 4}), "a list of string"),
}  # fmt: skip


@pytest.mark.parametrize("kind", SPOILT)
def test_a_spoilt_file_is_told_in_one_line_with_its_name(tmp_path, kind):
    path = write_rows(tmp_path / "r.parquet", [make_row("lru", 4)])
    spoil, message = SPOILT[kind]
    spoil(path)
    with pytest.raises(BadResult, match=message) as caught:
        read_rows([path])
    assert "\n" not in str(caught.value)
    assert "r.parquet" in str(caught.value)


@given(data=st.data())
def test_whatever_bytes_are_broken_there_is_a_line_or_there_are_rows(tmp_path_factory, data):
    path = write_rows(tmp_path_factory.mktemp("r") / "r.parquet", [make_row("lru", 4), make_row("lfru", 8, width=2)])
    content = bytearray(path.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.sampled_from([len(content), len(content) - 9, len(content) // 2]))])
    try:
        found = read_rows([path])
    except BadResult as error:
        found = str(error)
    assert found
    assert "\n" not in found


def test_no_files_at_all_is_an_error():
    with pytest.raises(BadResult, match="at least one result file"):
        read_rows([])


def test_every_split_of_the_made_rows_keeps_the_identities():
    """The helper itself: were its rows wrong, the tests that use it would prove nothing."""
    for row in make_grid(widths=(0, 3), lag_prefetch=2):
        assert row["misses"] == row["loads_demand"] + row["gated"] + row["late"]
        assert row["predictions"] == row["redundant"] + row["dropped_guard"] + row["loads_speculative"]
        assert row["fills"] - row["evictions"] == row["residents"]
        assert set(NESTED) <= set(row)
