"""A policy of one's own, in a file outside the package: named by its path, compiled like ours, never out of date."""

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import run, some
from conftest import slotwise as command
from numba.core.registry import CPUDispatcher
from trace_cases import tiny

import slotwise
from slotwise.policies.compiled import cache_folder, kernel

HEAD = '''
from dataclasses import dataclass
from typing import ClassVar
from slotwise.policies.policy import Policy

@dataclass(frozen=True)
class Mine(Policy):
    """Evicts the oldest touch (sign=1) or the newest (sign=-1)."""

    name: ClassVar[str] = "mine"
    source: ClassVar[str] = "a test"
'''
SIGN = (
    HEAD
    + """
    sign: int = 1

    @staticmethod
    def priority(p, key, at):
        return p.touch[key] * p.ints[0]
"""
)
OLDEST = HEAD + "    @staticmethod\n    def priority(p, key, at):\n        return +p.touch[key]\n"
NEWEST = OLDEST.replace("+p", "-p")


@pytest.fixture
def mine(tmp_path):
    """Writes the file, and says how its class is spelt."""

    def write(text: str, folder: Path = tmp_path) -> str:
        folder.mkdir(exist_ok=True)
        (folder / "mine.py").write_text(text)
        return f"{folder / 'mine.py'}:Mine"

    return write


def hits(policy) -> int:
    """Hits of A B C A B with two slots: oldest out 0, newest out 1 (the second A)."""
    return slotwise.replay(tiny(), policy, 2).counters["hits"]


def victim(policy) -> int:
    """Whom a live pool of two slots evicts after 0 and 1."""
    pool = slotwise.Pool(policy, n_layers=1, n_experts=4, slots=2)
    plans = [pool.step(0, np.array([expert], np.uint8)).evictions for expert in (0, 1, 2)]
    return plans[-1][0][1]


def test_it_works_in_replay_sweep_and_pool(mine, tmp_path):
    spelling = mine(SIGN)
    assert [hits(spelling), hits(f"{spelling}(sign=-1)"), hits("lru")] == [0, 1, 0]
    assert [victim(spelling), victim(f"{spelling}(sign=-1)")] == [0, 1]
    policies = [spelling, f"{spelling}(sign=-1)+guard(warm=3)"]
    out = slotwise.sweep([tiny()], policies, [2], out=tmp_path / "r.parquet", workers=1)
    rows = pq.read_table(out).to_pylist()
    assert {row["policy"]: row["hits"] for row in rows} == dict(zip(policies, [0, 1], strict=True))


def test_it_works_on_the_command_line_by_a_relative_path_too(mine, tmp_path):
    mine(SIGN, tmp_path / "my+own (1)")
    tiny().save(tmp_path / "t.parquet")
    done = command(
        "replay", "t.parquet", "--slots", "2", "--policy", "./my+own (1)/mine.py:Mine(sign=-1)+guard", cwd=tmp_path
    )
    assert done.stdout.startswith("./my+own (1)/mine.py:Mine(sign=-1)+guard on t: 2 slots of 4 experts")
    assert "1 of 5 demands" in done.stdout


def test_it_runs_compiled_in_a_module_of_its_own_as_ours_do(mine):
    spelling = mine(SIGN)
    hits(spelling)
    for policy in (spelling, "lru"):
        hits(policy)
        made = kernel(
            type(slotwise.parse_policy(policy).policy), full=False, look=False, record=False, tell=False, plain=False
        )
        assert made.__file__ is not None
        assert Path(made.__file__).parent == cache_folder()
        assert isinstance(made.replay_block, CPUDispatcher)
        assert made.replay_block.nopython_signatures


@pytest.mark.once
def test_an_edit_shows_at_once_even_within_a_second_and_at_the_same_length(mine, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert hits(mine(OLDEST)) == 0
    was = (tmp_path / "mine.py").stat()
    spelling = mine(NEWEST)
    os.utime(tmp_path / "mine.py", ns=(was.st_atime_ns, was.st_mtime_ns))
    assert hits(spelling) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"], "nothing is left beside the file"


FRESH = """
import numpy as np, sys, slotwise
pool = slotwise.Pool(sys.argv[1], n_layers=1, n_experts=4, slots=2)
print([pool.step(0, np.array([e], np.uint8)).evictions for e in (0, 1, 2)][-1][0][1])
"""


@pytest.mark.once
def test_a_policy_read_before_an_edit_stays_what_it_was_and_spoils_nothing(mine, tmp_path, monkeypatch):
    """Compiled after the edit, what was read before it must not be found under the new text's name later."""
    monkeypatch.setenv("SLOTWISE_CACHE_DIR", str(tmp_path / "cache"))
    before = slotwise.parse_policy(mine(OLDEST))
    spelling = mine(NEWEST)
    assert victim(before) == 0
    assert run(sys.executable, "-c", FRESH, spelling).stdout == "1\n"


@pytest.mark.once
def test_a_file_that_moves_goes_on_working_with_what_was_compiled_before(mine, tmp_path, monkeypatch):
    monkeypatch.setenv("SLOTWISE_CACHE_DIR", str(tmp_path / "cache"))
    spelling = mine(NEWEST, tmp_path / "here")
    assert run(sys.executable, "-c", FRESH, spelling).stdout == "1\n"
    shutil.move(tmp_path / "here", tmp_path / "there")
    assert run(sys.executable, "-c", FRESH, spelling.replace("here", "there")).stdout == "1\n"


@pytest.mark.once
def test_parameters_are_read_by_the_position_of_their_field(mine):
    """Priority: sign * touch, with sign = ints[2] * floats[1]; the word of a text is nobody's number."""
    text = HEAD + (
        "    label: str = 'x'\n    scale: float = 0.5\n    sign: int = 2\n\n    @staticmethod\n"
        "    def priority(p, key, at):\n        return np.int64(p.touch[key] * p.ints[2] * p.floats[1])\n"
    )
    spelling = mine("import numpy as np\n" + text)
    assert [hits(spelling), hits(f"{spelling}(sign=-4, scale=0.25)"), hits(f"{spelling}(scale=-1, label=y)")] == [
        0,
        1,
        1,
    ]


@pytest.mark.once
@pytest.mark.parametrize("body", some(["Mine(Policy)", "Mine(Lfu)"], 1))
def test_what_a_policy_inherits_or_calls_counts_as_its_own(mine, body):
    """Touches are numbered where they are read, wherever that is written: in a base class, or in a helper beside it."""
    head = "from numba import njit\nfrom slotwise.policies.policy import Policy\n"
    head += "from slotwise.policies.policy_lfu import Lfu\n"
    if body == "Mine(Lfu)":
        spelling, like = mine(head + "class Mine(Lfu):\n    name = 'mine'\n"), "lfu"
    else:
        helper = "@njit\ndef age(p, key):\n    return p.touch[key]\n"
        priority = "    @staticmethod\n    def priority(p, key, at):\n        return age(p, key)\n"
        spelling, like = mine(f"{head}{helper}class Mine(Policy):\n    name = 'mine'\n{priority}"), "lru"
    trace = slotwise.Trace.synthesise(n_tokens=200, n_layers=2, n_experts=16, top_k=2)
    assert slotwise.replay(trace, spelling, 4).counters == slotwise.replay(trace, like, 4).counters


def test_a_file_with_one_policy_needs_no_class_name(mine):
    spelling = mine(SIGN).removesuffix(":Mine")
    assert str(slotwise.parse_policy(f"{spelling}(sign=-1)+guard")) == f"{spelling}:Mine(sign=-1)+guard"
    assert [hits(spelling), hits(f"{spelling}(sign=-1)")] == [0, 1]
    mine("from slotwise.policies.policy_lfu import Lfu\n" + OLDEST)
    assert str(slotwise.parse_policy(spelling)) == f"{spelling}:Mine", "what it imports is not its own"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (OLDEST + OLDEST.replace("Mine", "Other"), "holds Mine, Other; write which, as in"),
        ("x = 1\n", "holds no Policy class"),
        (None, "there is no file"),
    ],
)
def test_without_a_class_name_a_file_that_leaves_a_choice_is_refused(mine, tmp_path, text, words):
    spelling = mine(text).removesuffix(":Mine") if text else str(tmp_path / "none.py")
    with pytest.raises(slotwise.BadPolicy, match=words):
        slotwise.parse_policy(spelling)


BAD = {  # what is in the file -> what is said
    "def priority(p, key, at)": ("does not load: SyntaxError", HEAD + "    def priority(p, key, at)\n"),
    "import nothing_of_this_name": ("does not load: ModuleNotFoundError", "import nothing_of_this_name\n"),
    "1 / 0": ("does not load: ZeroDivisionError", "1 / 0\n"),
    "{}['x']": ("does not load: KeyError", "{}['x']\n"),
    "no class": ("has no Policy class 'Mine'; it has: none", "x = 1\n"),
    "another class": ("has no Policy class 'Mine'; it has: Other", OLDEST.replace("Mine", "Other")),
    "not a policy": ("has no Policy class 'Mine'", "class Mine:\n    pass\n"),
    "null bytes": ("does not load: SyntaxError", "x = 1\0\n"),
    "no default": ("default", SIGN.replace("sign: int = 1", "sign: int")),
    "nine parameters": ("8", HEAD + "".join(f"    a{i}: int = {i}\n" for i in range(9))),
}


@pytest.mark.parametrize("what", BAD)
def test_a_file_that_is_no_policy_is_refused_in_one_line_that_names_it(mine, what):
    words, text = BAD[what]
    with pytest.raises(slotwise.BadPolicy) as raised:
        hits(mine(text))
    assert words in str(raised.value)
    assert "mine.py" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        (None, "Mine", "there is no file"),
        (HEAD + "    def\n", "Mine", "does not load: SyntaxError"),
        (OLDEST, "Mien", "has no Policy class 'Mien'; it has: Mine"),
        (OLDEST, "Mine+gard", "Did you mean './mine.py:Mine+guard'?"),
        (SIGN, "Mine(sgn=1)", "Did you mean './mine.py:Mine(sign=1)'?"),
    ],
)
def test_on_the_command_line_that_is_exit_code_2_and_one_line(mine, tmp_path, text, name, words):
    if text:
        mine(text)
    done = command("replay", "sample", "--slots", "8", "--policy", f"./mine.py:{name}", code=2, cwd=tmp_path)
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    assert words in done.stderr


@pytest.mark.parametrize("name", ["half_life", "warmup"])
@pytest.mark.parametrize("value", ["2.0", "-1", "'2'", "True"])
def test_a_field_that_the_pool_reads_must_count_steps(tmp_path, name, value):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom slotwise.policies.policy_lfu import Lfu\n"
        "@dataclass(frozen=True)\nclass Mine(Lfu):\n"
        f"    {name}: object = {value}\n    def check(self): pass\n"
    )
    with pytest.raises(slotwise.BadPolicy, match=f"{name}=.*: it is a whole number from 0"):
        slotwise.Pool(f"{tmp_path / 'mine.py'}:Mine", n_layers=1, n_experts=4, slots=2)


@pytest.mark.once
def test_a_parameter_may_be_a_fraction_whatever_whole_number_is_written(tmp_path):
    """Mine ranks by -weight * id: the highest id leaves first, or the lowest under a negative weight."""
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom slotwise.policies.policy import Policy\n"
        "@dataclass(frozen=True)\nclass Mine(Policy):\n    name = 'mine'\n    weight: float = 0.5\n"
        "    @staticmethod\n    def priority(p, key, at):\n        return -int(p.floats[0] * 10) * key\n"
    )
    for spelt, gone in (("", 1), ("(weight=2)", 1), ("(weight=-1.5)", 0)):
        pool = slotwise.Pool(f"{tmp_path / 'mine.py'}:Mine{spelt}", n_layers=1, n_experts=4, slots=2)
        pool.step(0, [0, 1])
        assert pool.step(0, [2]).decisions()[0][2] == gone
