"""The page of an advice holds every figure of the answer, needs nothing else, and takes no other file's place."""

import json
import re
from pathlib import Path

import pytest

import slotwise
from slotwise.engine_flags import FLAGS, flags_for
from slotwise.reports.advice import html, write_page

pytestmark = pytest.mark.once

ROW = 9_437_184


@pytest.fixture(scope="module")
def advice():
    machine = slotwise.estimate_machine(["rtx-3060-x16", "ddr4"])
    found = slotwise.advise("sample", machine, "8GiB", row_bytes=ROW, steps=200, policies=["lru"], widths=[0, 2])
    return json.loads(json.dumps(found))  # as `--json` prints it


def test_the_page_says_what_the_answer_says(advice):
    page = html(advice)
    text = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    for sentence in advice["answer"]:
        assert sentence.replace("'", "&#39;") in text
    for one in [*advice["candidates"], *advice["curve"], *advice["against"].values()]:
        low, high = one["tokens_per_s_interval"]
        assert f"{one['tokens_per_s']:,.2f} ({low:,.2f} to {high:,.2f})" in text
    for flag in advice["flags"]:
        assert flag["flag"] in text
        assert flag["url"] in text
    assert "not run here" in text
    assert advice["trace_sha256"] in text
    assert page.count("<svg") == 2
    assert len(advice["candidates"]) == 8
    assert "Shown are" not in text
    many = " ".join(html(advice | {"candidates": 5 * advice["candidates"]}).split())
    assert "Shown are 10 of 40 candidates; the table has all." in many
    assert "the first 10 of 40" in many
    assert not re.search(r"<script|<link|src=|@import|url\(http", page)


def test_names_that_others_wrote_stay_text(advice):
    evil = "<script>alert(1)</script>"
    page = html(advice | {"trace": evil, "machine": evil, "model": evil, "warnings": [evil]})
    assert evil not in page
    assert page.count("&lt;script&gt;") >= 4


def test_an_answer_with_gaps_is_a_page_too(advice):
    bare = [one | {"tokens_per_s_interval": None, "per_gib_interval": None} for one in advice["curve"]]
    page = html(advice | {"by_layer": None, "prefetch": None, "warm_up": None, "curve": bare, "against": {}})
    assert "Slots by layer" not in page


def test_a_page_is_written_whole_and_takes_no_place_unasked(advice, tmp_path):
    path = write_page(advice, tmp_path / "a.html")
    assert path.read_text() == html(advice)
    assert [one.name for one in tmp_path.iterdir()] == ["a.html"]
    with pytest.raises(slotwise.BadResult, match="is there already; name another file, or replace it with --force"):
        write_page(advice, path)
    write_page(advice | {"trace": "another"}, path, force=True)
    assert "another" in path.read_text()
    with pytest.raises(slotwise.BadResult, match="is a folder"):
        write_page(advice, tmp_path, force=True)
    with pytest.raises(slotwise.BadResult, match="there is no folder"):
        write_page(advice, tmp_path / "no" / "a.html")


def test_a_page_replaces_nothing_that_the_advice_is_made_from_and_is_named_as_one(tmp_path):
    machine = slotwise.write_machine(slotwise.estimate_machine(["rtx-3060-x16", "ddr4"]), tmp_path / "machine.json")
    whole = machine.read_bytes()
    (tmp_path / "soft.html").symlink_to(machine)
    (tmp_path / "hard.html").hardlink_to(machine)
    for output in (machine, tmp_path / "soft.html", tmp_path / "hard.html"):
        with pytest.raises(slotwise.BadResult, match="would replace what the advice is made from; name another file"):
            slotwise.advise("sample", machine, "8GiB", row_bytes=ROW, output=output, force=True)
        assert output.read_bytes() == whole
    trace = tmp_path / "trace.html"
    slotwise.open_trace("sample").save(trace)
    with pytest.raises(slotwise.BadResult, match="would replace what"):
        slotwise.advise(trace, machine, "8GiB", row_bytes=ROW, output=trace, force=True)
    for name in ("a.parquet", "a.json", "a"):
        with pytest.raises(slotwise.BadResult, match=r"a page is an HTML file, not .*; name it a\.html"):
            slotwise.advise("sample", machine, "8GiB", row_bytes=ROW, output=tmp_path / name)
    assert not (tmp_path / "a").exists()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a folder that takes no files, whoever asks")
def test_a_place_that_takes_no_file_is_named_before_the_work():
    with pytest.raises(slotwise.BadResult, match=r"^/proc/a\.html: no file can be written there"):
        slotwise.advise("no such trace", "no machine", "8GiB", output="/proc/a.html")


def test_flags_are_filled_in_and_each_has_its_source():
    shown = {one["flag"] for one in flags_for(slots=37, pool_bytes=5 << 30, width=4, overlap="on")}
    assert {"--moe-cache-slots 37", "--moe-expert-cache-size 37", "--moe-lookahead 4", "--sched-async-cpu",
            "--moe-cache-mib 5120", "--kt-num-gpu-experts 37"} <= shown  # fmt: skip
    assert "--no-sched-async-cpu" not in shown
    serial = {one["flag"] for one in flags_for(slots=1, pool_bytes=1 << 20, width=0, overlap="off")}
    assert "--no-sched-async-cpu" in serial
    assert not any(flag.startswith(("--moe-lookahead", "--sched")) for flag in serial)
    for flag in FLAGS:
        assert re.match(r"https://github\.com/[\w./-]+$", flag.url)
        assert flag.source
        assert flag.meaning
