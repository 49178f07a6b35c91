"""What the report says about what was run: captions that hold for it, and splits that say which row they are of."""

import csv

import pytest
from test_reports_parts import report
from test_reports_rows import make_row

from slotwise.reports.charts import no_vram
from slotwise.reports.sections import Section

pytestmark = pytest.mark.once

BUDGETS = (("1KiB", 900), ("2KiB", 1900))


def test_the_splits_carry_what_was_asked_which_trace_and_whatever_else_differs(tmp_path):
    """Two budgets that become unequal slots, two traces of one name, and two resets: none can be told by slots."""
    unequal = {"slots": None, "slots_by_layer": [3, 4, 5, 4]}
    rows = [make_row("lru", 4) | unequal | {"slots_asked": vram, "capacity_bytes": n} for vram, n in BUDGETS]
    rows += [make_row("lru", 4) | {"trace_sha256": "ab" * 32}, make_row("lru", 4, reset="request")]
    out, _ = report(tmp_path, rows)
    for name in ("layers.csv", "phases.csv", "requests.csv", "windows.csv"):
        with (out / name).open() as file:
            lines = list(csv.DictReader(file))
        assert {(line["slots_asked"], line["capacity_bytes"]) for line in lines} >= {("1KiB", "900"), ("2KiB", "1900")}
        assert {line["sha256"] for line in lines} == {rows[0]["trace_sha256"][:8], "abababab"}
        assert {line["reset"] for line in lines} == {"persistent", "request"}
    with (out / "winners.csv").open() as file:
        assert {line["slots_asked"] for line in csv.DictReader(file)} == {"1KiB", "2KiB", "4"}


@pytest.mark.parametrize(
    ("rows", "said", "unsaid"),
    [
        ([make_row("lru+gate", n) for n in (4, 8)], "slots stay free although there are misses", "larger than this"),
        ([make_row("lru", n) for n in (4, 8)], "One that never fills is larger than this trace", "slots stay free"),
        (
            [make_row(f"lfru(half_life={n})", 4) for n in range(1, 15)],
            "Shown are 12 of 14 policies",
            "of 14 configurations",
        ),
        ([make_row(f"lfru(half_life={n})", 4) for n in range(1, 13)], "is hard for any policy", "Shown are 12"),
        ([make_row(p, 4, phase="decode") for p in ("lru", "opt")], "opt over the whole run", "bound without prefetch"),
    ],
)
def test_captions_hold_for_what_was_run(tmp_path, rows, said, unsaid):
    _, page = report(tmp_path, rows)
    assert said in page.text
    assert unsaid not in page.text


def test_rows_of_known_but_unequal_size_are_not_called_unknown():
    section = Section([make_row("lru", 4) | {"token_cycle_bytes": 900, "capacity_bytes": None}])
    assert no_vram(section) == "pool VRAM: rows differ in size"
    assert no_vram(Section([make_row("lru", 4)])) == "pool VRAM: row size unknown"
