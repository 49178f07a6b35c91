"""The command line as a whole: help, typos, and how every way to end becomes an exit code and one line."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from conftest import python, run, slotwise, some

COMMANDS = (
    "compare replay run calibrate validate advise machine sweep report capture trace policies formats predictors "
    "backends"
).split()

# The real entry, with commands added that end in ways which no command should.
ENDINGS = """
import sys, time, click
from slotwise.cli.main import group, main
import slotwise

@group.command()
def hang():
    print("ready", flush=True)
    time.sleep(60)

@group.command()
def full():
    with open("/dev/full", "w") as file:
        file.write("x")

@group.command()
def missing():
    open("nowhere.parquet")

@group.command()
def folder():
    open(".")

@group.command()
@click.argument("name")
def bad(name):
    raise getattr(slotwise, name)("line 3: expert 130,\\n but E=128")

@group.command()
def doubt():
    import warnings
    warnings.warn("layer 3\\n is all zero", slotwise.TraceWarning)
    print("done")

@group.command()
def bug():
    raise ValueError("a bug")

@group.command()
def failed():
    raise click.ClickException("it failed")

@group.command()
def flood():
    for _ in range(100_000):
        print("x" * 80)

sys.exit(main())
"""


def ending(*words, **options):
    return run(sys.executable, "-c", ENDINGS, *words, code=None, **options)


def test_help_lists_every_command_with_a_line_about_it():
    lines = slotwise("--help").stdout.split("Commands:\n")[1].splitlines()
    assert [line.split()[0] for line in lines[: len(COMMANDS)]] == COMMANDS
    assert all(len(line.split()) > 3 for line in lines[: len(COMMANDS)])


def test_help_imports_no_heavy_library():
    heavy = {"numpy", "numba", "pyarrow", "polars", "pandas", "matplotlib", "jinja2", "rich"}
    script = "import sys; from slotwise.cli.main import main; main(['--help']); print(*sys.modules)"
    loaded = python(script).splitlines()[-1].split()
    assert "click" in loaded
    assert heavy.isdisjoint(loaded)


WALK = """
import sys, click
from slotwise.cli.main import group

def walk(command, words):
    with command.make_context(words[-1], [], resilient_parsing=True) as ctx:
        text = " ".join(command.get_help(ctx).split())
        print(*words, "EXAMPLE" if " ".join(["slotwise", *words]) in text else "NONE")
        if isinstance(command, click.Group):
            for name in command.list_commands(ctx):
                walk(command.get_command(ctx, name), [*words, name])

walk(group.get_command(click.Context(group), sys.argv[1]), sys.argv[1:])
print("heavy:", *({"numpy", "numba", "pyarrow", "polars", "pandas", "matplotlib"} & set(sys.modules)))
"""


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_shows_an_example_and_imports_nothing_heavy(name):
    *shown, heavy = run(sys.executable, "-c", WALK, name).stdout.splitlines()
    assert shown[0].split()[0] == name
    assert [line for line in shown if not line.endswith(" EXAMPLE")] == []
    assert heavy.split() == ["heavy:"]


def test_no_words_at_all_show_the_help_on_stderr_as_wrong_usage():
    done = slotwise(code=2)
    assert done.stdout == ""
    assert "Commands:" in done.stderr


def test_the_version_is_that_of_the_package():
    assert slotwise("--version").stdout == python("import slotwise; print('slotwise', slotwise.__version__)")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["compar"], "Did you mean 'compare'?"),
        (["polices"], "Did you mean 'policies'?"),
        (["zzz"], "Commands: compare, replay"),
        (["--versoin"], "--version"),
        (["policies", "--jsno"], "--json"),
        (["policies", "surplus"], "surplus"),
    ],
)
def test_a_misspelt_word_is_one_line_with_the_way_out(words, hint):
    done = slotwise(*words, code=2)
    assert done.stdout == ""
    assert done.stderr.startswith("slotwise: ")
    assert done.stderr.count("\n") == 1
    assert hint in done.stderr
    assert "--help)" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["missing"], 2, "slotwise: nowhere.parquet: no such file or directory\n"),
        (["folder"], 2, "slotwise: .: is a directory\n"),
        (["bad", "BadTrace"], 2, "slotwise: line 3: expert 130, but E=128\n"),
        (["bad", "BadPolicy"], 2, "slotwise: line 3: expert 130, but E=128\n"),
        (["bad", "BadOption"], 2, "slotwise: line 3: expert 130, but E=128\n"),
        (["bad", "BadResult"], 2, "slotwise: line 3: expert 130, but E=128\n"),
        (["full"], 1, "slotwise: no space left on device\n"),
        (["failed"], 1, "slotwise: it failed\n"),
    ],
)
def test_every_refusal_is_one_line_and_bad_input_differs_from_failed_work(words, code, said, tmp_path):
    done = ending(*words, cwd=tmp_path)
    assert (done.returncode, done.stderr, done.stdout) == (code, said, "")


def test_a_warning_about_a_trace_is_one_line_beside_the_result():
    done = ending("doubt")
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert done.stderr == "slotwise: warning: layer 3 is all zero\n"


def test_a_bug_is_not_dressed_up_as_bad_input():
    done = ending("bug")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert done.stderr.endswith("ValueError: a bug\n")


def test_interrupting_ends_with_130_and_no_traceback():
    with subprocess.Popen([sys.executable, "-c", ENDINGS, "hang"], stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert (process.returncode, said.strip()) == (130, "")


def test_a_reader_that_goes_away_is_no_error_worth_a_word():
    with subprocess.Popen([sys.executable, "-c", ENDINGS, "flood"], stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "x" * 80 + "\n"
        process.stdout.close()
        assert process.stderr is not None
        assert (process.stderr.read(), process.wait(timeout=120)) == ("", 141)


def test_a_command_whose_reader_goes_away_ends_with_141_and_says_nothing():
    """`| head -1` of a table: the pipe is closed before the command writes."""
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "slotwise", "formats"]
    done = subprocess.run(words, stdout=writer, stderr=-1, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_warning_beside_a_progress_bar_is_a_line_of_its_own(tmp_path):
    np.savez(tmp_path / "t.npz", experts=np.tile(np.arange(8, dtype=np.uint8).reshape(2, 1, 4), (50, 1, 1)))
    terminal, there = pty.openpty()
    words = [sys.executable, "-m", "slotwise", "replay", "t.npz", "--slots", "2"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=there):
        os.close(there)
        said = b""
        with contextlib.suppress(OSError):  # how a terminal ends
            while part := os.read(terminal, 4096):
                said += part
    os.close(terminal)
    lines = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", said).replace(b"\r", b"\n").split(b"\n")
    warned = [line for line in lines if b"warning" in line]
    assert warned
    assert all(line.startswith(b"slotwise: warning: ") for line in warned)


@pytest.mark.parametrize(("listing", "known"), [("policies", "lfru"), ("formats", "npz"), ("predictors", "oracle")])
def test_listings_are_one_line_each_in_a_pipe_and_one_array_as_json(listing, known):
    rows = json.loads(slotwise(listing, "--json").stdout)
    header, *lines = slotwise(listing).stdout.splitlines()
    assert header.split()[0] == next(iter(rows[0])) == "name"
    assert [line.split()[0] for line in lines] == [row["name"] for row in rows]
    assert known in [row["name"] for row in rows]
    assert all(row["source"] for row in rows)


TERMINAL = """
import os, pty, sys, fcntl, struct, termios
child, at = pty.fork()
if child == 0:
    os.environ.pop("COLUMNS", None)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    os.execv(sys.executable, [sys.executable, "-m", "slotwise", *sys.argv[1:]])
fcntl.ioctl(at, termios.TIOCSWINSZ, struct.pack("HHHH", 25, 80, 0, 0))
said = b""
while True:
    try:
        said += (more := os.read(at, 65536))
    except OSError:  # the other end is closed
        break
os.waitpid(child, 0)
sys.stdout.buffer.write(said)
"""


@pytest.mark.parametrize(
    "words", some(["policies", "replay sample --steps 20 --width 4", "formats", "predictors", "trace info sample"], 2)
)
def test_on_a_terminal_of_80_columns_no_line_is_longer_and_no_word_is_broken(words, tmp_path):
    on_terminal = run(sys.executable, "-c", TERMINAL, *words.split(), cwd=tmp_path).stdout
    lines = [re.sub(r"\x1b\[[\d;?]*[A-Za-z]|.*\r(?!\n)", "", line).rstrip() for line in on_terminal.split("\n")]
    assert max(map(len, lines)) <= 80
    piped = set(slotwise(*words.split()).stdout.split())
    words_only_here = {word for line in lines for word in line.split() if word.isalpha()} - piped
    assert words_only_here <= {"knows", "the", "future", "Not", "in", "our"}


@pytest.mark.parametrize(
    "words", some(["policies", "replay sample --steps 20", "formats", "predictors", "trace info sample"], 2)
)
def test_in_a_pipe_nothing_is_cut_and_no_line_ends_in_blanks(words):
    said = slotwise(*words.split(), env=os.environ | {"COLUMNS": "20"}).stdout
    assert said == slotwise(*words.split()).stdout
    assert "…" not in said
    assert [line for line in said.splitlines() if line != line.rstrip()] == []


@pytest.mark.parametrize("name", ["slotwise", "bmoe", "esft", "npz"])
def test_a_format_is_told_in_detail_by_name(name):
    said = slotwise("formats", name).stdout
    assert said.startswith(f"{name}: ")
    assert said.count("\n") > 5
    assert max(map(len, said.splitlines())) <= 90
    assert json.loads(slotwise("formats", name, "--json").stdout)["layout"] in said


def test_the_layout_of_npz_names_every_array_that_is_read_with_its_dimensions():
    from slotwise.traces.format_npz import MEMBERS

    said = dict(re.findall(r"^  (\w+) +((?:\[[\w, +]*\](?: or )?)+)", slotwise("formats", "npz").stdout, re.MULTILINE))
    assert set(said) == set(MEMBERS) - {"routed_experts"}
    for name, shape in said.items():
        assert MEMBERS[name][0] in (None, len(re.findall(r"[TLkPR]", shape))), name


def test_an_unknown_format_is_refused_with_those_that_there_are():
    assert re.search("'nzp'; known: slotwise, .*npz.* mean 'npz'", slotwise("formats", "nzp", code=2).stderr)
