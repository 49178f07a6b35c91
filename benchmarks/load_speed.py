"""How fast a trace file becomes arrays, beside what Arrow alone needs to decode the same columns.

    python benchmarks/load_speed.py [--tokens 100000] [--layers 48] [--runs 5] [--keep]

Ours: open_trace(file), then every block, checked and laid out [layer, token, k]. Arrow: pyarrow reads the same columns
of the same row groups, and nobody looks at them. A synthetic trace, its file in the page cache; medians of runs that
take turns, in millions of routed ids per second. Target: 500. `with width` adds 8 predictions per token and layer,
which count as ids there.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from peers import bench, interleaved

import slotwise

WIDTH = 8


def ours(path: Path, predicted: bool = False) -> None:
    for _ in slotwise.open_trace(path).blocks(predicted=predicted):
        pass


def arrow(path: Path) -> None:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    columns = [name for name in file.schema_arrow.names if not name.startswith("predicted.")]
    for group in range(file.num_row_groups):
        file.read_row_group(group, columns=columns)


def rows(asked):
    if asked.tiny:
        asked.tokens, asked.layers, asked.runs = 1000, 4, 1
    with tempfile.TemporaryDirectory() as folder:
        for n_experts in (128, 512):
            shape = {"n_tokens": asked.tokens, "n_layers": asked.layers, "n_experts": n_experts}
            trace = slotwise.synthesise(**shape, width=WIDTH)
            path = Path(folder) / f"{n_experts}.parquet"
            trace.save(path)
            jobs = {
                "ours": lambda path=path: ours(path),
                "with width": lambda path=path: ours(path, predicted=True),
                "arrow": lambda path=path: arrow(path),
            }
            seconds = {name: taken.wall for name, taken in interleaved(jobs, asked.runs).items()}
            ids = asked.tokens * asked.layers * trace.top_k
            ahead = asked.tokens * (asked.layers - 1) * WIDTH  # nothing looks ahead at the first layer
            yield {
                **shape,
                "file, MB": round(path.stat().st_size / 1e6, 3),
                "M ids/s": round(ids / seconds["ours"] / 1e6, 1),
                "Arrow alone, M ids/s": round(ids / seconds["arrow"] / 1e6, 1),
                "with width, M ids/s": round((ids + ahead) / seconds["with width"] / 1e6, 1),
                "ours, ms": round(seconds["ours"] * 1e3, 2),
                "Arrow alone, ms": round(seconds["arrow"] * 1e3, 2),
            }


if __name__ == "__main__":
    bench("load-speed", __doc__, rows, tokens=100_000, layers=48, runs=5)
