"""Flags of engines that keep experts in VRAM, each with its source: read there, not run here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Flag:
    """One flag. flag: its text, with {slots} (in each layer), {mib} (of all pools) or {width} filled in.

    when: "" always, "ahead" where look-ahead is advised, "async" and "serial" as overlap is.
    """

    engine: str
    flag: str
    meaning: str
    source: str
    url: str
    when: str = ""


_CACHE = "https://github.com/thecodacus/llama.cpp/pull/5"
_ASYNC = "https://github.com/thecodacus/llama.cpp/pull/9"
FLAGS = (
    Flag("llama.cpp fork thecodacus (perf)", "--moe-cache-slots {slots}",
         "experts of each layer in VRAM, chosen once by --moe-cache-profile and kept; all of them fit, or none",
         "thecodacus/llama.cpp pull request 5", _CACHE),
    Flag("llama.cpp fork thecodacus (perf)", "--sched-async-cpu",
         "the CPU's experts beside the GPU's: on by default, so this only says it (llama-bench: --sched-async-cpu 1)",
         "thecodacus/llama.cpp pull request 9", _ASYNC, "async"),
    Flag("llama.cpp fork thecodacus (perf)", "--no-sched-async-cpu", "one chain after the other",
         "thecodacus/llama.cpp pull request 9", _ASYNC, "serial"),
    Flag("llama.cpp fork GenerelSchwerz (moe-cache)", "--moe-expert-cache-size {slots}",
         "slots of each layer, by frequency and recency; all of them on the first GPU",
         "GenerelSchwerz/llama.cpp issue 90", "https://github.com/GenerelSchwerz/llama.cpp/issues/90"),
    Flag("llama.cpp fork ddvnguyen", "--moe-lookahead {width}",
         "experts predicted for the next layer; needs --moe-expert-cache-size above 0; an experiment, not merged there",
         "ddvnguyen/llama.cpp, its docs/moe-lookahead-design.md and pull request 127",
         "https://github.com/ddvnguyen/llama.cpp/pull/127", "ahead"),
    Flag("llama.cpp pull request csantiago78", "--moe-expert-cache {slots}",
         "slots of each layer on the host, lru; --moe-expert-cache-inserts caps uploads a layer and step",
         "ggml-org/llama.cpp pull request 27861 (open)", "https://github.com/ggml-org/llama.cpp/pull/27861"),
    Flag("llama.cpp", "--moe-cache-mib {mib}",
         "one lru cache of so many MiB for all layers; misses are uploaded first; steps of up to 32 tokens",
         "ggml-org/llama.cpp pull request 29887", "https://github.com/ggml-org/llama.cpp/pull/29887"),
    Flag("vLLM", "--moe-expert-cache-size {slots}", "experts of each layer on the GPU, lfru; misses are uploaded",
         "vllm-project/vllm pull request 37190 (open)", "https://github.com/vllm-project/vllm/pull/37190"),
    Flag("KTransformers (SGLang)", "--kt-num-gpu-experts {slots}",
         "experts of each MoE layer on the GPU, placed by --kt-expert-placement-strategy frequency and its statistics",
         "kvcache-ai/ktransformers doc/en/kt-kernel/experts-sched-Tutorial.md",
         "https://github.com/kvcache-ai/ktransformers/blob/main/doc/en/kt-kernel/experts-sched-Tutorial.md"),
)  # fmt: skip


def flags_for(*, slots: int, pool_bytes: int, width: int, overlap: str) -> list[dict[str, Any]]:
    """The flags of an answer. slots: in each layer, the same in all; pool_bytes: of all pools."""
    wanted = {"", "async" if overlap == "on" else "serial", *(["ahead"] if width else [])}
    filled = {"slots": slots, "mib": pool_bytes >> 20, "width": width}
    return [
        {"engine": each.engine, "flag": each.flag.format(**filled), "meaning": each.meaning, "source": each.source,
         "url": each.url, "run_here": False}
        for each in FLAGS
        if each.when in wanted
    ]  # fmt: skip
