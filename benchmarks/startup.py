"""How long a user waits: whole commands from start to finish, with kernels in the cache and without.

    python benchmarks/startup.py [--runs 5] [--cold-runs 2] [--keep]

Wall and CPU seconds (user + system, all threads) of a process of its own, median of runs. Warm: the machine code of
every kernel lies in the caches. Cold: both caches are new empty folders, SLOTWISE_CACHE_DIR of the generated kernels
and NUMBA_CACHE_DIR, without which numba would find what it keeps beside the sources; Python's .pyc files stay. Targets:
help 0.3 s of CPU; `replay sample` 1.5 s warm, 6 s cold; `compare sample` 20 s warm on two cores (cold: printed).
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

from peers import bench

COMMANDS = {
    "--help": [],
    "replay sample": [],
    "replay sample --policy lfru+guard --width 4": [],
    "compare sample": ["-o", "report"],
}


def timed(words: list[str], env: dict[str, str], folder: str) -> tuple[float, float]:
    """(wall, CPU) seconds of one command in `folder`; what it prints is dropped, a failure is not."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "slotwise", *words], env=env, cwd=folder, stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if status:
        raise SystemExit(f"slotwise {' '.join(words)} ended with {process.returncode}")
    return wall, used.ru_utime + used.ru_stime


def once(words: list[str], *, cold: bool) -> tuple[float, float]:
    """One run in a new folder, with new caches too if cold."""
    with tempfile.TemporaryDirectory() as folder:
        env = dict(os.environ)
        if cold:
            env |= {"SLOTWISE_CACHE_DIR": f"{folder}/slotwise", "NUMBA_CACHE_DIR": f"{folder}/numba"}
        return timed(words, env, folder)


def rows(asked):
    for command, more in COMMANDS.items():
        if asked.tiny and command not in ("--help", "replay sample"):
            continue
        words = [*command.split(), *more]
        once(words, cold=False)  # fills the caches
        for cold in (False, True):
            runs = 1 if asked.tiny else asked.cold_runs if cold else asked.runs
            if cold and (asked.tiny or command == "--help"):
                continue
            wall, used = zip(*(once(words, cold=cold) for _ in range(runs)), strict=True)
            yield {
                "command": f"slotwise {' '.join(words)}",
                "kernels": "cold" if cold else "warm",
                "wall, s": round(statistics.median(wall), 3),
                "CPU, s": round(statistics.median(used), 3),
            }


if __name__ == "__main__":
    bench("startup", __doc__, rows, runs=5, cold_runs=2)
