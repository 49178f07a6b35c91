"""Clocks and temperature: asked for as NVML's header says, and nothing where there is no such library."""

import shutil
import subprocess

import pytest
from cupy_cases import gpu

from slotwise.executor import cupy_conditions
from slotwise.executor.backend import make_backend

NVML = r"""
#include <string.h>
static int started;
int nvmlInit_v2(void) { started = 1; return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) {
    if (!started || strcmp(id, "0000:19:00.0")) return 6;
    *device = &started;
    return 0;
}
int nvmlDeviceGetClockInfo(void *device, unsigned type, unsigned *mhz) {
    if (device != &started) return 2;
    if (type == 2) return 3; /* not supported */
    *mhz = 1000 + type;
    return 0;
}
int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *celsius) {
    if (device != &started || sensor) return 2;
    *celsius = 41;
    return 0;
}
"""


@pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc, which builds a library with NVML's signatures")
def test_a_library_of_those_signatures_is_asked_and_what_it_refuses_is_left_out(tmp_path, monkeypatch):
    source, built = tmp_path / "nvml.c", tmp_path / "libnvml.so"
    source.write_text(NVML)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", built, source], check=True)
    monkeypatch.setattr(cupy_conditions, "LIBRARY", str(built))
    assert cupy_conditions.conditions_of("0000:19:00.0") == {"sm_clock_mhz": 1001.0, "temperature_c": 41.0}
    assert cupy_conditions.conditions_of("0000:1A:00.0") == {}


def test_nothing_is_told_without_the_library(monkeypatch):
    monkeypatch.setattr(cupy_conditions, "LIBRARY", "libnvidia-ml-that-is-not-there.so")
    assert cupy_conditions.conditions_of("0000:19:00.0") == {}


@pytest.mark.gpu
def test_a_gpu_tells_its_clocks_and_its_temperature():
    gpu()
    backend = make_backend("cupy")
    found = backend.conditions()
    backend.close()
    assert 100 < found["sm_clock_mhz"] < 5000
    assert 0 < found["temperature_c"] < 120
