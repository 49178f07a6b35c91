"""Prices in a report: values are those of the replays, labels say where they come from, wrong columns are refused."""

import csv
import html
import json
import re
from copy import deepcopy
from dataclasses import replace

import pytest
from conftest import slotwise as command
from test_reports_browser import FRAME, browse  # noqa: F401
from test_reports_parts import Page
from test_reports_rows import edited, make_row

import slotwise
from slotwise.replay.machine_figures import Sheet
from slotwise.reports import BadResult, metrics
from slotwise.reports.priced import answer, priced_of
from slotwise.reports.prices import CAUSES, check_price
from slotwise.reports.rows import read_rows
from slotwise.reports.sections import sections

pytestmark = pytest.mark.once
ROW = 1 << 20
POLICIES = ("lru", "lru+gate", "lfru+guard", "opt")


@pytest.fixture(scope="module")
def trace():
    return slotwise.Trace.synthesise(
        n_tokens=300, n_layers=3, n_experts=16, top_k=2, width=3, requests=2, prompt_tokens=20, row_bytes=ROW
    )


@pytest.fixture(scope="module")
def machine():
    return slotwise.estimate_machine(link="3GB/s", host_read="10GB/s", device_read="360GB/s", name="the slow link")


@pytest.fixture(scope="module")
def swept(trace, machine, tmp_path_factory):
    path = tmp_path_factory.mktemp("swept") / "S.parquet"
    return slotwise.sweep([trace], POLICIES, slots=[4, 8], widths=[0, 3], out=path, machine=machine, dense_us=20.0)


@pytest.fixture(scope="module")
def report(swept, tmp_path_factory):
    return slotwise.write_report([swept], tmp_path_factory.mktemp("report") / "out")[0].parent


def lines_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def page_of(folder):
    return Page((folder / "report.html").read_text())


def labels_of(page):
    """The first word of every figure's description, by its title."""
    figures = [attrs["aria-label"] for tag, attrs in page.tags if tag == "figure"]
    said = [attrs["aria-label"].split(".")[0] for _, attrs in page.tags if attrs.get("role") == "img"]
    return dict(zip(figures, said, strict=True))


def test_every_figure_of_a_price_is_that_of_the_replay(report, trace, machine):
    lines = lines_of(report / "prices.csv")
    assert len(lines) == 2 * (4 + 3), "opt runs without look-ahead alone"
    text = page_of(report).text
    for policy, width in (("lru", 0), ("lru+gate", 3)):
        price = slotwise.replay(trace, policy, 4, width=width, machine=machine, dense_us=20.0).price
        (line,) = [
            line for line in lines if (line["policy"], line["slots"], line["width"]) == (policy, "4", str(width))
        ]
        assert float(line["tokens_per_s"]) == price.tokens_per_s
        assert [float(line[f"tokens_per_s_{end}"]) for end in ("low", "high")] == [*price.intervals["tokens_per_s"]]
        assert [float(line[f"part_{name}"]) for name in CAUSES] == [price.parts[name] for name in CAUSES]
        assert float(line["busy_link"]) == price.busy["link"]
        assert float(line["tpot_p99_s"]) == price.percentile(99)[0]
        assert int(line["late_hits"]) == price.late["late_hits"]
        for end in (price.tokens_per_s, *price.intervals["tokens_per_s"]):
            assert metrics.number(end) in text
        if width:
            assert float(line["break_even_precision"]) == price.break_even_precision
            assert float(line["ceiling_tokens_per_s"]) == price.ceiling.tokens_per_s
            assert metrics.percent(price.break_even_precision) in text
            assert metrics.percent(price.precision) in text
            assert metrics.number(price.ceiling.tokens_per_s) in text


def test_prices_are_labelled_apart_from_the_counts_of_the_same_section(report):
    page = page_of(report)
    found = labels_of(page)
    priced = {title for title, label in found.items() if label == "ESTIMATED"}
    assert {re.split(", (?=width|\\d)", title)[0] for title in priced} == {
        "Tokens per second", "Hits and tokens/s", "Where the time goes", "Precision and break-even", "Link busy",
    }  # fmt: skip
    assert set(found.values()) == {"SIMULATED", "ESTIMATED"}
    assert "All numbers are **SIMULATED**" in (report / "report.md").read_text()
    assert "Tokens per second are **ESTIMATED**" in (report / "report.md").read_text()
    assert not re.search(r"\b(nan|None|inf)\b", page.text)
    assert len(page.ids) == len(set(page.ids))


def test_the_bars_of_the_causes_are_the_parts_of_the_price(report, trace, machine):
    price = slotwise.replay(trace, "lru", 4, machine=machine, dense_us=20.0).price
    (alt,) = [
        attrs["aria-label"]
        for _, attrs in page_of(report).tags
        if attrs.get("role") == "img" and "Where the time goes" in attrs["aria-label"]
    ]
    told = dict(
        re.findall(r"(hot alone|cold alone|awaited copies) ([\d.,]+)", re.search("lru, width 0: ([^;]*)", alt)[1])
    )
    for name, text in (("hot_alone_s", "hot alone"), ("cold_alone_s", "cold alone"), ("late_s", "awaited copies")):
        assert told[text].rstrip(",.") == metrics.number(1e3 * price.parts[name] / price.tokens)


def test_a_machine_that_was_measured_with_these_rows_gives_simulated_prices(trace, machine, tmp_path):
    def sheet(chain, threads):
        return Sheet(chain, ROW, 1, (1, 2, 8), (1.0,), ((1e-4,), (2e-4,), (7e-4,)), ((1e-5,),) * 3, threads)

    known = replace(machine, label="MEASURED", sheets=(sheet("hot", None), sheet("cold", machine.cpu_threads)))
    path = slotwise.sweep([trace], ["lru"], slots=[4, 8], out=tmp_path / "S.parquet", machine=known)
    page = page_of(slotwise.write_report([path], tmp_path / "out")[0].parent)
    assert set(labels_of(page).values()) == {"SIMULATED"}
    assert "estimated" not in page.text.lower()


def test_two_ways_of_pricing_are_two_parts_over_counts_that_are_there_once(trace, machine, tmp_path):
    path = tmp_path / "S.parquet"
    for overlap in ("on", "off"):
        slotwise.sweep([trace], ["lru", "lru+gate"], slots=[4, 8], out=path, machine=machine, overlap=overlap)
    (section,) = sections(read_rows([path]))
    assert len(section.rows) == 4
    assert [len(row["prices"]) for row in section.rows] == [2] * 4
    on, off = priced_of(section)
    assert (on.on, off.on) == ("the slow link (overlap on)", "the slow link (overlap off)")
    out = slotwise.write_report([path], tmp_path / "out")[0].parent
    assert len(lines_of(out / "prices.csv")) == 8
    assert len(lines_of(out / "configurations.csv")) == 4
    text = page_of(out).text
    for part, overlap in ((on, "on"), (off, "off")):
        price = slotwise.replay(trace, "lru", 8, machine=machine, overlap=overlap).price
        (row,) = [row for key, row in part.at.items() if (key.policy, key.size.slots) == ("lru", 8)]
        assert row["price"]["tokens_per_s"] == price.tokens_per_s
        assert f"Tokens per second on the slow link (overlap {overlap})" in text


def test_without_a_price_nothing_is_said_of_time(trace, tmp_path):
    path = slotwise.sweep([trace], POLICIES, slots=[4, 8], widths=[0, 3], out=tmp_path / "S.parquet")
    out = slotwise.write_report([path], tmp_path / "out")[0].parent
    assert "prices.csv" not in {path.name for path in out.iterdir()}
    text = page_of(out).text + (out / "report.json").read_text() + (out / "report.md").read_text()
    for word in ("tokens/s", "okens per second", "tokens_per_s", "break-even", "estimated"):
        assert word not in text


def test_compare_prices_what_it_replays_in_text_and_in_json(trace, machine, tmp_path):
    trace.save(tmp_path / "T.parquet")
    slotwise.write_machine(machine, tmp_path / "m.json")
    words = ["compare", tmp_path / "T.parquet", "--machine", tmp_path / "m.json", "--policy", "lru+gate"]
    words += ["--policy", "lru", "--slots", "4,8", "-o", tmp_path / "out"]
    said = command(*words).stdout
    assert "tokens/s ESTIMATED on the slow link" in said
    (section,) = json.loads(command(*words, "--json").stdout)["sections"]
    for one in section["winners"]:
        price = slotwise.replay(trace, one["winner"], int(one["slots"]), width=one["width"], machine=machine).price
        assert one["tokens_per_s"] == price.tokens_per_s
        assert metrics.number(price.tokens_per_s) in said
        assert (one["tokens_per_s_low"], one["tokens_per_s_high"]) == price.intervals["tokens_per_s"]
        assert one["fastest_tokens_per_s"] >= one["tokens_per_s"]
    assert len(section["prices"]) == 2 * (2 + 1 + 2)
    refused = command(*words, "--overlap", "off", code=2).stderr
    assert "with overlap on, and you ask for overlap off" in refused
    faster = replace(machine, figures=machine.figures | {"ids_s": replace(machine.figures["ids_s"], value=2e-5)})
    slotwise.write_machine(faster, tmp_path / "m.json", force=True)
    assert f"with machine_sha256 {machine.sha256}" in command(*words, code=2).stderr
    assert "give a machine with it" in command("compare", "sample", "--late", "cold", "-o", "x", code=2).stderr


# --- made-up prices ---


def price(speed=100.0, **more):
    """A price of 1000 tokens that spends its time in the cold chain alone."""
    seconds = 1000 / speed
    ends = dict.fromkeys(("hit_rate_interval", "bytes_per_token_interval", "gain_interval", "gain"))
    return {
        "label": "ESTIMATED", "machine": "made up", "machine_sha256": "a" * 64, "machine_date": "2026-01-31",
        "overlap": "on", "when_late": "wait", "dense_us": 0.0, "cpu_threads": 8, "max_queued": None,
        "spec_chunk": None, "split_share": None, "seconds": seconds, "tokens": 1000, "tokens_per_s": speed,
        "tokens_per_s_interval": [0.9 * speed, 1.1 * speed], **ends, "bytes_per_token": 1e6,
        "tpot_p50_s": 0.01, "tpot_p95_s": 0.02, "tpot_p99_s": 0.03,
        "parts": dict.fromkeys(CAUSES, 0.0) | {"cold_alone_s": seconds},
        "busy": {"link": 0.25, "gpu": 0.1, "cold": 1.0, "host": 0.0}, "late_hits": 0, "late_ticks": 0, "diverted": 0,
        "lateness_mean_s": 0.0, "lateness_worst_s": 0.0, "base_s": None, "miss_s": None, "explained": None,
        "precision": None, "break_even_precision": None, "without": None, "ceiling": None,
    } | more  # fmt: skip


def ahead(speed, plain, precision, even, ceiling):
    return price(
        speed, gain=speed / plain, precision=precision, break_even_precision=even,
        without={"tokens_per_s": plain, "tokens_per_s_interval": None},
        ceiling={"tokens_per_s": ceiling, "tokens_per_s_interval": None},
    )  # fmt: skip


def priced_rows(prices):
    return [make_row(policy, slots, width=width) | {"prices": [one]} for (policy, slots, width), one in prices.items()]


def test_that_hits_and_speed_part_ways_is_said_where_they_do():
    rows = priced_rows(
        {("lru", 4, 0): price(120.0), ("lfru", 4, 0): price(100.0), ("lru", 4, 4): ahead(80.0, 120.0, 0.5, 1.25, 90.0),
         ("lfru", 4, 4): ahead(70.0, 100.0, 0.75, 1.5, 95.0)}
    )  # fmt: skip
    (part,) = priced_of(sections(rows)[0])
    said = " ".join(answer(part))
    assert "lru is fastest, 120 (108 to 132) tokens/s" in said
    assert "Busiest is the CPU, 100 % of the time" in said
    assert "50.0 % are used, below the break-even of 125.0 %, which no predictor reaches" in said
    assert "An oracle of the same width: 90 tokens/s" in said
    assert "0.667 times what it reaches without" in said
    most = max(rows, key=lambda row: row["hits"])
    assert f"Hits and speed part ways: {most['policy']} at width 4 hits most" in said
    assert [best for best, _ in part.ceilings(part.looks[1]).values()] == [95.0], "that of any policy"
    same = priced_rows({("lru", 4, 0): price(100.0), ("lfru", 4, 0): price(120.0)})
    assert same[1]["hits"] > same[0]["hits"]
    assert "part ways" not in " ".join(answer(priced_of(sections(same)[0])[0]))


def test_a_price_without_steps_or_intervals_is_reported(swept, tmp_path):
    def change(row):
        row["price"]["tokens_per_s_interval"] = row["price"]["hit_rate_interval"] = None
        if row["policy"] == "lru":
            row["price"] |= {"tokens_per_s": None, "tokens": 0, "seconds": 0.0, "parts": dict.fromkeys(CAUSES, 0.0)}
            row["price"] |= {"busy": dict.fromkeys(row["price"]["busy"]), "tpot_p50_s": None}

    page = page_of(slotwise.write_report([edited(swept, tmp_path / "S.parquet", change)], tmp_path / "out")[0].parent)
    assert not re.search(r"\b(nan|None|inf)\b", page.text)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("label", "MEASURED", "price.label is 'MEASURED', but must be SIMULATED or ESTIMATED"),
        ("machine", None, "price.machine is None, but must be str"),
        ("tokens_per_s", -1.0, "price.tokens_per_s is -1.0, but must be a number from 0"),
        ("tokens_per_s", float("nan"), "price.tokens_per_s is nan"),
        ("tpot_p95_s", 1e300, "price.tpot_p95_s is 1e+300"),
        ("late_hits", -2, "price.late_hits is -2, but must be 0 or more"),
        ("tokens_per_s_interval", [2.0, 1.0], "price.tokens_per_s_interval is [2.0, 1.0], but must be a lower and an"),
        ("gain_interval", [1.0], "price.gain_interval is [1.0]"),
        ("parts", None, "price.parts is None, but must hold figures"),
        ("parts", dict.fromkeys(CAUSES, 1.0), "price.seconds is 10.0, but its parts add up to 11.0; the file is dam"),
        ("busy", {"link": float("inf")}, "price.busy.link is inf"),
        ("ceiling", {"tokens_per_s": "fast"}, "price.ceiling.tokens_per_s is 'fast'"),
        ("break_even_precision", float("inf"), "price.break_even_precision is inf"),
    ],
)
def test_a_price_that_cannot_be_is_refused_by_name(name, value, told):
    check_price("R.parquet row 3", price())
    wrong = deepcopy(price()) | {name: value}
    with pytest.raises(BadResult) as refused:
        check_price("R.parquet row 3", wrong)
    assert str(refused.value).startswith(f"R.parquet row 3: {told}")
    assert "\n" not in str(refused.value)


def test_a_damaged_price_in_a_file_ends_the_command_with_one_line(swept, tmp_path):
    path = edited(swept, tmp_path / "S.parquet", lambda row: row["price"].update(seconds=1.0))
    said = command("report", path, "-o", tmp_path / "out", code=2).stderr
    assert said.startswith(f"slotwise: {path} row 0: price.seconds is 1.0, but its parts add up to")
    assert said.count("\n") == 1


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_of_a_priced_page_is_wider_than_the_screen(browse, report, tmp_path, width):  # noqa: F811
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(width=width, page=html.escape((report / "report.html").read_text())))
    text = browse(frame, "--dump-dom")
    found = re.search(r'data-width="(\d+)"', text)
    assert found
    assert int(found[1]) <= width
