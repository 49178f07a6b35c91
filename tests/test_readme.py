"""The README is run: its Python as it stands, its shell lines on the sample, its tables against what is installed."""

import re
import sys

import pytest
from conftest import ROOT, run
from test_cli_main import COMMANDS

import slotwise
from slotwise.policies.kernel_slots import Moment
from slotwise.policies.layout import FIELDS

pytestmark = pytest.mark.once

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(python|sh)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
FILES = {found[1]: block for kind, block in BLOCKS if kind == "python" and (found := re.match(r"# (\w+\.py)\n", block))}
SCRIPTS = [block for kind, block in BLOCKS if kind == "python" and block not in FILES.values()]
SHELL = [block for kind, block in BLOCKS if kind == "sh" and block.startswith("slotwise ")]
FIRST = [block for kind, block in BLOCKS if kind == "sh" and block.startswith("pip ")]


@pytest.fixture
def place(tmp_path):
    """An empty folder with the files that the README has its reader write, and `slotwise` as a command."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    command = tmp_path / "bin" / "slotwise"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m slotwise "$@"\n')
    command.chmod(0o755)
    return tmp_path


def shell(place, script: str):
    return run("sh", "-euc", f'PATH="$PWD/bin:$PATH"\n{script}', cwd=place)


def test_the_readme_has_what_these_tests_run():
    assert len(FILES) == 1
    assert len(SCRIPTS) >= 2
    assert len(SHELL) >= 2
    assert [block.count("\n") for block in FIRST] == [1, 1]


@pytest.mark.parametrize("script", SCRIPTS, ids=[f"block {number}" for number in range(len(SCRIPTS))])
def test_the_python_of_the_readme_runs_as_it_stands(script, place):
    run(sys.executable, "-c", script, cwd=place)


@pytest.mark.parametrize("script", SHELL, ids=[block.split("\n")[0][:40] for block in SHELL])
def test_the_shell_lines_of_the_readme_run_on_the_sample(script, place):
    assert shell(place, script).stdout


def test_the_main_job_of_the_readme_leaves_the_page_that_it_promises(place):
    installed, job = FIRST[0].strip().split(" && ")
    assert installed == "pip install -e ."
    shell(place, job)
    page = re.search(r"open `([\w/.]+)`", README)
    assert page
    assert "<html" in (place / page[1]).read_text()


def test_the_table_of_commands_is_the_list_of_commands():
    assert re.findall(r"^\| `slotwise (\w+)", README, re.MULTILINE) == COMMANDS


# What a pool keeps for itself of a key; the README says nothing of it, and it may change.
INSIDE = {"newer", "older", "busy", "mark", "land", "pinned", "initial", "gathered"}


def test_the_names_that_a_priority_may_use_are_those_that_a_pool_has():
    told = re.findall(r"`(p|at)\.(\w+)(\[key\]|\[i\])?`", README.partition("## Your own policy")[2])
    of_key = {name for name, _, length in FIELDS if length in "RK"}
    assert {name for owner, name, index in told if (owner, index) == ("p", "[key]")} == of_key - INSIDE
    assert {name for owner, name, index in told if (owner, index) == ("p", "[i]")} == {"ints", "floats"}
    assert {name for owner, name, _ in told if owner == "at"} == set(Moment._fields)


def test_a_priority_may_use_every_name_that_the_readme_gives(place):
    table = README.partition("## Your own policy")[2]
    names = re.findall(r"`(p\.\w+\[key\]|at\.\w+|p\.ints\[i\]|p\.floats\[i\])`", table)
    assert len(names) > 15
    names = [name.replace("ints[i]", "ints[0]").replace("floats[i]", "floats[1]") for name in dict.fromkeys(names)]
    used = " + ".join(f"np.int64({name} != 0)" for name in names)
    declared = 'name: ClassVar[str] = "twice"'
    more = "needs_future: ClassVar[bool] = True\n    n: int = 8\n    half: float = 0.5"
    text = (place / "mine.py").read_text().replace("return p.touch[key]", f"return {used} + p.touch[key]")
    assert declared in text
    (place / "mine.py").write_text("import numpy as np\n" + text.replace(declared, f"{declared}\n    {more}"))
    trace = slotwise.Trace.synthesise(n_tokens=20, n_layers=2, n_experts=8, top_k=2)
    assert slotwise.replay(trace, f"{place / 'mine.py'}+guard", 4).counters["hits"] > 0


def test_the_links_inside_the_repository_lead_somewhere():
    named = re.findall(r"`((?:[\w.-]+/)*[\w.-]+\.md)`|\]\(([^)#:]+)\)", README)
    assert named
    assert [name for pair in named if not (ROOT / (name := pair[0] or pair[1])).exists()] == []


def test_git_ignores_what_the_readme_has_its_reader_make():
    made = {word for _, block in BLOCKS for word in re.findall(r"-o (\S+)", block)}
    ignored = {line.strip("/\n") for line in (ROOT / ".gitignore").open()}
    assert {"report", "results", "results.parquet"} <= made <= ignored
