"""Every reader under damaged files: never a crash, never a hang, little memory, a valid trace or one clear line.

    python benchmarks/fuzz_formats.py [--seconds 600] [--formats npz,slotwise] [--seed 0] [--failures FOLDER]

Hypothesis damages good files of each format, a process a reader, so that a reader that takes its process with it is
found too. A case fails if its process dies, if it takes longer than 20 seconds, if it takes more memory than 64 MiB and
four times the file, if anything but BadTrace is raised, if the message has several lines or does not name the file, or
if what is read has an id that is no expert. `--seconds` is divided among the readers. The files that failed are kept.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import fuzz_cases
from peers import bench

import slotwise


def rows(asked):
    names = [name for name in asked.formats.split(",") if name] or [row["name"] for row in slotwise.list_formats()]
    failed = []
    for together in [names] if asked.tiny else [[name] for name in names]:
        for row in fuzzed(together, 0.1 if asked.tiny else asked.seconds / len(names), asked):
            if "failure" in row:
                failed.append(row["format"])
            yield row
    if failed:
        raise SystemExit(f"{len(failed)} readers failed: {', '.join(failed)}")


def fuzzed(names, seconds, asked):
    """A row per reader; of a process that died, the reader that it was at is the last one."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, fuzz_cases.__file__, ",".join(names), str(seconds), str(asked.seed), folder]
        done = subprocess.run(words, check=False, capture_output=True, text=True)
        found = [json.loads(line) for line in done.stdout.splitlines()]
        if done.returncode or len(found) < len(names):
            said = done.stderr.strip()[-300:]
            found.append({"format": names[len(found)], "failure": f"the process ended with {done.returncode}: {said}"})
        for row in found:
            if "failure" in row:
                read, kept = Path(folder) / row["format"], Path(asked.failures) / row["format"]
                if read.exists():  # else it died before it read anything
                    shutil.copytree(read, kept, dirs_exist_ok=True)
                    row["kept in"] = str(kept)
        return found


if __name__ == "__main__":
    bench("fuzz-formats", __doc__, rows, seconds=600.0, formats="", seed=0, failures="fuzz-failures")
