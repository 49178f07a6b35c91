"""The architecture, read from the imports: arrows between folders, homes of libraries, and the table of packages."""

import ast
import functools
import re
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import ROOT, python, run

ARROWS = {  # folder -> the folders that it may import besides itself
    "traces": set(),
    "policies": set(),
    "reports": set(),
    "replay": {"traces", "policies"},
    "executor": {"traces", "policies"},
    "slotwise": {"traces", "policies", "replay", "executor", "reports"},
    "cli": {"slotwise"},
}
HOMES = {  # library -> the folders that may import it; numpy is at home everywhere
    "click": {"cli"},
    "rich": {"cli"},
    "polars": {"traces"},
    "pyarrow": {"traces", "replay", "reports"},
    "pandas": {"reports"},
    "matplotlib": {"reports"},
    "jinja2": {"reports"},
    "numba": {"policies", "replay", "traces", "executor"},
    "llvmlite": {"executor"},
    "ray": {"replay"},
    "threadpoolctl": {"executor"},
    "cupy": {"executor"},
    "cuda": {"executor"},
    "torch": {"traces"},
    "transformers": {"traces"},
    "libcachesim": set(),  # GPL: a peer to measure against, never a dependency
}
LATE = set(HOMES) - {
    "click",
    "llvmlite",
    "numba",
    "pyarrow",
}  # imported by the function that uses them, in every folder
CODE = sorted(path for folder in ARROWS for path in (ROOT / folder).glob("*.py"))
PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


class Import(NamedTuple):
    """One imported module, and when the import runs: with the file, in a call of a function, or never (for types)."""

    file: Path
    line: int
    module: str
    level: int  # number of leading dots
    names: tuple[str, ...]
    when: str  # "top", "call" or "types"

    def __str__(self):
        return (
            f"{self.file.relative_to(ROOT)}:{self.line} imports {'.' * self.level}{self.module} {' '.join(self.names)}"
        )

    @property
    def library(self):
        return "" if self.level else self.module.partition(".")[0]

    @property
    def folder(self):
        """The folder of ours that is imported: `from slotwise.traces import x`, `from slotwise import traces`."""
        if self.level or self.library != "slotwise":
            return None
        parts = [*self.module.split("."), *self.names]
        return parts[1] if len(parts) > 1 and parts[1] in ARROWS else "slotwise"


@functools.cache
def imports_of(path: Path) -> tuple[Import, ...]:
    found = []

    def visit(node, when):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.extend(Import(path, child.lineno, alias.name, 0, (), when) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                names = tuple(alias.name for alias in child.names)
                found.append(Import(path, child.lineno, child.module or "", child.level, names, when))
            elif isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
                visit(child, "types")
            else:
                visit(child, "call" if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) else when)

    visit(ast.parse(path.read_text(), str(path)), "top")
    return tuple(found)


def offending(rule) -> list[str]:
    return [str(found) for path in CODE for found in imports_of(path) if rule(path.parent.name, found)]


def test_the_reader_of_imports_sees_late_ones_and_early_ones(tmp_path):
    file = tmp_path / "case.py"
    file.write_text(
        "import numpy\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import polars\n"
        "def f():\n    from slotwise.traces import Trace\nclass A:\n    from . import b\n"
    )
    seen = [(found.module, found.level, found.when, found.folder) for found in imports_of(file)]
    assert seen == [
        ("numpy", 0, "top", None),
        ("typing", 0, "top", None),
        ("polars", 0, "types", None),
        ("slotwise.traces", 0, "call", "traces"),
        ("", 1, "top", None),
    ]


def test_a_folder_imports_only_the_folders_its_arrow_points_to():
    def breaks(home, found):
        entrance = found.file == ROOT / "slotwise" / "__main__.py"  # `python -m slotwise` is the command
        return found.folder not in {None, home, *ARROWS[home]} and not entrance

    assert offending(breaks) == []


def test_a_folder_imports_its_own_modules_relatively_and_never_reaches_above_itself():
    assert offending(lambda home, found: found.folder == home or found.level > 1) == []


def test_no_folder_is_imported_by_its_bare_name():
    files = [*CODE, *(ROOT / "tests").glob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    bare = ARROWS.keys() - {"slotwise"}
    assert [str(found) for file in files for found in imports_of(file) if found.library in bare] == []


def test_a_library_is_imported_only_in_its_home():
    assert offending(lambda home, found: home not in HOMES.get(found.library, {home}) and found.when != "types") == []


def test_every_library_that_the_package_imports_is_declared():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*declared["dependencies"], *(one for extra in declared["optional-dependencies"].values() for one in extra)]
    names = {re.split(r"[\[<>=~ ]", one)[0].lower() for one in asked}
    other = {"cupy-cuda12x": "cupy", "cupy-cuda13x": "cupy", "cuda-bindings": "cuda"}  # imported under another name
    known = {other.get(name, name) for name in names} | {"slotwise", ""} | set(sys.stdlib_module_names)
    assert offending(lambda home, found: found.library not in known) == []


def test_heavy_libraries_are_imported_by_the_function_that_uses_them():
    assert offending(lambda home, found: found.library in LATE and found.when == "top") == []


def test_the_command_line_and_the_public_names_import_nothing_heavy_at_their_top():
    light = {"click", "slotwise", "", *sys.stdlib_module_names}

    def breaks(home, found):
        entrance = home == "cli" or found.file == ROOT / "slotwise" / "__init__.py"
        eager = found.library not in light or (found.library == "slotwise" and found.names)  # the names are lazy ones
        return entrance and eager and found.when == "top"

    assert offending(breaks) == []


def test_the_package_table_lists_the_folders_on_disk():
    on_disk = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert on_disk == ARROWS.keys() == set(PACKAGES["package-dir"].values())
    assert {name.removeprefix("slotwise.") for name in PACKAGES["packages"]} == on_disk
    for package, folder in PACKAGES["package-dir"].items():
        assert package in {folder, f"slotwise.{folder}"}


def test_no_code_lies_in_nested_folders():
    nested = [
        path for folder in ARROWS for path in (ROOT / folder).glob("*/**/*.py") if "__pycache__" not in path.parts
    ]
    assert nested == []


def test_every_file_of_code_opens_by_saying_why_it_exists():
    files = [*CODE, *(ROOT / "tests").glob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    assert [str(file.relative_to(ROOT)) for file in files if not ast.get_docstring(ast.parse(file.read_text()))] == []


def test_a_file_past_300_lines_is_confessed_in_the_contributing_guide():
    _, _, confessed = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where we break these rules today")
    long = {
        str(path.relative_to(ROOT)): count
        for folder in (*ARROWS, "tests", "benchmarks")
        for path in (ROOT / folder).glob("*.py")
        if (count := len(path.read_text().splitlines())) > 300
    }
    assert {name: count for name, count in long.items() if f"`{name}`" not in confessed} == {}


def test_every_public_name_is_there_and_the_lists_of_them_agree():
    written, table, not_callable, shown = python(
        "import slotwise; print(*slotwise.__all__); print(*slotwise._HOMES, '__version__');"
        "print(*[name for name in slotwise._HOMES if not callable(getattr(slotwise, name))]); print(*dir(slotwise))"
    ).split("\n")[:4]
    for_checkers = {
        name for found in imports_of(ROOT / "slotwise" / "__init__.py") if found.when == "types" for name in found.names
    }
    assert set(written.split()) == set(table.split()) == for_checkers | {"__version__"}
    assert shown.split() == sorted(written.split()), "dir() shows nothing else, whatever was imported before"
    assert not_callable == ""


def test_a_public_name_can_be_called_whatever_was_imported_before_it():
    """`replay` is a folder and a function, `compare` a file and a function: the import system sets the module first."""
    before = "import slotwise.replay, slotwise.compare, slotwise.validate, slotwise.traces, slotwise.policies;"
    names = "replay", "compare", "calibrate", "validate", "advise"  # `validate` imports `calibrate`
    asked = f"print(*[callable(getattr(slotwise, name)) for name in {names}])"
    assert python(f"{before} import slotwise; {asked}") == "True True True True True\n"
    assert python("import slotwise; print(slotwise.replay.__name__ and callable(slotwise.replay))") == "True\n"


def test_a_wrong_public_name_is_an_attribute_error():
    import slotwise

    with pytest.raises(AttributeError, match="has no attribute 'replya'"):
        _ = slotwise.replya  # pyright: ignore[reportAttributeAccessIssue]


def test_importing_the_package_imports_no_library():
    loaded = python("import sys, slotwise; print(*{name.partition('.')[0] for name in sys.modules})").split()
    assert "slotwise" in loaded
    assert {"numpy", *HOMES}.isdisjoint(loaded)


def test_no_file_names_a_place_on_the_machine_or_a_registry():
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: there is no list of the repository's files")
    git = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = [ROOT / name for name in run(*git).stdout.split("\0") if name]
    asked = run(sys.executable, "-m", "pip", "config", "list").stdout
    hosts = set(re.findall(r"https?://(?:[^/@'\s]*@)?([^/:'\s]+)", asked)) | {
        "pypi" + ".org",
        "files.pythonhosted" + ".org",
    }
    places = {str(Path.home()), str(ROOT), str(ROOT.parent)} - {"/", "/root", tempfile.gettempdir()}
    forbidden = re.compile("|".join([*map(re.escape, hosts | places), r"/(?:home|Users|root)/\w"]).encode())
    named = [
        f"{file.relative_to(ROOT)}: {found.group().decode()}"
        for file in files
        if file.is_file() and file.suffix not in {".parquet", ".png"}
        for found in forbidden.finditer(file.read_bytes())
    ]
    assert named == []
