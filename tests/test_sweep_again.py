"""What a sweep runs again: whatever the answer hangs on has changed, be it of the trace or of the policy's files."""

import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import run

import slotwise

pytestmark = pytest.mark.once

IDS = np.random.default_rng(1).permuted(np.tile(np.arange(8), (60, 2, 1)), axis=2)[:, :, :2]


def saved(path, **columns):
    slotwise.Trace.from_arrays(IDS, n_experts=8, **columns).save(path)
    return path


def swept(traces, out, policy="lru", slots=4, **how):
    """The rows of the file after a sweep of one policy at one size."""
    slotwise.sweep(traces, policy, [slots], out=out, **how)
    return pq.read_table(out).to_pylist()


@pytest.mark.parametrize(
    ("first", "second", "how"),
    [
        ({"predicted": IDS[::-1]}, {"predicted": IDS}, {"widths": [1]}),
        ({}, {"step": np.arange(60) // 4}, {"window": 10}),
        ({}, {"phase": np.zeros(60, int)}, {}),
        ({}, {"request": np.arange(60) // 6}, {"reset": "request"}),
        ({"row_bytes": (5, 5)}, {"row_bytes": (9, 9)}, {}),
    ],
    ids=["predictions", "steps", "phases", "requests", "row sizes"],
)
def test_a_trace_that_changed_but_for_its_ids_is_replayed_anew(tmp_path, first, second, how):
    path, out = tmp_path / "t.parquet", tmp_path / "r.parquet"
    swept(saved(path, **first), out, **how)
    before, after = swept(saved(path, **second), out, **how)
    assert before["trace_sha256"] == after["trace_sha256"]
    options = {name: value for name, value in how.items() if name != "widths"}
    fresh = slotwise.replay(path, "lru", 4, width=after["width"], **options).to_row()
    assert (after["hits"], after["by_phase"], after["by_request"], after["bytes_loaded"]) == (
        fresh["hits"], fresh["by_phase"], fresh["by_request"], fresh["bytes_loaded"],
    )  # fmt: skip
    assert len(swept(path, out, **how)) == 2


def test_two_traces_of_one_name_that_differ_in_their_predictions_alone_are_two_rows(tmp_path):
    for folder, predicted in (("a", IDS), ("b", IDS[::-1])):
        (tmp_path / folder).mkdir()
        saved(tmp_path / folder / "t.parquet", predicted=predicted)
    traces = [tmp_path / folder / "t.parquet" for folder in "ab"]
    found = swept(traces, tmp_path / "r.parquet", widths=[1])
    assert [row["hits"] for row in found] == [slotwise.replay(t, "lru", 4, width=1).counters["hits"] for t in traces]
    slotwise.write_report([tmp_path / "r.parquet"], tmp_path / "report")


POLICY = """from dataclasses import dataclass
from slotwise.policies.policy import Policy
{more}
@dataclass(frozen=True)
class Mine(Policy):
    @staticmethod
    def priority(p, key, at):
        return {sign} * p.touch[key]
"""


def test_a_policy_edited_while_it_runs_is_recorded_as_it_was(tmp_path):
    """The file changes when the first of two configurations is done; the second is of the old text, too."""
    mine, out = tmp_path / "mine.py", tmp_path / "r.parquet"
    mine.write_text(POLICY.format(sign=1, more=""))
    old = {slots: slotwise.replay(saved(tmp_path / "t.parquet"), str(mine), slots).to_row() for slots in (3, 4)}

    def edit(*_):
        mine.write_text(POLICY.format(sign=-1, more=""))

    slotwise.sweep(tmp_path / "t.parquet", str(mine), [3, 4], out=out, workers=1, progress=edit)
    for row in pq.read_table(out).to_pylist():
        assert [row[name] for name in ("hits", "files_sha256")] == [
            old[row["slots"]][name] for name in ("hits", "files_sha256")
        ]
    new = slotwise.replay(tmp_path / "t.parquet", str(mine), 4).to_row()
    assert new["hits"] != old[4]["hits"]
    assert [row["hits"] for row in swept(tmp_path / "t.parquet", out, str(mine))][-1] == new["hits"]


def test_a_profile_edited_while_it_is_replayed_is_recorded_as_it_was(tmp_path):
    profile = tmp_path / "p.json"
    text = '{"format": "slotwise.profile", "version": 1, "traces": [], "counts": [%s, %s]}'
    first, second = (text % (row, row) for row in ("[9,8,0,0,0,0,0,0]", "[0,0,0,0,0,0,8,9]"))
    profile.write_text(first)
    trace, spelling = slotwise.Trace.from_arrays(IDS, n_experts=8), f"static(profile={profile})"
    old = slotwise.replay(trace, spelling, 2).to_row()
    slotwise.sweep(
        trace,
        ["lru", spelling],
        [2],
        out=tmp_path / "r.parquet",
        workers=1,
        progress=lambda *_: profile.write_text(second),
    )
    row = pq.read_table(tmp_path / "r.parquet").to_pylist()[1]
    assert (row["hits"], row["files_sha256"]) == (old["hits"], old["files_sha256"])


def test_the_results_of_a_file_give_way_once_it_was_edited_and_asked_for_again(tmp_path):
    """So a result file never holds two answers under one name, which a report would refuse. Other rows stay."""
    mine, out = tmp_path / "mine.py", tmp_path / "r.parquet"
    saved(tmp_path / "t.parquet")
    for sign in (1, -1, 1):
        mine.write_text(POLICY.format(sign=sign, more=""))
        found = swept(tmp_path / "t.parquet", out, ["lru", str(mine)])
        assert [row["policy"] for row in found] == ["lru", f"{mine}:Mine"]
        assert found[1]["hits"] == slotwise.replay(tmp_path / "t.parquet", str(mine), 4).counters["hits"]
        slotwise.write_report([out], tmp_path / "report", force=True)


IMPORTS = """
import sys
sys.path.insert(0, sys.argv[1])
import slotwise
from slotwise.policies.compiled import kernel
spec = slotwise.parse_policy(sys.argv[1] + "/mine.py")
print(kernel(type(spec.policy)).__name__, spec.files_sha256)
if "hits" in sys.argv:
    print(slotwise.replay(sys.argv[1] + "/t.parquet", spec, 4).counters["hits"])
"""
STYLES = [
    ("import helper", "helper.SIGN"), ("import helper as h", "h.sign()"), ("from helper import sign", "sign()"),
    ("from helper import SIGNS", "SIGNS[0]"), ("import package.helper", "package.helper.SIGN"),
]  # fmt: skip


@pytest.fixture
def edited(tmp_path, monkeypatch):
    """Returns what fresh processes say of a policy, the first while its helpers hold 1, the second when it is -1."""
    monkeypatch.setenv("SLOTWISE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    saved(tmp_path / "t.parquet")
    (tmp_path / "package").mkdir()

    def say(more, sign, *words):
        (tmp_path / "mine.py").write_text(POLICY.format(sign=sign, more=more))
        said = []
        for value in (1, -1):
            for home in (tmp_path, tmp_path / "package"):
                (home / "helper.py").write_text(
                    f"import numba, numpy\nSIGN = {value}\nSIGNS = numpy.array([SIGN])\n"
                    "@numba.njit\ndef sign():\n    return SIGN\n"
                )
            said.append(run(sys.executable, "-c", IMPORTS, tmp_path, *words).stdout.split())
        return zip(*said, strict=True)

    return say


@pytest.mark.parametrize(("more", "sign"), STYLES)
def test_what_a_policy_imports_is_part_of_it(edited, more, sign):
    """Of the name that its compiled kernel has on disk, and of the hash by which results are compared."""
    assert all(before != after for before, after in edited(more, sign))


def test_an_edit_of_what_a_policy_imports_is_compiled(edited):
    """In all those ways at once, an odd number of factors: one that stayed 1 would leave the product what it was."""
    imports, signs = zip(*STYLES, strict=True)
    _, _, (before, after) = edited("\n".join(imports), " * ".join(signs), "hits")
    assert before != after


def test_a_result_that_is_a_link_is_written_where_it_leads(tmp_path):
    for folder in ("there", "here"):
        (tmp_path / folder).mkdir()
    there, here = tmp_path / "there" / "r.parquet", tmp_path / "here" / "link.parquet"
    here.symlink_to(there)
    saved(tmp_path / "t.parquet")
    assert len(swept(tmp_path / "t.parquet", here)) == 1
    assert len(swept(tmp_path / "t.parquet", here, slots=5)) == 2
    assert here.is_symlink()
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["r.parquet"]
    saved(here.with_name("trace.parquet").resolve())
    (tmp_path / "here" / "trace-link.parquet").symlink_to(tmp_path / "t.parquet")
    saved(tmp_path / "here" / "trace-link.parquet")
    assert (tmp_path / "here" / "trace-link.parquet").is_symlink()


@pytest.mark.parametrize(
    ("row_bytes", "how"),
    [((5, 5), {"slots": [4], "steps": 0}), ((5, 5), {"slots": [0]}),
     ((5, 7), {"vram": [0, 1, 100], "scope": "global"}), ((5, 7), {"vram": [0, 1, 100]})],
    ids=str,
)  # fmt: skip
def test_whatever_a_sweep_writes_can_be_reported(tmp_path, row_bytes, how):
    trace = slotwise.Trace.from_arrays(IDS, n_experts=8, row_bytes=row_bytes)
    slotwise.sweep(trace, "lru", out=tmp_path / "r.parquet", **how)
    assert slotwise.write_report([tmp_path / "r.parquet"], tmp_path / "report")
