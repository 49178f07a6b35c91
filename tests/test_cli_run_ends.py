"""How `slotwise run` ends before its time: interrupted, terminated, killed, or by a bug. Nothing is left half there."""

import os
import pty
import re
import signal
import subprocess
import sys

import pytest
from conftest import run, some

CHILD = """
import os, signal, sys, threading
from slotwise.cli.main import main
from slotwise.executor.executor import Executor
how, at, *words = sys.argv[1:]
forward, calls = Executor.forward, [0]
def stopped(self, *values, **options):
    calls[0] += 1
    if calls[0] == int(at):
        if how == "bug":
            raise ZeroDivisionError("a bug")
        os.kill(os.getpid(), int(how))
    return forward(self, *values, **options)
Executor.forward = stopped
try:
    code = main(words)
finally:
    print("left", sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("slotwise")))
sys.exit(code)
"""
WORDS = (
    "run sample --shape tiny --headroom 0 --steps 30 --alias-layers 1 --slots 16 --width 4 --timeline t.json".split()
)


def stop(how, at, **options):
    return run(sys.executable, "-c", CHILD, how, at, *WORDS, **options)


@pytest.mark.parametrize("at", some([30, 1, 700], 1))
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_and_a_polite_kill_end_the_run_without_words_files_or_threads(tmp_path, number, code, at):
    done = stop(int(number), at, cwd=tmp_path, code=code)
    assert (done.stdout, done.stderr.strip()) == ("left []\n", "")
    assert list(tmp_path.iterdir()) == []


def test_a_bug_in_the_middle_shows_and_leaves_no_file_and_no_thread(tmp_path):
    done = stop("bug", 100, cwd=tmp_path, code=1)
    assert done.stdout == "left []\n"
    assert done.stderr.rstrip().endswith("ZeroDivisionError: a bug")
    assert list(tmp_path.iterdir()) == []


def test_a_kill_in_the_middle_leaves_no_file(tmp_path):
    stop(int(signal.SIGKILL), 100, cwd=tmp_path, code=-signal.SIGKILL)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_progress_bar_leaves_the_terminal_as_it_was(tmp_path):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", CHILD, str(int(signal.SIGINT)), "700", *WORDS]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=theirs, cwd=tmp_path, env=os.environ | {"TERM": "xterm"}
    ) as process:
        os.close(theirs)
        said = b""
        while True:
            try:
                more = os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
            if not more:
                break
            said += more
    os.close(ours)
    assert process.returncode == 130

    assert b"/" in said
    assert said.rfind(b"\x1b[?25h") > said.rfind(b"\x1b[?25l") >= 0
    rest = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", said[said.rfind(b"\x1b[2K") :])
    assert rest.strip() == b""
