"""`slotwise formats`: what each format is told to be, in lines that a terminal holds."""

import json
import re

import pytest
from conftest import slotwise


@pytest.mark.parametrize("name", ["slotwise", "npz", "policylang"])
def test_a_format_is_told_in_detail_by_name(name):
    said = slotwise("formats", name).stdout
    assert said.startswith(f"{name}: ")
    assert said.count("\n") > 5
    assert max(map(len, said.splitlines())) <= 90
    assert json.loads(slotwise("formats", name, "--json").stdout)["layout"] in said


def test_every_format_is_told_in_lines_that_a_terminal_holds():
    rows = json.loads(slotwise("formats", "--json").stdout)
    wide = {row["name"]: max(map(len, f"{row['name']}: {row['layout']}".splitlines())) for row in rows}
    assert {name: width for name, width in wide.items() if width > 90} == {}
    assert [row["name"] for row in rows if row["layout"].count("\n") <= 5] == []


def test_the_layout_of_npz_names_every_array_that_is_read_with_its_dimensions():
    from slotwise.traces.format_npz import MEMBERS

    said = dict(re.findall(r"^  (\w+) +((?:\[[\w, +]*\](?: or )?)+)", slotwise("formats", "npz").stdout, re.MULTILINE))
    assert set(said) == set(MEMBERS) - {"routed_experts"}
    for name, shape in said.items():
        assert MEMBERS[name][0] in (None, len(re.findall(r"[TLkPR]", shape))), name


def test_an_unknown_format_is_refused_with_those_that_there_are():
    told = slotwise("formats", "nzp", code=2).stderr
    assert re.search(r"no trace format named 'nzp'; known: slotwise, bmoe, .*, npz, .*\. Did you mean 'npz'\?", told)
