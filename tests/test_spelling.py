"""How policies are spelt: what is read, what is written back, and what a misspelling is answered with."""

import pytest
from conftest import slotwise as command

import slotwise
from slotwise import BadPolicy, parse_policy


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("lru", "lru"),
        (" lru ", "lru"),
        ("lru()", "lru"),
        ("lfru(half_life=16)+guard(warm=2)", "lfru(half_life=16)+guard"),
        ("lfru( half_life = 16 ,clock=access ) + guard", "lfru(half_life=16, clock=access)+guard"),
        ("lfru(clock=access,half_life=16)", "lfru(half_life=16, clock=access)"),
        ("lru+gate(window=16,admit=2)+guard(ratio=1)", "lru+guard(ratio=1.0)+gate(admit=2)"),
        ("lru+guard(ratio=0.5, counts=0, warm=0)", "lru+guard(warm=0, ratio=0.5, counts=0)"),
        ("random(seed=-1)", "random(seed=-1)"),
        ("static(warmup=3)", "static(warmup=3)"),
        ("static(profile=folder/my profile.json)", "static(profile=folder/my profile.json)"),
        ("static(profile='folder/p.json')", "static(profile=folder/p.json)"),
        ("lru+pin(n=2, profile=a+b (1).json)", "lru+pin(profile=a+b (1).json, n=2)"),
        ("opt", "opt"),
    ],
)
def test_a_spelling_is_read_and_written_in_one_canonical_form(text, canonical):
    assert str(parse_policy(text)) == canonical
    assert str(parse_policy(canonical)) == canonical
    assert parse_policy(text) == parse_policy(canonical)


@pytest.mark.parametrize("row", [row for row in slotwise.list_policies() if row["name"] not in ("static", "+pin")],
                         ids=lambda row: row["name"])  # fmt: skip
def test_every_parameter_spelt_with_its_default_is_the_bare_name(row):
    inside = ", ".join(f"{name}={value}" for name, value in row["parameters"].items())
    bare = row["name"].replace("+", "lru+")
    assert str(parse_policy(f"{bare}({inside})")) == bare


@pytest.mark.parametrize("path", ["007", "1e5", "true", "a,b.json", "k=v.json", "p(1.json", "it's.json", "a+guard"])
@pytest.mark.parametrize("spelling", ["static(profile={})", "lru+pin(profile={}, n=2)+guard"])
def test_a_quoted_path_is_taken_as_it_stands_and_written_so_that_it_reads_back(path, spelling):
    spec = parse_policy(spelling.format(f'"{path}"'))
    assert path in [getattr(part, "profile", None) for part in (spec.policy, spec.pin)]
    assert parse_policy(str(spec)) == spec


def test_a_spec_is_a_spelling_that_has_been_read():
    spec = parse_policy("lfru+guard")
    assert parse_policy(spec) is spec
    assert (spec.policy.name, vars(spec.policy), spec.gate) == ("lfru", {"half_life": 0, "clock": "step"}, None)
    assert spec.guard is not None
    assert spec.guard.warm == 2


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("lruu", "lru"),
        ("lfr", "lfru"),
        ("statics(warmup=2)", "static(warmup=2)"),
        ("LRU", "lru"),
        ("lfru+gard", "lfru+guard"),
        ("lfru(half_life=16)+gaurd(warm=2)", "lfru(half_life=16)+guard(warm=2)"),
        ("lru+gat(admit=2)", "lru+gate(admit=2)"),
        ("lfru(halflife=3)", "lfru(half_life=3)"),
        ("lfru(clok=access)", "lfru(clock=access)"),
        ("lru+guard(rato=0.5)", "guard(ratio=0.5)"),
        ("lru+gate(windw=4)", "gate(window=4)"),
    ],
)
def test_a_misspelling_is_answered_with_the_nearest_right_one(text, near):
    with pytest.raises(BadPolicy) as raised:
        parse_policy(text)
    assert f"Did you mean '{near}'?" in str(raised.value)
    assert "known: " in str(raised.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("zzz", "no policy named 'zzz' in 'zzz'; known: belady, fifo, lfru, lfu, lru, opt, random, static"),
        ("lru+zzz", "no addition named 'zzz' in 'lru+zzz'; known: guard, gate, pin"),
        ("lru(x=1)", "no parameter of lru named 'x' in 'lru(x=1)'; known: none"),
        ("lru+guard(x=1)", "no parameter of guard named 'x' in 'guard(x=1)'; known: warm, ratio, counts"),
        ("", "cannot read ''"),
        ("+guard", "cannot read ''"),
        ("lru(", "unbalanced parentheses in 'lru('"),
        ("lru)", "unbalanced parentheses in 'lru)'"),
        ("lfru(half_life=1))+guard", "unbalanced parentheses"),
        ("lfru(half_life)", "cannot read 'half_life' in 'lfru(half_life)'; write parameter=value"),
        ("lfru(16)", "cannot read '16' in 'lfru(16)'; write parameter=value"),
        ("lfru(half_life=1, half_life=2)", "gives half_life twice"),
        ("lru+guard+guard", "'lru+guard+guard' says +guard twice"),
        ("lfru(half_life=x)", "lfru(half_life=x): half_life is"),
        ("lfru(half_life=1.5)", "lfru(half_life=1.5): half_life is"),
        ("lfru(half_life=true)", "lfru(half_life=true): half_life is"),
        ("lfru(half_life=-1)", "half_life is a whole number of at least 0"),
        ("lfru(clock=acces)", "the clock is 'step' or 'access'"),
        ("lru+guard(warm=-1)", "warm is a number from 0"),
        ("lru+guard(ratio=nan)", "guard(ratio=nan): ratio is a number"),
        ("lru+gate(admit=-1)", "window is at least 0, admit at least 1"),
        ("static", "static needs either a profile or a warm-up"),
        ("static(warmup=2, profile=x)", "static needs either a profile or a warm-up"),
        ("lru+pin", "pin needs a profile and how many"),
        ("lru+pin(profile=x)", "pin needs a profile and how many"),
    ],
)
def test_what_cannot_be_is_refused_by_name_value_and_rule(text, words):
    with pytest.raises(BadPolicy) as raised:
        parse_policy(text)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "text", ["lru+gate(admit={})", "lfru(half_life={})", "static(warmup={})", "lru+guard(warm={})"]
)
def test_a_number_that_no_counter_can_hold_is_refused(text):
    """2**63 does not fit 64 bits with a sign."""
    with pytest.raises(BadPolicy, match="9223372036854775808"):
        slotwise.Pool(text.format(2**63), n_layers=1, n_experts=4, slots=2).counters  # noqa: B018


@pytest.mark.parametrize("words", [["replay", "sample"], ["sweep", "sample", "-o", "r.parquet", "--slots", "8"]])
def test_every_command_that_takes_a_policy_answers_a_misspelling_with_exit_code_2_and_one_line(words, tmp_path):
    done = command(*words, "--policy", "lfru+gard", code=2, cwd=tmp_path)
    assert done.stdout == ""
    assert done.stderr == (
        "slotwise: no addition named 'gard' in 'lfru+gard'; known: guard, gate, pin. Did you mean 'lfru+guard'?\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lru+guard(ratio=inf)", "guard(ratio=inf): ratio is a number from 0 to 1000000"),
        ("lru+guard(ratio=nan)", "guard(ratio=nan): ratio is a number from 0 to 1000000"),
        ("lru+guard(ratio=-0.5)", "guard(ratio=-0.5): ratio is a number from 0"),
        (f"lru+guard(ratio=1{'0' * 400})", "guard(ratio=inf): ratio is a number"),
        ("lru+guard(warm=-1)", "guard(warm=-1): warm is a number from 0"),
        ("lru+guard(counts=-1)", "guard(counts=-1): counts is a number from 0"),
        (f"lru+guard(counts=1{'0' * 30})", "a parameter is below"),
        (f"lfu(half_life=1{'0' * 5000})", "half_life is of type int"),
        (3, "a policy is text, such as 'lfru(half_life=16)+guard', not int"),
        (None, "not NoneType"),
    ],
)
def test_a_parameter_that_cannot_be_is_refused_by_its_rule(text, words):
    with pytest.raises(slotwise.BadPolicy) as refused:
        slotwise.parse_policy(text)
    assert words in str(refused.value)
