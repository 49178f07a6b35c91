"""Clocks and temperature of a GPU, by the library that comes with NVIDIA's driver. It reads; it sets nothing."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
QUESTIONS = (  # NVML API: nvmlClockType_t SM 1 and MEM 2, nvmlTemperatureSensors_t GPU 0
    ("sm_clock_mhz", "nvmlDeviceGetClockInfo", 1),
    ("memory_clock_mhz", "nvmlDeviceGetClockInfo", 2),
    ("temperature_c", "nvmlDeviceGetTemperature", 0),
)


def conditions_of(pci_bus_id: str) -> dict[str, float]:
    """What the GPU at this address says of itself now; {} without the library, and without what it refuses to say."""
    library = _library(LIBRARY)
    device = ctypes.c_void_p()
    if library is None or library.nvmlDeviceGetHandleByPciBusId_v2(pci_bus_id.encode(), ctypes.byref(device)):
        return {}
    found: dict[str, float] = {}
    for name, question, of in QUESTIONS:
        value = ctypes.c_uint()
        if not getattr(library, question)(device, of, ctypes.byref(value)):
            found[name] = float(value.value)
    return found


@functools.cache
def _library(name: str) -> Any:
    """Ready to be asked; None where it is absent or does not start."""
    try:
        library = ctypes.CDLL(name)
    except OSError:
        return None
    return None if library.nvmlInit_v2() else library
