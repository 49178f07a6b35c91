"""cold.c for the other architecture: NEON compiles without a warning. `.ci/aarch64` also runs it, under qemu."""

import ast
import shutil
import struct
import sysconfig

import pytest
from conftest import ROOT, run

pytestmark = pytest.mark.once

COMPILER = "aarch64-linux-gnu-gcc"
AARCH64 = 183  # e_machine of an ELF file


@pytest.mark.skipif(not shutil.which(COMPILER), reason=f"no {COMPILER}: apt-get install gcc-aarch64-linux-gnu")
def test_the_extension_cross_compiles_for_aarch64_without_a_warning(tmp_path):
    """With the flags of setup.py, but optimised little: that takes a seventh of the time."""
    words = ast.walk(ast.parse((ROOT / "setup.py").read_text()))
    flags = next(n.value for n in words if isinstance(n, ast.keyword) and n.arg == "extra_compile_args")
    include = sysconfig.get_path("include")
    built = tmp_path / "_cold.abi3.so"
    run(
        COMPILER, "-shared", "-fPIC", *ast.literal_eval(flags), "-O1", "-Wall", "-Wextra", "-Werror",
        "-DPy_LIMITED_API=0x030B0000", f"-I{include}", ROOT / "executor" / "cold.c", "-o", built,
    )  # fmt: skip
    head = built.read_bytes()
    assert struct.unpack_from("<H", head, 18)[0] == AARCH64
    assert b"neon" in head
