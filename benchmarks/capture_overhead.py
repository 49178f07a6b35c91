"""What a capture costs: wall time of generation with capture against the same generation without.

    python benchmarks/capture_overhead.py FOLDER [--device cuda] [--dtype bfloat16] [--keep]

FOLDER holds a Hugging Face MoE model; without one, a model of random weights in OLMoE's shape is made (--layers,
--hidden, --experts, --top-k). Both sides take turns; medians. A row for decode at each batch size, one for --prompts
long prompts, and one for a single pass of one token: what it takes longer is what a file costs, whatever is in it. The
captured side opens the trace, records ids, weights and --width predictions (0: top-k of them), and closes it. CPU time
is that of the calling thread, all there is with --threads 1 on a CPU. Target: 5 % or less, of what takes a second.
"""

from __future__ import annotations

import importlib
import tempfile
from functools import partial
from pathlib import Path

from peers import bench, interleaved

import slotwise


def load(asked):
    """The model, in evaluation mode on its device."""
    transformers, torch = (importlib.import_module(name) for name in ("transformers", "torch"))
    dtype = getattr(torch, asked.dtype)
    if asked.folder:
        return transformers.AutoModelForCausalLM.from_pretrained(asked.folder, dtype=dtype).to(asked.device).eval()
    layers, hidden = (2, 64) if asked.tiny else (asked.layers, asked.hidden)
    config = transformers.OlmoeConfig(
        hidden_size=hidden,
        intermediate_size=hidden // 2,
        num_hidden_layers=layers,
        num_experts=asked.experts,
        num_experts_per_tok=asked.top_k,
        vocab_size=8192,
    )
    torch.manual_seed(0)
    with torch.device(asked.device):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def rows(asked):
    torch = importlib.import_module("torch")
    torch.set_num_threads(asked.threads)
    model = load(asked)
    new, prompt, prompts, runs = (4, 8, 2, 1) if asked.tiny else (asked.new, asked.prompt, asked.prompts, asked.runs)
    width = asked.width or None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.parquet"

        def generate(batch: int, n: int, given: int):
            torch.manual_seed(0)
            tokens = torch.randint(3, 8192, (batch, given), device=asked.device)
            model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=n,
                min_new_tokens=n,
                do_sample=False,
                pad_token_id=0,
            )
            if asked.device == "cuda":
                torch.cuda.synchronize()

        def alone(times: int, *sizes: int):
            for _ in range(times):
                generate(*sizes)

        def captured(times: int, *sizes: int):
            with slotwise.Capture(model, path, width=width, end_tokens=(), force=True):
                alone(times, *sizes)

        decode = [("decode", 1, batch, new, prompt) for batch in map(int, asked.batches.split(","))]
        for what, *sizes in [*decode, ("prompts", prompts, 1, 1, 16 * prompt), ("one token", 1, 1, 1, 1)]:
            taken = interleaved({"without": partial(alone, *sizes), "with": partial(captured, *sizes)}, runs)
            times, batch, n, given = sizes
            steps = times * batch * (n if n > 1 else given)
            yield {
                "what": what,
                "batch": batch,
                "new tokens": n,
                "prompt tokens": given,
                "generations": times,
                "without, tokens/s": steps / taken["without"].wall,
                "with, tokens/s": steps / taken["with"].wall,
                "ms more": round(1000 * (taken["with"].wall - taken["without"].wall), 2),
                "time with / without": round(taken["with"].wall / taken["without"].wall, 4),
                "cpu time with / without": round(taken["with"].cpu / taken["without"].cpu, 4),
            }


if __name__ == "__main__":
    bench(
        "capture-overhead",
        __doc__,
        rows,
        folder={"nargs": "?", "help": "a Hugging Face MoE model"},
        device="cpu",
        dtype="bfloat16",
        batches="1,8",
        new=128,
        prompt=64,
        prompts=64,
        width=0,
        layers=16,
        hidden=1024,
        experts=64,
        top_k=8,
        threads=1,
        runs=5,
    )
