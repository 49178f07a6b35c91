"""Routers that choose the largest probabilities: Mixtral, the Qwen family, OLMoE."""

from __future__ import annotations

from .routers import Router, Tensor


class Softmax(Router):
    """Softmax over all experts in float32, the top-k of it."""

    name = "softmax"
    model_types = ("mixtral", "olmoe", "qwen2_moe", "qwen3_moe", "qwen3_next")

    def scores(self, logits: Tensor, modules: list) -> Tensor:
        import torch  # pyright: ignore[reportMissingImports]

        return logits.softmax(-1, dtype=torch.float32)
