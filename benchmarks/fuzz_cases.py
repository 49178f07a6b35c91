"""Readers under damaged files, in a process of their own: what `fuzz_formats.py` starts.

    python benchmarks/fuzz_cases.py FORMAT,... SECONDS SEED FOLDER

Prints a JSON object a format, each after so many seconds. The file that is being read lies in FOLDER/FORMAT, so that it
is left there if the process dies.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import random
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st

import slotwise

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

FEW = 20  # cases that every reader gets, however little time there is
HANG_S = 20  # a case of a few kilobytes takes milliseconds
SLACK = 64 << 20  # bytes of allocation that any case may take
TIMES = 4  # and so many times the file beyond them
NUMBERS = (0, 1, 2, 3, 7, 127, 128, 255, 256, 65534, 65535, 65536, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63, 2**64)

WHAT = ("digit", "digit", "flip", "byte", "text", "delete", "double", "cut", "insert", "number", "binary")

Seed = tuple[str, bytes, dict[str, Any]]  # name of the file, its content, hints


class Over(BaseException):
    """The time is over."""


def tests_of(name: str) -> Any:
    """The tests of a format, which have a good file of it."""
    return importlib.import_module(f"test_formats_{name}")


def seeds(folder: Path) -> dict[str, list[Seed]]:
    """Good files of every format, most of them those of the tests; what needs a library that is absent is left out."""
    found: dict[str, list[Seed]] = {}
    for name, data in tests_of("sniffed").FILES:
        content = data if isinstance(data, bytes) else data.encode()
        found.setdefault(name, []).append(("t.dat", content, {"top_k": 2} if name == "rtrace" else {"n_experts": 16}))
    small = slotwise.synthesise(n_tokens=60, n_layers=3, n_experts=16, top_k=2, width=2, row_bytes=7, prompt_tokens=5)
    small.save(folder / "t.parquet", group_rows=20)
    found["slotwise"] = [("t.parquet", (folder / "t.parquet").read_bytes(), {})]
    for suffix, format_name in ((".npz", "npz"), (".csv", "tidy"), (".parquet", "tidy")):
        path = folder / f"export{suffix}"
        slotwise.export(small, path)
        found.setdefault(format_name, []).append((path.name, path.read_bytes(), {}))
    arrays: dict[str, Any] = {
        "experts": np.arange(24, dtype=np.uint8).reshape(4, 3, 2),
        "labels": ["a"],
        "offsets": [0, 4],
    }
    stored = io.BytesIO()
    np.savez(stored, **arrays)
    found["npz"].append(("t.npz", stored.getvalue(), {}))
    found["tidy"].append(("t.csv", tests_of("tidy").TEXT.encode(), {"n_experts": 4}))
    found["bmoe"] = [("t.csv", (tests_of("bmoe").HEAD + tests_of("bmoe").ROWS).encode(), {})]
    (folder / "broken-off").mkdir()
    tests_of("capture").part(folder / "broken-off")
    found["capture"] = [("t.part", (folder / "broken-off" / "t.parquet.part").read_bytes(), {})]
    found["counts"] = [
        ("t.dat", tests_of("counts").usage(), {}),
        ("t.npy", tests_of("counts").npy(tests_of("counts").COUNTS * 1.0), {}),
    ]
    found["esft"] = [("expert_weights_7.txt", tests_of("esft").SEVEN.encode(), {"n_experts": 6, "top_k": 3})]
    events = tests_of("moe_cache_eval").packed(tests_of("moe_cache_eval").events())
    found["moe-cache-eval"] = [("events.safetensors", events, {"n_experts": 5, "top_k": 2})]
    lab = tests_of("moe_cache_lab").written(folder, tests_of("moe_cache_lab").events())
    found["moe-cache-lab"] = [("t.jsonl", lab.read_bytes(), {})]
    found["policylang"] = [
        (path.name, path.read_bytes(), {"n_experts": 4})
        for path in (tests_of("policylang").lines(folder), tests_of("policylang").parquet(folder))
    ]
    answers = tests_of("sglang_r3").written(folder, tests_of("sglang_r3").answer(), tests_of("sglang_r3").answer())
    found["sglang-r3"] = [("t.json", answers.read_bytes(), {"top_k": 2, "n_experts": 4})]
    if importlib.util.find_spec("torch"):
        found["sglang"] = [("t.pt", tests_of("sglang").written(folder).read_bytes(), {})]
    return found


@st.composite
def damaged(draw: Any, good: list[Seed]) -> Seed:
    """A good file with up to four things done to it."""
    name, data, hints = draw(st.sampled_from(good))
    out, places = bytearray(data), random.Random(draw(st.integers(0, 2**64 - 1)))  # hypothesis prefers the beginning
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3, 4]))):
        at = places.randrange(len(out) + 1)
        what = draw(st.sampled_from(WHAT))
        if what == "digit":
            at = next((i for i in range(at, len(out)) if chr(out[i]).isdigit()), at)
            out[at : at + 1] = str(draw(st.integers(0, 9))).encode()
        elif what == "flip":
            out[at : at + 1] = bytes(byte ^ 1 << draw(st.integers(0, 7)) for byte in out[at : at + 1])
        elif what == "byte":
            out[at : at + 1] = bytes([draw(st.integers(0, 255))])
        elif what == "text":
            out[at : at + 1] = bytes([draw(st.sampled_from(b'0123456789-.,:[]{}"eE\n\r\t \xff\x00N'))])
        elif what == "delete":
            del out[at : at + draw(st.integers(1, 40))]
        elif what == "double":
            out[at:at] = out[at : at + draw(st.integers(1, 400))]
        elif what == "cut":
            del out[at:]
        elif what == "insert":
            out[at:at] = draw(st.binary(min_size=1, max_size=16))
        elif what == "number":
            end = at
            while end < len(out) and chr(out[end]).isdigit():
                end += 1
            out[at:end] = str(draw(st.sampled_from(NUMBERS)) * draw(st.sampled_from([1, 1, -1]))).encode()
        elif what == "binary":
            size = draw(st.sampled_from([2, 4, 8]))
            out[at : at + size] = (draw(st.sampled_from(NUMBERS)) % 256**size).to_bytes(size, "little")
    return name, bytes(out), hints


class Reader:
    """Reads cases of one format, holds each to the rules, and keeps count."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.read = self.refused = 0
        self.slowest_s, self.most_bytes = 0.0, 0

    def case(self, seed: Seed) -> None:
        """A valid trace, or one line that names the file; soon; without taking much memory."""
        name, data, hints = seed
        path = self.folder / name
        path.write_bytes(data)
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        before, began = memory("VmRSS"), time.perf_counter()
        signal.alarm(HANG_S)
        try:
            self._whole(path, hints)
            self.read += 1
        except slotwise.BadTrace as error:
            said = str(error)
            assert "\n" not in said, f"more than one line: {said!r}"
            assert str(path) in said, f"the file is not named: {said!r}"
            self.refused += 1
        finally:
            signal.alarm(0)
        took = memory("VmHWM") - before
        self.slowest_s = max(self.slowest_s, time.perf_counter() - began)
        self.most_bytes = max(self.most_bytes, took)
        assert took <= TIMES * len(data) + SLACK, f"{took} bytes were taken for a file of {len(data)}"

    def _whole(self, path: Path, hints: dict[str, Any]) -> None:
        if self.name == "counts":
            counts = slotwise.open_counted(path, self.name)
            assert (counts.counts >= 0).all()  # pyright: ignore[reportAttributeAccessIssue]
            return
        trace = slotwise.open_trace(path, self.name, **hints)
        none = np.iinfo(trace.dtype).max
        for block in trace.blocks(weights=trace.has_weights):
            assert ((block.experts < trace.n_experts) | (block.experts == none)).all(), "an id that is no expert"
            assert (np.diff(block.starts) > 0).all(), "a step without rows"
            assert np.isin(block.phase, (0, 1)).all(), "a phase that is none"
            assert block.weights is None or np.isfinite(block.weights).all(), "a weight that is no number"
        for horizon in trace.horizons:
            for block in trace.blocks(predicted=True, horizon=horizon):
                assert block.predicted is not None


def memory(key: str) -> int:
    """Bytes of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(key)).split()[1])


def fuzz(name: str, good: list[Seed] | None, seconds: float, seed: int, folder: Path) -> dict[str, Any]:
    """What became of the cases of one reader."""
    if good is None:
        return {"format": name, "skipped": "no good file of it: what it takes (torch?) is not installed"}
    reader = Reader(name, folder)
    for each in good:  # what a reader imports is not what a case takes
        reader.case(each)
    reader = Reader(name, folder)
    until, failure = time.monotonic() + seconds, None

    def run(case: Seed) -> None:
        if time.monotonic() > until and reader.read + reader.refused >= FEW:
            raise Over
        reader.case(case)

    settings = hypothesis.settings(
        max_examples=10**9, deadline=None, database=None, suppress_health_check=[*hypothesis.HealthCheck],  # pyright: ignore[reportArgumentType]
        print_blob=False, verbosity=hypothesis.Verbosity.quiet,
    )  # fmt: skip
    try:
        hypothesis.seed(seed)(settings(hypothesis.given(damaged(good))(run)))()
    except Over:
        pass
    except Exception as error:  # noqa: BLE001 - whatever a reader raises is what we look for
        failure = " ".join(traceback.format_exception_only(error)[0].split())
        failure += " at " + traceback.format_tb(error.__traceback__)[-1].strip().splitlines()[0]
    return {
        "format": name,
        "cases": reader.read + reader.refused,
        "read": reader.read,
        "refused": reader.refused,
        "slowest, s": round(reader.slowest_s, 3),
        "most taken, MB": round(reader.most_bytes / 1e6, 1),
        **({"failure": failure} if failure else {}),
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    names, seconds, seed, folder = sys.argv[1].split(","), float(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    files = seeds(folder)
    for name in names:
        (folder / name).mkdir()
        print(json.dumps(fuzz(name, files.get(name), seconds, seed, folder / name)), flush=True)
