"""How much memory this process can still have: what the machine has left, and what its control groups leave of that."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def available_bytes(proc: str | Path = "/proc", groups: str | Path = "/sys/fs/cgroup") -> int:
    """Bytes of memory that can be had now without anything being swapped or killed; never below 0.

    File caches that the system would give up count as free. A control group (v1 and v2) leaves its limit less what its
    processes hold, and so does each group that it lies in. Where there is no `proc`, the machine's memory counts.
    """
    return max(0, min(_of_machine(Path(proc)), *_of_groups(Path(proc), Path(groups))))


def _of_machine(proc: Path) -> int:
    file = proc / "meminfo"
    for line in file.read_text().splitlines() if file.is_file() else ():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _of_groups(proc: Path, groups: Path) -> Iterator[int]:
    """What every group leaves that this process lies in. There is always one: no group leaves all there can be."""
    yield 2**63 - 1
    file = proc / "self" / "cgroup"
    for line in file.read_text().splitlines() if file.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if not controllers:  # v2
            root, names = groups, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root, names = groups / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        inside = root / path.strip("/")  # which a container may not see; what it lies in, it sees as the root
        for group in (inside, *inside.parents):
            yield from _of_group(group, *names)
            if group == root:
                break


def _of_group(group: Path, limit: str, usage: str, cache: str) -> Iterator[int]:
    files = [group / name for name in (limit, usage, "memory.stat")]
    if not all(file.is_file() for file in files):
        return  # the root of v2 has no limit
    most, held, stat = (file.read_text() for file in files)
    if most.strip() != "max":
        given_up = next((int(line.split()[1]) for line in stat.splitlines() if line.startswith(f"{cache} ")), 0)
        yield int(most) - int(held) + given_up
