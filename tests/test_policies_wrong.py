"""What a policy of one's own gets wrong: one line that says what and where, and never a plausible result."""

import pytest
from conftest import some
from test_policies_by_path import OLDEST, hits, victim

import slotwise

pytestmark = pytest.mark.once

FIELD = OLDEST.replace("    @static", "    n: int = 3\n    half: float = 0.5\n    @static", 1)
WRONG = {  # what the priority says -> what is said about it; its first line is line 14
    "return 1.5 * p.touch[key]": r"priority, line 14, returns a fraction \(float64\), but must return a whole number",
    "return p.touch[key] / 2": r"returns a fraction",
    "return 'x'": r"priority, line 14, returns text",
    "return None": r"priority, line 14, returns nothing",
    "x = p.touch[key]": r"line 13: priority may end without `return`",
    "if p.heat[key] > 1:\n            return 1": r"line 13: priority may end without `return`",
    "return p.tuch[key]": r"line 14: p.tuch is not there; p has touch, demanded, .*floats. Did you mean p.touch\?",
    "return at.weather": r"line 14: at.weather is not there; at has now, tick, clock, layer, base, key_offset",
    "return unknown(key)": r"NameError: name 'unknown' is not defined",
    "import os; return os.getpid()": r"unsupported opcode.*line 14",
    "return p.next[key]": r"line 14: p.next is kept only for a policy with `needs_future: ClassVar\[bool\] = True`",
}
FAULTS = {  # what compiles and fails while it ranks -> what is said
    "[1][key]": r"failed while it ranked an expert: IndexError",
    "p.touch[key] // (key - key)": r"ranked an expert: ZeroDivisionError: integer division by zero",
    "p.touch[key] % (key - key)": r"ZeroDivisionError",
    "p.touch[key + 100000]": r"ranked an expert: IndexError: index is out of bounds",
    "p.touch[key - 10**9]": r"ranked an expert: IndexError: index is out of bounds",
}


@pytest.fixture
def mine(tmp_path):
    """Writes the file, and says how its class is spelt."""

    def write(text: str) -> str:
        (tmp_path / "mine.py").write_text(text)
        return f"{tmp_path / 'mine.py'}:Mine"

    return write


@pytest.mark.parametrize("body", WRONG)
def test_what_a_priority_gets_wrong_is_one_line_with_what_and_where(mine, body):
    text = OLDEST.replace("return +p.touch[key]", body)
    with pytest.raises(slotwise.BadPolicy, match=WRONG[body]) as raised:
        hits(mine(text))
    assert "mine.py:Mine" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("body", some(list(WRONG)[::5], 1))
def test_a_live_pool_says_so_in_the_same_words(mine, body):
    with pytest.raises(slotwise.BadPolicy, match=WRONG[body]):
        victim(mine(OLDEST.replace("return +p.touch[key]", body)))


def test_what_fails_while_it_ranks_is_told_too_by_a_replay_and_by_a_live_pool(mine):
    """One policy of many faults, so that it is compiled once: its parameter says which comes up."""
    faults = "".join(f"        if p.ints[0] == {at}:\n            return {one}\n" for at, one in enumerate(FAULTS))
    text = FIELD.replace("        return +p.touch", f"{faults}        return +p.touch")
    for at, words in enumerate(FAULTS.values()):
        for use in (hits, victim):
            with pytest.raises(slotwise.BadPolicy, match=words) as raised:
                use(f"{mine(text)}(n={at})")
            assert "mine.py:Mine" in str(raised.value)
            assert "\n" not in str(raised.value)
    assert (hits(f"{mine(text)}(n=9)"), victim(f"{mine(text)}(n=9)")) == (0, 0)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("p.ints[2]", r"line 16: p.ints\[2\] is no parameter; the class has 0 n, 1 half"),
        ("p.ints[1]", r"p.ints\[1\] is the parameter half=0.5, of type float; read p.floats\[1\]"),
        ("int(p.floats[0])", r"p.floats\[0\] is the parameter n=3, of type int; read p.ints\[0\]"),
    ],
)
def test_a_field_that_there_is_not_is_refused_and_not_read_from_elsewhere(mine, body, words):
    with pytest.raises(slotwise.BadPolicy, match=words):
        hits(mine(FIELD.replace("+p.touch[key]", body)))
    assert hits(mine(FIELD.replace("+p.touch[key]", "p.touch[key] * p.ints[0] * int(2 * p.floats[1])"))) == 0


def test_what_a_helper_reads_counts_and_what_a_class_beside_it_reads_does_not(mine):
    beside = OLDEST.replace("class Mine", "class Other").replace("+p.touch[key]", "-p.next[key]")
    assert hits(mine(beside + OLDEST)) == 0
    helper = OLDEST.replace("+p.touch[key]", "age(p, key)") + "def age(p, key):\n    return p.next[key]\n"
    with pytest.raises(slotwise.BadPolicy, match=r"line 16: p.next is kept only"):
        hits(mine(helper))
