"""How much memory the import of a large text capture takes, and how fast it is: whole commands on files made here.

    python benchmarks/import_memory.py [--megabytes 100] [--formats lattice,moe-cache-lab] [--keep]
    python benchmarks/import_memory.py --megabytes 1000

`slotwise trace import` of JSON lines (24 layers, top 8 of 128, weights; requests of 1,024 tokens, or a single one where
a file is a request). The figure is the peak resident memory (VmHWM) of the command above that of importing a file of
one megabyte. It should not grow with the file: what engines write is put together pass by pass, and beyond 64 MiB of
ids and weights rows wait in a temporary file.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from memory import CHILD, child
from peers import bench

LAYERS, EXPERTS, TOP_K = 24, 128, 8
PROMPT, REQUEST = 256, 1024  # tokens of a prompt, and of a request
KEYS = {
    "lattice": ("layer_idx", "token_idx", "selected_ids", "gate_weights"),
    "vllm-logger": ("layer", "token_idx", "topk_ids", "topk_weights"),
    "policylang": ("l", "t", "e", "s"),
    "moe-cache-lab": ("layer", "token_position", "selected_experts", "selected_probabilities"),
}


def heads(format: str, entries: int) -> str:  # noqa: A002 - the word of the command line
    """The first line, of the same length for every number of entries."""
    record: dict[str, object] = {}
    if format == "policylang":
        record = {"model_name": "m", "num_layers": LAYERS, "num_experts": EXPERTS, "top_k": TOP_K}
        record["num_entries"] = entries
    elif format == "moe-cache-lab":
        record = {"record_type": "metadata", "format": "moe-cache-lab.routing-jsonl", "format_version": 1}
        record |= {"model_id": "m", "num_experts": EXPERTS, "experts_per_token": TOP_K}
    return f"{json.dumps(record):<200}\n" if record else ""


def passes(format: str) -> Iterator[list[str]]:  # noqa: A002
    """Without end, the lines of forward passes, layer by layer: a prompt, then token by token, then the next one."""
    rng = np.random.default_rng(0)
    layer_key, token_key, ids_key, weights_key = KEYS[format]
    choices = []
    for _ in range(997):
        ids, weights = rng.permutation(EXPERTS)[:TOP_K].tolist(), (-np.sort(-rng.random(TOP_K))).round(4).tolist()
        choices.append(f'"{ids_key}": {ids}, "{weights_key}": {weights}}}\n')
    request = first = n = 0
    while True:
        tokens = PROMPT if not first else 1
        about = {
            "lattice": "",
            "vllm-logger": f'"type": "route", "req_id": "r{request}", ',
            "policylang": f'"p": {request}, ',
            "moe-cache-lab": f'"record_type": "routing_selection", "phase": "{"generated" if first else "prompt"}", ',
        }[format]
        begins = 0 if format == "vllm-logger" else first
        yield [
            f'{{{about}"{layer_key}": {layer}, "{token_key}": {token}, {choices[(n + 7 * layer + token) % 997]}'
            for layer in range(LAYERS)
            for token in range(begins, begins + tokens)
        ]
        first, n = first + tokens, n + 13
        if first >= REQUEST and format != "moe-cache-lab":
            request, first = request + 1, 0


def write(path: Path, format: str, megabytes: float) -> None:  # noqa: A002
    """Whole forward passes, up to about that size."""
    entries = 0
    with path.open("w") as file:
        size = file.write(heads(format, entries))
        for lines in passes(format):
            size += file.write("".join(lines))
            entries += len(lines)
            if size >= megabytes * 1e6:
                break
        file.seek(0)
        file.write(heads(format, entries))


def peak(path: Path, output: Path) -> tuple[int, float]:
    """(peak bytes, seconds) of `slotwise trace import`."""
    began = time.perf_counter()
    said = child(CHILD, "trace", "import", path, "-o", output, "--n-experts", EXPERTS, "--force")
    return 1024 * int(said.split()[-1]), time.perf_counter() - began


def rows(asked):
    if asked.tiny:
        asked.megabytes, asked.formats = 4.0, "lattice"
    with tempfile.TemporaryDirectory() as folder:
        path, output = Path(folder) / "capture.jsonl", Path(folder) / "t.parquet"
        for name in asked.formats.split(","):
            write(path, name, 1)
            empty, _ = peak(path, output)
            write(path, name, asked.megabytes)
            full, seconds = peak(path, output)
            yield {
                "format": name,
                "file, MB": round(path.stat().st_size / 1e6, 1),
                "trace, MB": round(output.stat().st_size / 1e6, 1),
                "peak, MB": round(full / 1e6, 1),
                "above 1 MB, MB": round((full - empty) / 1e6, 1),
                "above 1 MB / file": round((full - empty) / path.stat().st_size, 3),
                "MB/s": round(path.stat().st_size / 1e6 / seconds, 1),
            }


if __name__ == "__main__":
    bench("import-memory", __doc__, rows, megabytes=100.0, formats=",".join(KEYS))
