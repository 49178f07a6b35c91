"""Which processors the cold chain may run on, how many of them it should, and how much their caches hold."""

from __future__ import annotations

import os
from pathlib import Path


def physical_cores() -> tuple[int, ...]:
    """One logical processor for each physical core that this process may run on, in rising order."""
    allowed = sorted(os.sched_getaffinity(0))
    seen: dict[str, int] = {}
    for cpu in allowed:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        seen.setdefault(siblings.read_text() if siblings.exists() else str(cpu), cpu)
    return tuple(seen.values())


def usual_threads() -> int:
    """Of the cold chain: one physical core is left to the calling thread, and one of every eight to the rest.

    Threads on all cores but one lost a tenth of tokens per second on 16 cores, and made runs scatter by 5 %, not 1 %:
    whatever else has to run, the driver's threads too, then stops a thread that all others wait for.
    """
    cores = len(physical_cores())
    return max(1, cores - 1 - cores // 8)


def caches_bytes(level: int) -> int:
    """All caches of a level (2: those that each core has for itself) together; 0 where the system does not say."""
    seen = {}
    for index in Path("/sys/devices/system/cpu").glob(f"cpu[0-9]*/cache/index{level}"):
        size = (index / "size").read_text().strip()
        seen[(index / "shared_cpu_list").read_text()] = int(size.removesuffix("K")) * 1024
    return sum(seen.values())
