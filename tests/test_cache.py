"""Where compiled code is kept when nothing usual can be written: the work is done, and one line says what it costs."""

import os
import shutil
import sys

import pytest
from conftest import ROOT, run, some

pytestmark = pytest.mark.once

FOLDERS = ("traces", "policies", "replay", "reports", "executor", "cli")
WORK = """
import slotwise
trace = slotwise.Trace.synthesise(n_tokens=9, n_layers=2, n_experts=4, top_k=1)
hits = [slotwise.replay(trace, policy, 2, threads=1).counters["hits"] for policy in ("lru", "fifo")]
from slotwise.policies import bulk_lru
from slotwise.policies.compiled import cache_folder
from slotwise.traces import kernels
assert all("/site/" in module.__file__ for module in (slotwise, bulk_lru, kernels))
places = [f._cache.cache_path for f in (kernels.synthesise, bulk_lru.replay_lru)]
print(*places, *cache_folder().glob("*.py"), sep="\\n")
"""


@pytest.fixture
def sealed(tmp_path, monkeypatch):
    """A package and a home that nobody can write, not even root: files are where folders would have to be."""
    for folder in ("", *FOLDERS):
        source, target = ROOT / (folder or "slotwise"), tmp_path / "site" / "slotwise" / folder
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        (target / "__pycache__").touch()
    (tmp_path / "file").touch()
    (tmp_path / "tmp").mkdir()
    gone = ("XDG_CACHE_HOME", "SLOTWISE_CACHE_DIR", "NUMBA_CACHE_DIR", "SLOTWISE_KERNELS")
    monkeypatch.chdir(tmp_path)  # the sources in the working folder would be found first
    env = {name: value for name, value in os.environ.items() if name not in gone}
    return env | {
        "HOME": str(tmp_path / "file" / "home"), "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": str(tmp_path / "site"),
    }  # fmt: skip


def test_without_any_folder_to_keep_it_code_is_compiled_anew_with_a_warning_and_nothing_stays(sealed, tmp_path):
    done = run(sys.executable, "-c", WORK, env=sealed)
    assert len(kept := done.stdout.splitlines()) >= 3
    assert all(path.startswith(f"{tmp_path}/tmp/slotwise-") for path in kept)
    assert (done.stderr.count("\n"), list((tmp_path / "tmp").iterdir())) == (1, [])
    assert "home/.cache cannot be written, so each run compiles anew; set SLOTWISE_CACHE_DIR" in done.stderr


@pytest.mark.parametrize("early", some(["import numba;", ""], 1))
def test_the_folder_that_is_set_keeps_all_compiled_code(sealed, tmp_path, early):
    done = run(sys.executable, "-c", early + WORK, env=sealed | {"SLOTWISE_CACHE_DIR": str(tmp_path / "kept")})
    assert done.stderr == ""
    assert all(path.startswith(f"{tmp_path}/kept/") for path in done.stdout.splitlines())
    assert list((tmp_path / "kept" / "kernels").glob("*.py"))
    assert list((tmp_path / "kept" / "numba").rglob("*.nbc"))


def test_a_folder_that_is_set_and_cannot_be_written_is_named(sealed, tmp_path):
    done = run(
        sys.executable, "-m", "slotwise", "--version", env=sealed | {"SLOTWISE_CACHE_DIR": str(tmp_path / "file")}
    )
    assert done.stderr.startswith(f"slotwise:0: CacheWarning: {tmp_path}/file cannot be written")
    assert done.stdout.startswith("slotwise ")
