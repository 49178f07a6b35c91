"""Machines that nobody measured: datasheet numbers, and common parts of machines with their sources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from .errors import BadOption
from .machine import Machine, check_machine
from .machine_figures import FIGURES, Contention, Figure, Wake
from .sizes import parse_bytes

# What copies and reads reach of a datasheet's peak, by our own measurement of an H200 on PCIe 5 x16: copies of
# page-locked rows 55.3 of 63.0 GB/s, the hot chain's reads 4.3 of 4.8 TB/s. Of dual-channel memory a CPU reads about
# four fifths.
LINK_SHARE, DEVICE_SHARE, HOST_SHARE = 0.87, 0.9, 0.8
CPU_THREADS = 8
SPREAD = 0.1  # of every estimated figure


class Part(NamedTuple):
    """A part of a machine: peaks in bytes per second, None where it is not this part's business, and who says so."""

    meaning: str
    link: float | None
    device_read: float | None
    host_read: float | None
    source: str


PRESETS: Mapping[str, Part] = {
    "rtx-3060-x16": Part("RTX 3060 12 GB on PCIe 4.0 x16", 31.5e9, 360e9, None,
                         "NVIDIA's GeForce RTX 3060: 192 bits x 15 Gbit/s; PCIe 4.0: 16 GT/s a lane, 128b/130b"),
    "rtx-3060-x4": Part("RTX 3060 12 GB on PCIe 4.0 x4", 7.88e9, 360e9, None,
                        "NVIDIA's GeForce RTX 3060: 192 bits x 15 Gbit/s; PCIe 4.0: 16 GT/s a lane, 128b/130b"),
    "rtx-4090": Part("RTX 4090 on PCIe 4.0 x16", 31.5e9, 1008e9, None,
                     "NVIDIA's GeForce RTX 4090: 384 bits x 21 Gbit/s; PCIe 4.0: 16 GT/s a lane, 128b/130b"),
    "rtx-5060-ti": Part("RTX 5060 Ti on PCIe 5.0 x8", 31.5e9, 448e9, None,
                        "NVIDIA's GeForce RTX 5060 Ti: 128 bits x 28 Gbit/s; PCIe 5.0: 32 GT/s a lane, 128b/130b"),
    "h200": Part("H200 SXM, PCIe 5.0 x16, beside 16 cores of a Xeon", 63.0e9, 4.8e12, 130e9,
                 "NVIDIA's H200: 4.8 TB/s; PCIe 5.0: 32 GT/s a lane; 16 cores read 104 GB/s and more "
                 "(benchmarks/cold_speed.py), taken for four fifths of a peak"),
    "ddr4": Part("dual-channel DDR4-3200", None, None, 51.2e9, "JEDEC DDR4: 2 x 64 bits x 3200 MT/s"),
    "ddr5": Part("dual-channel DDR5-5600", None, None, 89.6e9, "JEDEC DDR5: 2 x 64 bits x 5600 MT/s"),
}  # fmt: skip

# What the host and the device take for each tick whatever the rows: rounded figures of an H200 with 16 cores
# (`python benchmarks/executor_speed.py`, `hot_speed.py`, `cold_speed.py`). Another machine's differ, by a factor of two
# at most for what the host does.
FIXED: Mapping[str, float] = {
    "ids_s": 8e-6, "policy_s": 12e-6, "policy_ahead_s": 10e-6, "submit_cold_s": 4e-6, "submit_hot_s": 8e-6,
    "submit_batch_s": 10e-6, "submit_load_s": 0.5e-6, "submit_merge_s": 4e-6, "submit_next_s": 8e-6,
    "link_host_s": 5e-6, "link_ids_s": 12e-6, "link_cold_s": 15e-6, "merge_s": 5e-6, "merge_pair_s": 0.1e-6,
    "dense_s": 4e-6, "step_s": 50e-6, "copy_demand_batch_s": 6e-6, "copy_demand_row_s": 0.5e-6,
    "copy_ahead_batch_s": 6e-6, "copy_ahead_row_s": 0.5e-6, "hot_base_s": 4e-6, "cold_base_s": 6e-6,
    "own_caches_bytes": 32 << 20, "hot_by_most": 0.0, "cold_by_most": 0.0,
}  # fmt: skip
FIXED_SOURCE = "about what an H200 beside 16 cores takes (benchmarks/executor_speed.py); another host differs"
WAKE = ((1e-4, 5e-6), (1e-3, 2e-5), (1e-2, 6e-5))
COMPUTE = 4.0  # times what it reads: so many tokens may share a row before computing bounds a chain


def estimate_machine(
    presets: Iterable[str] = (),
    *,
    link: str | float | None = None,
    host_read: str | float | None = None,
    device_read: str | float | None = None,
    figures: Mapping[str, float] | None = None,
    cpu_threads: int = CPU_THREADS,
    name: str | None = None,
) -> Machine:
    """A machine from the lines of a datasheet, labelled ESTIMATED.

    presets: names of PRESETS, later ones first where two speak of one thing. link, host_read, device_read: what copies
    and both chains reach, as "12GB/s" or bytes per second. figures: values of other figures by name; the rest are those
    of a machine that was measured (FIXED). Cold chain and link, which share the host's memory, each slow down in
    proportion where together they ask for more than it has.
    Raises BadOption where one of the three rates is known from nowhere, or a figure is out of its range.
    """
    known: dict[str, float] = {}
    sources = dict.fromkeys(FIXED, FIXED_SOURCE)
    presets, names = list(presets), []
    for preset in presets:
        if preset not in PRESETS:
            raise BadOption(f"no preset {preset!r}; presets: {', '.join(PRESETS)}")
        part = PRESETS[preset]
        names.append(part.meaning)
        for rate, share in (("link", LINK_SHARE), ("device_read", DEVICE_SHARE), ("host_read", HOST_SHARE)):
            if (peak := getattr(part, rate)) is not None:
                known[rate] = peak * share
                sources[rate] = f"{part.source}; {share:.0%} of the peak {peak / 1e9:g} GB/s"
    for rate, given in (("link", link), ("host_read", host_read), ("device_read", device_read)):
        if given is not None:
            known[rate], sources[rate] = _in_range(rate, given), "given"
    for rate in ("link", "host_read", "device_read"):
        if rate not in known:
            option = "--" + rate.replace("_", "-")
            raise BadOption(f"{rate} is not known; give {option} 12GB/s, or a preset that has it ({_with(rate)})")
    values = dict(FIXED)
    for figure, rate, factor in (
        ("copy_demand_bytes_per_s", "link", 1), ("copy_computed_bytes_per_s", "link", 1),
        ("copy_ahead_bytes_per_s", "link", 1),
        ("device_read_bytes_per_s", "device_read", 1), ("host_read_bytes_per_s", "host_read", 1),
        ("device_compute_bytes_per_s", "device_read", COMPUTE), ("host_compute_bytes_per_s", "host_read", COMPUTE),
    ):  # fmt: skip
        values[figure] = known[rate] * factor
        sources[figure] = sources[rate] + ("" if factor == 1 else f"; {factor:g} times what is read, a guess")
    for rate in ("link", "host_read", "device_read"):
        sources.pop(rate, None)
    if unknown := sorted(set(figures or {}) - set(FIGURES)):
        raise BadOption(f"no figure {unknown[0]!r}; figures: {', '.join(FIGURES)}")
    values |= figures or {}
    sources |= dict.fromkeys(figures or {}, "given")
    host = values["host_read_bytes_per_s"]
    speed = values["copy_demand_bytes_per_s"]
    shared = max(0.01, host / (host + speed)) if host > 0 < speed else 1.0
    device = values["device_read_bytes_per_s"]
    beside_link = Figure(max(0.01, device / (device + speed)) if device > 0 < speed else 1.0)
    return check_machine(
        Machine(
            label="ESTIMATED", name=name or " + ".join(names) or "a datasheet's line",
            date=datetime.now(UTC).date().isoformat(), cpu_threads=cpu_threads,
            figures={figure: Figure(values[figure], abs(SPREAD * values[figure])) for figure in FIGURES},
            wake=tuple(Wake(gap, seconds, SPREAD * seconds) for gap, seconds in WAKE),
            contention=(Contention(cpu_threads, Figure(shared), Figure(shared), Figure(shared), beside_link),),
            sources=dict(sorted(sources.items())),
        )
    )  # fmt: skip


def list_machines() -> list[dict[str, Any]]:
    """The presets: name, what it is, source, and peaks in bytes per second (None where it does not say)."""
    return [
        {"name": name, "what": part.meaning, "source": part.source, "link": part.link, "device_read": part.device_read,
         "host_read": part.host_read}
        for name, part in PRESETS.items()
    ]  # fmt: skip


def parse_rate(name: str, text: str | float) -> float:
    """`12GB/s`, `45 GiB/s` or bytes per second -> bytes per second."""
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return float(text)
    match = re.fullmatch(r"\s*(.+?)\s*/\s*s\s*", str(text))
    try:
        return float(parse_bytes(match[1] if match else text))
    except BadOption:
        raise BadOption(f"{name} {str(text)[:40]!r}: write bytes per second, such as 12GB/s or 45GiB/s") from None


def _in_range(rate: str, given: str | float) -> float:
    """As `parse_rate`, within what every figure that comes from it may be."""
    value, allowed = parse_rate(rate, given), FIGURES["host_compute_bytes_per_s"]
    if not allowed.low <= value <= allowed.high / COMPUTE:  # nan is in no range
        raise BadOption(
            f"{rate} {str(given)[:40]!r}: a rate is from {allowed.low:g} to {allowed.high / COMPUTE:g} bytes per "
            "second, such as 12GB/s"
        )
    return value


def _with(rate: str) -> str:
    return ", ".join(name for name, part in PRESETS.items() if getattr(part, rate) is not None)
