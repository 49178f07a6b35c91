"""Installing where there is no C compiler: it goes through, everything but `run` works, and what is missing is said."""

import json
import os
import shutil
import sys
import sysconfig

import pytest
from conftest import ROOT, run

pytestmark = pytest.mark.once

pytest.importorskip(
    "setuptools", minversion="77", reason="the extra `test` brings setuptools 77, which builds slotwise"
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the package, built from the sources by pip with a compiler that always fails; how to run it."""
    place = tmp_path_factory.mktemp("install")
    words = run("git", "-C", ROOT, "ls-files", "-z").stdout.split("\0")
    for word in filter(None, words):
        target = place / "sources" / word
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / word, target)
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target")
    run(*pip, place / "site", place / "sources", cwd=place, env={**os.environ, "CC": shutil.which("false")})
    assert not list((place / "site").rglob("_cold*.so"))
    libraries = (sysconfig.get_path(name) for name in ("purelib", "platlib"))
    known = {**os.environ, "PYTHONPATH": os.pathsep.join([str(place / "site"), *libraries])}

    def slotwise(*words, code=0):  # -S: an editable installation would lend its extension
        return run(sys.executable, "-S", "-m", "slotwise", *words, code=code, cwd=place, env=known)

    return slotwise


def test_a_replay_works_and_a_run_says_what_is_missing_and_both_ways_out(installed):
    assert "hit rate" in installed("replay", "sample", "--slots", "32", "--steps", "20").stdout
    rows = {row["name"]: row["missing"] for row in json.loads(installed("backends", "--json").stdout)}
    assert "install a C compiler and the headers of this Python" in rows["numpy"]
    assert "--cold numba" in rows["numpy"]
    words = ("run", "sample", "--shape", "tiny", "--steps", "5", "--headroom", "0", "--alias-layers", "1")
    told = installed(*words, code=2).stderr
    assert told.strip() == f"slotwise: {rows['numpy']}"
    assert "tokens/s (MEASURED" in installed(*words, "--cold", "numba").stdout
