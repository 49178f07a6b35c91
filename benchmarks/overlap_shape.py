"""Where overlap pays: decode steps of one token, verify steps of several, and prompts above the batch gate.

    python benchmarks/overlap_shape.py [--backend cupy] [--hidden 2048] [--inner 768] [--keep]

One synthetic routing, `lfru+guard` at width 4, misses on the CPU. `gain` is tokens per second with overlap over those
without, in interleaved repeats of one call; `pair by pair` the least and the most of it over the repeats. Published
for one engine (see `5-time.md` of the design): more with verify batches than without, nothing for a prefill.
"""

from __future__ import annotations

from peers import bench

import slotwise
from slotwise.traces.synth import synthesise


def gains(name: str, trace, asked, **options) -> dict:
    """One row: the same steps with and without overlap."""
    result = slotwise.run(
        trace, policy="lfru+guard", slots=asked.slots, width=4, hidden=asked.hidden, intermediate=asked.inner,
        dtype="bf16", backend=asked.backend, overlap="both", repeats=asked.repeats, dense_us=asked.dense_us, **options,
    )  # fmt: skip
    on, off = (next(run["timing"] for run in result["runs"] if run["overlap"] == overlap) for overlap in ("on", "off"))
    pairs = [a / b - 1 for a, b in zip(on["tokens_per_s_runs"], off["tokens_per_s_runs"], strict=True)]
    counters = result["runs"][0]["counters"]
    return {
        "steps": name, "tokens a step": options.get("verify_tokens", trace.n_tokens // trace.n_steps),
        "hit rate": round(counters["hits"] / counters["demands"], 3),
        "tokens/s on": round(on["tokens_per_s"], 2), "tokens/s off": round(off["tokens_per_s"], 2),
        "gain": f"{100 * (on['tokens_per_s'] / off['tokens_per_s'] - 1):+.1f} %",
        "pair by pair": f"{100 * min(pairs):+.1f} to {100 * max(pairs):+.1f} %",
    }  # fmt: skip


def rows(asked):
    if asked.tiny:
        asked.steps, asked.repeats, asked.layers, asked.hidden, asked.inner = 4, 2, 2, 64, 64
    shape = {"n_layers": asked.layers, "width": 4, "seed": 1}
    decode = synthesise(n_tokens=4 * asked.steps, **shape)
    prefill = synthesise(n_tokens=256, prompt_tokens=256, **shape)
    yield gains("decode", decode, asked, steps=asked.steps)
    yield gains("verify", decode, asked, steps=asked.steps, verify_tokens=4, accept=0.7)
    yield gains("prefill", prefill, asked)


if __name__ == "__main__":
    bench("overlap-shape", __doc__, rows, backend="numpy", hidden=2048, inner=768, slots=64, layers=8, steps=60,
          repeats=3, dense_us=30.0)  # fmt: skip
