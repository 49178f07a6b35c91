"""The benchmarks of the GPU run: tiny, and every figure is there. Times are not asserted: they are the machine's."""

import json
import sys

import pytest
from conftest import ROOT, run
from cupy_cases import gpu

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("words", [("hot_speed", "--dtypes", "Q8_0"), ("copy_speed",)])
def test_a_benchmark_names_the_device_and_prints_figures_above_zero(words):
    gpu()
    name, *options = words
    printed = run(sys.executable, ROOT / "benchmarks" / f"{name}.py", *options, "--tiny").stdout
    machine, device, *rows = (json.loads(line) for line in printed.splitlines() if line.startswith("{"))
    assert machine["machine"]["cores"] >= 1
    assert device["device"]
    assert rows
    for row in rows:
        figures = [value for key, value in row.items() if isinstance(value, float) or key.endswith("per_s")]
        assert figures, row
        assert all(value > 0 for value in figures), row
