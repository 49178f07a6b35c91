"""Jamba's router: the largest probabilities; up to transformers 5.17 it returned logits, and its block chose."""

from __future__ import annotations

from typing import Any

from .router_softmax import Softmax
from .routers import Tensor


class Jamba(Softmax):
    """As Softmax; logits alone are followed by the same operations as in the model's block."""

    model_types = ("jamba",)

    def chosen(self, output: Any, top_k: int) -> tuple[Tensor, Tensor, Tensor]:
        if isinstance(output, tuple):
            return super().chosen(output, top_k)
        weights, ids = self.scores(output, []).topk(top_k, -1)
        return output, weights.to(output.dtype), ids
