"""Names that stand for something else than a file: one line, exit code 2, nothing written, and no waiting for ever."""

import os
import shutil
import socket
from pathlib import Path

import pytest
from conftest import some
from trace_cases import tiny

import slotwise
from slotwise.cli.main import BAD_INPUT, main

LONG = "x" * 300


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a trace, a result, and a name for everything that can be in the way of a file."""
    monkeypatch.chdir(tmp_path)
    tiny().save("t.parquet")
    slotwise.sweep("t.parquet", "lru", 2, out="r.parquet")
    (tmp_path / "folder").mkdir()
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("mine")
    return tmp_path


def contents(folder):
    return {path: path.read_bytes() if path.is_file() else path.lstat().st_mode for path in folder.rglob("*")}


def refused(capsys, *words) -> str:
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (BAD_INPUT, "", 1), err
    return err


WRITE = {
    "synth": ["trace", "synth", "--tokens", "5", "--layers", "1", "--experts", "4", "--top-k", "1", "--force"],
    "import": ["trace", "import", "t.parquet", "--force"],
    "profile": ["trace", "profile", "t.parquet", "--force"],
    "sweep": ["sweep", "t.parquet", "--policy", "lru", "--slots", "2"],
    "compare": ["compare", "t.parquet", "--policy", "lru", "--slots", "2"],
    "report": ["report", "r.parquet"],
}
NO_FILE = ["", ".", "..", "folder", "pipe", "socket", "loop", "loop/x", "file/x", "a\0b", LONG, f"folder/{LONG}"]
FOLDERS = dict.fromkeys(("compare", "report"), ("", ".", "..", "folder"))  # what such a command writes is one


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (command, name)
        for command in WRITE
        for name in NO_FILE
        if command not in FOLDERS or name not in FOLDERS[command]
    ],
)
def test_what_cannot_become_a_file_is_refused_even_by_force_and_stays_as_it_is(place, capsys, command, name):
    before = contents(place)
    refused(capsys, *WRITE[command], "-o", name)
    assert contents(place) == before


@pytest.mark.parametrize("command", ["synth", "import", "profile", "sweep"])
def test_a_missing_folder_is_named_and_not_made(place, capsys, command):
    assert "none" in refused(capsys, *WRITE[command], "-o", "none/x")
    assert not (place / "none").exists()


FAR = {
    "calibrate": ["calibrate", "--quick"],
    "machine": ["machine", "--preset", "rtx-3060-x16", "--preset", "ddr4"],
    "export": ["trace", "export", "t.parquet", "--format", "csv"],
    "cut": ["trace", "cut", "t.parquet", "--steps", "0:1"],
    "validate": ["validate", "t.parquet", "--policy", "lru", "--slots", "2", "--machine", "m.json"],
    "run": ["run", "t.parquet", "--policy", "lru", "--slots", "2", "--shape", "tiny"],
}


@pytest.mark.parametrize("words", [*WRITE.values(), *FAR.values()], ids=[*WRITE, *FAR])
def test_a_place_that_takes_no_file_is_named_at_once_as_it_was_given(place, capsys, words):
    """As root nothing but the kernel refuses: /proc is a folder, and no file can be made in it."""
    slotwise.write_machine(slotwise.estimate_machine(["rtx-3060-x16", "ddr4"]), "m.json")
    said = refused(capsys, *words, "-o", "/proc/x.parquet")
    assert said.startswith("slotwise: /proc/x.parquet: no ")
    assert "can be written there" in said
    assert "name another folder" in said


def test_an_import_replaces_nothing_unless_asked_to(place, capsys):
    assert "file exists; choose another name" in refused(capsys, "trace", "import", "t.parquet", "-o", "file")
    assert (place / "file").read_text() == "mine"


@pytest.mark.parametrize("name", ["y" * 250, "é" * 125], ids=["ascii", "utf-8"])
def test_a_name_as_long_as_the_file_system_allows_is_written(place, name):
    """What is renamed at the end has a name of its own, which must not be the longer one."""
    tiny().save(place / name)
    assert slotwise.open_trace(place / name).n_tokens == 5


@pytest.mark.parametrize("name", ["folder", "pipe", "socket", "loop", "file/x", "/dev/null", "a\0b", LONG])
@pytest.mark.parametrize(
    "words",
    [["trace", "info", "{}"], ["replay", "{}", "--slots", "2"], ["trace", "import", "t.parquet", "{}", "-o", "new"],
     ["report", "{}", "-o", "new"], ["trace", "profile", "t.parquet", "{}", "-o", "new"],
     ["replay", "t.parquet", "--slots", "2", "--policy", "static(profile={})"],
     ["replay", "t.parquet", "--slots", "2", "--policy", "{}.py:Mine"]],
    ids=" ".join,
)  # fmt: skip
def test_what_is_no_file_is_not_waited_for(place, capsys, words, name):
    if words[-1].endswith(".py:Mine") and "/" not in name and name != LONG and "\0" not in name:
        (place / name).rename(name + ".py")
    before = contents(place)
    refused(capsys, *(word.format(name) for word in words))
    assert contents(place) == before


@pytest.mark.parametrize(
    "text", some([b"[" * 100_000, b"1" * 5000, b"\xff\xfe", b"{", b"\0", b"[]", b'{"files": [[]]}'], 2)
)
def test_notes_in_a_report_folder_that_are_not_ours_are_no_reason_to_fall_over(place, capsys, text):
    """A `compare.json` of another question needs --force; a strange `report.json` makes the folder a stranger's."""
    words = ["compare", "t.parquet", "--policy", "lru", "--slots", "2", "-o", "report"]
    assert main(words) == 0
    (place / "report" / "compare.json").write_bytes(text)
    capsys.readouterr()
    assert "--force" in refused(capsys, *words)
    assert main([*words, "--force"]) == 0
    (place / "report" / "report.json").write_bytes(text)
    capsys.readouterr()
    assert "that no report wrote" in refused(capsys, *words)


@pytest.mark.parametrize("note", ["compare.json", "report.json"])
def test_a_note_that_is_a_pipe_or_a_folder_is_not_waited_for(place, capsys, note):
    for make in (os.mkfifo, Path.mkdir):
        shutil.rmtree("report", ignore_errors=True)
        (place / "report").mkdir()
        make(place / "report" / note)
        refused(capsys, "compare", "t.parquet", "--policy", "lru", "--slots", "2", "-o", "report")


@pytest.mark.parametrize("option", ["--slots=x", "--vram=8", "--lag-prefetch=1" + "0" * 30, "--policy=lruu"])
def test_a_comparison_that_cannot_begin_leaves_nothing_behind(place, capsys, option):
    before = contents(place)
    refused(capsys, "compare", "t.parquet", option, "-o", "report")
    assert contents(place) == before
