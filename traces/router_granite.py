"""Granite-MoE's router: the largest logits in float32, returned in an order that changed with transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .routers import Router, Tensor


class Granite(Router):
    """The largest logits, cast to float32."""

    name = "topk-softmax"
    model_types = ("granitemoe",)

    def logits(self, module: Any) -> Callable[[Tensor], Tensor]:
        plain = super().logits(module)
        return lambda x: plain(x).float()

    def chosen(self, output: Any, top_k: int) -> tuple[Tensor, Tensor, Tensor]:
        first, weights, last = output
        return (last, weights, first) if last.is_floating_point() else (first, weights, last)
