"""DeepSeek-V3's router: sigmoid scores plus a bias that only the choice sees, in the groups with the best two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .router_deepseek_v2 import in_best_groups, in_float32
from .routers import Router, Tensor


class DeepseekV3(Router):
    """The top-k comes unsorted; its order is that of the biased scores, not of the weights."""

    name = "sigmoid"
    model_types = ("deepseek_v3",)
    ranked = False
    excludes = True

    def logits(self, module: Any) -> Callable[[Tensor], Tensor]:
        return in_float32(module)

    def scores(self, logits: Tensor, modules: list) -> Tensor:
        import torch  # pyright: ignore[reportMissingImports]

        first = modules[0]
        bias = torch.stack([module.e_score_correction_bias.to(logits.device) for module in modules])
        scores = logits.sigmoid() + bias[:, None]
        best = scores.unflatten(-1, (first.num_group, -1)).topk(2, -1).values.sum(-1)
        return in_best_groups(scores, best, first.topk_group)
