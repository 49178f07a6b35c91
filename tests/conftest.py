"""What tests share: hypothesis profiles, and the captured traces that may lie beside the checkout."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background of a script: the commands under test
    signal.signal(signal.SIGINT, signal.default_int_handler)  # would inherit that, and not hear an interrupt

BRIEF = os.environ.get("SLOTWISE_TESTS") == "brief"  # .ci/run: what the first Python has shown at length

# Nothing fails by chance: no deadlines, no look at how long drawing takes, and unless one searches the same examples.
steady = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", steady, derandomize=True, max_examples=60, print_blob=True)
settings.register_profile("brief", steady, derandomize=True, max_examples=15, print_blob=True)
settings.register_profile("dev", steady, max_examples=200)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "brief" if BRIEF else "ci"))


def examples(n: int) -> settings:
    """As many examples as the profile makes of `n`: it is what `ci` runs, `brief` runs a quarter, `dev` three times."""
    return settings(max_examples=max(1, n * settings().max_examples // 60))


def some(values: Iterable, n: int = 3) -> list:
    """All values for a test, or the first `n` where the tests are to be brief."""
    return list(values)[: n if BRIEF else None]


KINDS = ("lru", "lfru", "belady")  # one policy of each kind: by order, by score, of the future


def few_policies(names: Iterable[str]) -> list[str]:
    """All policies for a test, or one of each kind where the tests are to be brief."""
    return [name for name in names if not BRIEF or name in KINDS]


def each_kernel(names: Iterable[str]) -> list:
    """Policies for a test: those of KINDS meet every kernel that they have, the others the one with everything."""
    return [pytest.param(name, marks=pytest.mark.kernels if name in KINDS else ()) for name in names]


def collect_no_garbage_while_kernels_compile():
    """That makes millions of objects of which few are garbage, and looking takes a seventh of the time."""
    from numba.core import event

    class Pause(event.Listener):
        depth = 0

        def on_start(self, event):
            self.depth += 1
            gc.disable()

        def on_end(self, event):
            self.depth -= 1
            if not self.depth:
                gc.enable()

    event.register("numba:compile", Pause())


if find_spec("numba"):  # .ci/aarch64 has none
    collect_no_garbage_while_kernels_compile()


def run(*words: str | Path, code: int | None = 0, **options) -> subprocess.CompletedProcess[str]:
    """Runs a command in a process of its own; fails with all it said unless it ends with `code` (None: any will do)."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **options)
    assert code in {None, done.returncode}, f"{words} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def python(script: str) -> str:
    """The output of a script in a fresh interpreter, where nothing has been imported yet."""
    return run(sys.executable, "-c", script).stdout


def slotwise(*words: str | Path, code: int = 0, **options) -> subprocess.CompletedProcess[str]:
    """Runs the command line as a user does, and holds it to its exit code."""
    return run(sys.executable, "-m", "slotwise", *words, code=code, **options)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of captured traces and models beside the checkout: most are not ours to ship, so it may be absent."""
    folder = ROOT.parent / "shared"
    if not (folder / "traces").is_dir():
        pytest.skip("no folder shared/traces beside the checkout: the captured traces are not part of the repository")
    return folder


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Compiling takes longest: one kernel a policy with everything in it, but where kernels are what is tested."""
    if item.get_closest_marker("kernels") and not BRIEF:
        os.environ.pop("SLOTWISE_KERNELS", None)
    else:
        os.environ["SLOTWISE_KERNELS"] = "full"


def pytest_collection_modifyitems(items):
    """Whatever asks for the captured traces is marked so: `-m 'not shared'` leaves it out."""
    for item in items:
        if "shared" in getattr(item, "fixturenames", ()):
            item.add_marker("shared")
        if BRIEF and item.get_closest_marker("once"):
            item.add_marker(pytest.mark.skip(reason="slow, and the same on every Python: SLOTWISE_TESTS=brief"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """A stretch of the tests for each process, then what is left: in step they would all compile the same kernels."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getvalue("dist") == "load" else None


def pytest_generate_tests(metafunc):
    """`variant` and `variants`: instruction sets of the cold chain that this processor has; unbuilt, `plain` alone."""
    if {"variant", "variants"} & set(metafunc.fixturenames):
        from cold_cases import built

        from slotwise.executor.cold import native

        found = native().variants() if built() else ["plain"]
        if "variant" in metafunc.fixturenames:
            metafunc.parametrize("variant", found)
        else:
            metafunc.parametrize("variants", [found], ids=["all"])
