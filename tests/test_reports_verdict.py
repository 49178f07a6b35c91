"""Who wins: the ranking, its margins, and what may not compete."""

import numpy as np
import pytest
from test_reports_rows import make_grid, make_row, write_rows

from slotwise.reports import BadResult
from slotwise.reports.curves import foresight
from slotwise.reports.records import winner_records
from slotwise.reports.rows import read_rows
from slotwise.reports.sections import Key, Look, sections
from slotwise.reports.tables import winners
from slotwise.reports.verdict import headline, verdicts


def with_hits(row, hits, *, fills=None, by_request=None):
    """`row` with so many hits of its demands, moved between misses and demand hits."""
    change = hits - row["hits"]
    return row | {
        "hits": hits, "hits_demand": row["hits_demand"] + change, "misses": row["misses"] - change,
        "fills": row["fills"] if fills is None else fills,
        "by_request": row["by_request"] | ({} if by_request is None else {"hits": by_request}),
    }  # fmt: skip


def section_of(tmp_path, rows):
    """Read back from a file, so that the splits are arrays; then changed by the caller."""
    (section,) = sections(read_rows([write_rows(tmp_path / "r.parquet", rows)]))
    return section


@pytest.fixture
def contest(tmp_path):
    """1,600 demands each: lru hits 800, lfru 960, fifo 720, opt 1200."""
    hits = {"lru": 800, "lfru": 960, "fifo": 720, "opt": 1200}
    rows = read_rows([write_rows(tmp_path / "r.parquet", [make_row(policy, 4) for policy in hits])])
    assert {row["demands"] for row in rows} == {1600}
    (section,) = sections([with_hits(row, hits[row["policy"]]) for row in rows])
    return section


def test_the_winner_leads_by_what_subtraction_says(contest):
    (verdict,) = verdicts(contest)
    assert [row["policy"] for row in verdict.ranking] == ["lfru", "lru", "fifo"]
    assert verdict.runner_up is verdict.reference
    assert verdict.lead(verdict.runner_up) == pytest.approx(0.10)
    assert verdict.fewer(verdict.runner_up) == pytest.approx(0.20)  # 640 misses instead of 800
    assert verdict.lead(verdict.bound) == pytest.approx(-0.15)


def test_the_headline_says_the_same_in_words(contest):
    for row, fills in zip(contest.rows, (800, 600, 0, 0), strict=True):  # of 200 tokens
        row["fills"] = fills
    first, second, third = headline(contest)
    assert first == (
        "At 4 of 16 slots per layer (25 %), width 0, lfru hits most: 60.0 % of demands, for 3 rows loaded per token. "
        "That is 10.00 points above lru (20.0 % fewer misses), which loads 4 rows per token. The bound hits 75.0 %."
    )
    assert second.startswith("That is over all phases; in decode alone lfru hits ")
    assert third == (
        "Of the misses of lru, evicting better avoids 50 % at most, as the bound does; lfru avoids 20 %. "
        "So it is both, a policy failure and a working-set failure."
    )


@pytest.mark.parametrize(
    ("bound", "words"),
    [(1066, "mostly a working-set failure"), (1067, "both"), (1333, "both"), (1334, "mostly a policy failure")],
)
def test_the_diagnosis_has_a_middle(tmp_path, bound, words):
    """lru misses 800 of 1,600; the bound has 534, 533, 267 and 266 misses of its own; two thirds are 533.3."""
    rows = read_rows([write_rows(tmp_path / "r.parquet", [make_row(policy, 4) for policy in ("lru", "opt")])])
    (section,) = sections([with_hits(row, hits) for row, hits in zip(rows, (800, bound), strict=True)])
    assert f"So it is {words}" in headline(section)[-1]


def test_what_no_policy_gains_is_not_blamed_on_one(tmp_path):
    """lru misses 800, the best policy 790: a gain of 1 %, whatever the bound would avoid."""
    rows = read_rows([write_rows(tmp_path / "r.parquet", [make_row(policy, 4) for policy in ("lru", "lfru", "opt")])])
    (section,) = sections([with_hits(row, hits) for row, hits in zip(rows, (800, 810, 1334), strict=True)])
    assert "No policy here gets near it: only the bound knows the future" in headline(section)[-1]


def test_policies_closer_than_a_tenth_of_a_point_are_level(tmp_path):
    """1,600 demands: one hit is 0.06 points, two are 0.13."""
    rows = read_rows([write_rows(tmp_path / "r.parquet", [make_row(policy, 4) for policy in ("lru", "lfru")])])
    for hits, words in ((801, "That is level with lru, 0.06 points apart"), (802, "That is 0.12 points above lru")):
        (section,) = sections([with_hits(row, n) for row, n in zip(rows, (800, hits), strict=True)])
        assert words in headline(section)[0]


def test_a_look_ahead_that_does_not_pay_is_said_with_its_price(tmp_path):
    """1,600 demands: 48 hits fewer are 3 points."""
    grid = [make_row("lru", 4), make_row("lru", 4, width=2), make_row("lru", 4, width=3)]
    rows = read_rows([write_rows(tmp_path / "r.parquet", grid)])
    (section,) = sections([
        with_hits(row, hits, fills=fills)
        for row, hits, fills in zip(rows, (800, 752, 700), (100, 250, 300), strict=True)
    ])  # fmt: skip
    assert headline(section)[-1] == (
        "Look-ahead does not pay: at its best, width 2, lru hits 47.0 %, 3.00 points less than lru without it, "
        "for 2.50 times the loads."
    )


def test_one_phase_has_no_bound_and_no_diagnosis(tmp_path):
    rows = [make_row(policy, 4, phase="decode") for policy in ("lru", "opt")]
    section = section_of(tmp_path, rows)
    (told,) = headline(section)
    assert "width 0, in decode, lru hits" in told
    assert "Opt over the whole run, no bound of one phase, hits" in told
    assert "to opt over the whole run" in winners(section).columns
    assert "to the bound" not in winners(section).columns


def test_a_budget_is_named_as_it_was_asked_for(tmp_path):
    row = make_row("lru", 4, row_bytes=512) | {"slots_asked": "8KiB", "capacity_bytes": 4 * 4 * 512}
    told = headline(section_of(tmp_path, [row]))[0]
    assert told.startswith("At 8KiB of VRAM (4 of 16 slots per layer, 25 %), width 0, lru hits")


def test_what_knows_the_future_does_not_win(tmp_path):
    rows = [
        make_row("lru", 4),
        make_row("opt", 4),
        make_row("belady", 4),
        make_row("lru", 4, width=2, predictor="oracle"),
    ]
    section = section_of(tmp_path, rows)
    assert section.policies == ["lru"]
    assert [verdict.winner["policy"] for verdict in verdicts(section)] == ["lru"]
    assert [look.width for look in section.looks] == [0]


def test_an_oracle_alone_is_no_result_to_report_on(tmp_path):
    rows = read_rows([write_rows(tmp_path / "r.parquet", [make_row("lru", 4, width=2, predictor="oracle")])])
    with pytest.raises(BadResult, match="know the future alone; add a width of 0"):
        sections(rows)


def test_equal_hits_are_a_tie_that_fewer_loads_lead(tmp_path):
    rows = read_rows([write_rows(tmp_path / "r.parquet", [make_row(policy, 16) for policy in ("lru", "fifo", "lfru")])])
    (section,) = sections([with_hits(row, 1500, fills=100 + i) for i, row in enumerate(reversed(rows))])
    (verdict,) = verdicts(section)
    assert (verdict.winner["policy"], len(verdict.tied), verdict.runner_up) == ("lfru", 3, None)
    assert (
        "3 policies tie at 93.8 % of demands; lfru has the fewest loads: 0.500 rows loaded per token."
        in headline(section)[0]
    )
    assert winners(section).rows[0][2] == ("lfru", "and 2 more with equal hits")


def test_a_policy_that_hits_nearly_as_often_for_far_fewer_loads_is_named_with_its_price(tmp_path):
    """1,600 demands, 200 tokens; 2 points are 32. lfru wins with 960; lru+gate has 930 for a tenth of its loads."""
    names = ("lfru", "lru+gate", "fifo", "lru")
    rows = read_rows([write_rows(tmp_path / "r.parquet", [make_row(policy, 4, row_bytes=1 << 20) for policy in names])])
    (section,) = sections([
        with_hits(row, hits, fills=fills) | {"bytes_moved": fills << 20}
        for row, hits, fills in zip(rows, (960, 930, 927, 950), (1000, 100, 50, 501), strict=True)
    ])  # fmt: skip
    (verdict,) = verdicts(section)
    assert verdict.cheaper
    assert verdict.cheaper["policy"] == "lru+gate", "fifo is too far below, lru loads too much"
    assert headline(section)[2] == (
        "Nearly the same for far fewer loads: lru+gate hits 58.1 %, 1.87 points less, "
        "for 0.500 rows loaded per token (512 KiB moved)."
    )
    assert "60.0 % of demands, for 5 rows loaded per token (5 MiB moved)" in headline(section)[0]
    table = winners(section)
    told = dict(zip(table.columns, table.rows[0], strict=True))
    assert told["nearly the same"] == ("lru+gate", "58.1 % for 0.500 loads", "512 KiB")
    assert told["loads per token"] == ("5", "5 MiB", "2.00 × lru")
    assert told["over the runner-up"] == ("+0.62 points", "lru, 2.50 loads", "1.5 % fewer misses")
    assert "within 2 points of the winner, for at most 50 % of its loads" in table.note
    (record,) = winner_records(section)
    assert (record["cheaper"], record["cheaper_loads_per_token"]) == ("lru+gate", 0.5)


@pytest.mark.parametrize(("asked", "said"), [("4", ""), ("25%", ""), ("8KiB", ", for 8KiB")])
def test_a_size_names_its_share_its_vram_and_what_was_asked_for(tmp_path, asked, said):
    """4 slots of 4 layers at 512 bytes a row are 8 KiB."""
    row = make_row("lru", 4, row_bytes=512) | {"slots_asked": asked, "capacity_bytes": 4 * 4 * 512}
    table = winners(section_of(tmp_path, [row]))
    assert table.rows[0][0] == ("4", "25 % of 16", f"8 KiB of VRAM{said}")


def test_a_lead_is_counted_over_requests_too(tmp_path):
    rows = read_rows([write_rows(tmp_path / "r.parquet", [make_row("lru", 4), make_row("lfru", 4)])])

    a, b = np.array([10, 10, 10, 10, 10]), np.array([90, 10, 9, 9, 9])
    (section,) = sections([with_hits(rows[0], 800, by_request=a), with_hits(rows[1], 801, by_request=b)])
    (verdict,) = verdicts(section)
    assert verdict.winner["policy"] == "lfru"
    assert verdict.requests_ahead() == (1, 5)


def test_at_width_0_a_guarded_policy_is_the_plain_one_and_not_shown_twice(tmp_path):
    section = section_of(tmp_path, make_grid(("lfru", "lfru+guard(warm=2)"), (4,), (0, 2)))
    assert section.field(section.looks[0]) == ["lfru"]
    assert section.field(section.looks[1]) == ["lfru", "lfru+guard(warm=2)"]
    alone = section_of(tmp_path, make_grid(("lfru+guard",), (4,), (0, 2)))
    assert alone.field(alone.looks[0]) == ["lfru+guard"]


def test_settings_and_traces_are_never_mixed(tmp_path):
    rows = [make_row("lru", 4), make_row("lru", 4, contract="sequential"), make_row("lru", 4, trace="other")]
    found = sections(read_rows([write_rows(tmp_path / "r.parquet", rows)]))
    assert [section.title for section in found] == ["toy, contract event", "toy, contract sequential", "other"]


def test_two_traces_of_one_name_are_told_apart(tmp_path):
    rows = [make_row("lru", 4), make_row("lru", 4) | {"content_sha256": "ab" * 32}]
    found = sections(read_rows([write_rows(tmp_path / "r.parquet", rows)]))
    assert found[1].title == "toy, sha256 abababab"
    assert found[0].title != found[1].title


def test_slots_that_differ_by_layer_are_named_as_a_range(tmp_path):
    section = section_of(tmp_path, [make_row("lru", 4) | {"slots": None, "slots_by_layer": [3, 4, 5, 4]}])
    assert (str(section.shown), section.shown.slots) == ("3–5", 4.0)


def test_a_pool_of_bytes_is_measured_in_rows_of_mean_size(tmp_path):
    """4 layers, top-2 and a token cycle of 8,000 bytes: a row is 1,000 bytes, so 12,500 bytes are 12.5 rows."""
    row = make_row("lru", 4, scope="global") | {"slots": None, "capacity_bytes": 12_500, "token_cycle_bytes": 8_000}
    assert section_of(tmp_path, [row]).shown == (12.5, 12_500, "≈12")
    with pytest.raises(BadResult, match="neither slots nor bytes"):
        section_of(tmp_path, [row | {"capacity_bytes": None}]).sizes  # noqa: B018


def test_an_oracle_is_drawn_as_what_its_width_could_reach(tmp_path):
    rows = make_grid(("lru", "lfru"), (4, 8), (0, 2)) + make_grid(("lru", "lfru"), (4, 8), (2, 3), predictor="oracle")
    section = section_of(tmp_path, rows)
    plain, wide = section.looks
    assert list(foresight(section, wide)) == ["oracle look-ahead, width 2"]
    assert list(foresight(section, plain)) == ["oracle look-ahead, width 3"]  # no figure of its own
    for size, value in foresight(section, wide)["oracle look-ahead, width 2"].items():
        tried = [section.at[Key(policy, size, Look(2, "oracle", 1))] for policy in section.policies]
        assert value == max(row["hits"] / row["demands"] for row in tried)


def test_figures_of_one_size_show_the_one_nearest_a_quarter_of_the_experts(tmp_path):
    assert section_of(tmp_path, make_grid(("lru",), (1, 3, 8, 12, 16))).shown.slots == 3
    assert section_of(tmp_path, make_grid(("lru",), (8, 12, 16))).shown.slots == 8


def test_predictors_are_named_where_the_width_does_not_tell(tmp_path):
    rows = [*make_grid(("lru",), (4,), (0, 2)), make_row("lru", 4, width=2, predictor="previous")]
    section = section_of(tmp_path, rows)
    assert [section.look_name(look) for look in section.looks] == ["width 0", "width 2, previous", "width 2, trace"]
