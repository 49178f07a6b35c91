"""How the shipped sample was cut: `python -m slotwise.traces.sample decode.npz` writes the same bytes again."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from .opening import SAMPLE
from .trace import Trace

ROWS, WIDTH = 896, 8  # per request, 256 of them prefill; predictions kept: what fits into 2 MB


def cut(npz: Path) -> Trace:
    """The first request of each label, its first `ROWS` rows, the first `WIDTH` predictions."""
    with np.load(npz, allow_pickle=False) as whole:
        _, firsts = np.unique(whole["labels"], return_index=True)
        firsts = np.sort(firsts)
        rows = np.concatenate([whole["offsets"][i] + np.arange(ROWS) for i in firsts])
        within = np.tile(np.arange(ROWS), len(firsts))
        prefill = within < np.repeat(whole["prefill_rows"][firsts], ROWS)
        return Trace.from_arrays(
            whole["experts"][rows],
            predicted=whole["predicted"][rows][..., :WIDTH],
            n_experts=128,
            request=np.repeat(np.arange(len(firsts)), ROWS),
            step=np.cumsum(~prefill | (within == 0)) - 1,
            position=within,
            phase=~prefill,
            token_id=whole["token_ids"][rows],
            name="sample",
            model="qwen3moe-24x128-930m",
            router="softmax",
            captured_by="slotwise",
            licence="Apache-2.0",
            source="sampled generations of a 930 M parameter model of Qwen3-MoE shape, trained on 31 M tokens of "
            "prose, code and manuals; one request per domain",
            predictor={"kind": "this layer's router on the previous layer's router input"},
            requests=[
                {"id": n, "label": str(whole["labels"][i]), "prompt_tokens": int(whole["prefill_rows"][i])}
                for n, i in enumerate(firsts)
            ],
        )


if __name__ == "__main__":
    cut(Path(sys.argv[1])).save(SAMPLE)
    sys.stdout.write(f"{SAMPLE}: {SAMPLE.stat().st_size:,} bytes\n")
