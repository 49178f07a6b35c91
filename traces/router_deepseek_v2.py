"""DeepSeek-V2's router: softmax in float32, if asked for only in the groups with the best single expert."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .routers import Router, Tensor


class DeepseekV2(Router):
    """The top-k comes unsorted."""

    name = "softmax"
    model_types = ("deepseek_v2",)
    ranked = False
    excludes = True

    def logits(self, module: Any) -> Callable[[Tensor], Tensor]:
        return in_float32(module)

    def scores(self, logits: Tensor, modules: list) -> Tensor:
        scores, first = logits.softmax(-1), modules[0]
        if first.topk_method == "greedy":
            return scores
        best = scores.unflatten(-1, (first.num_group, -1)).amax(-1)
        return in_best_groups(scores, best, first.topk_group)


def in_float32(module: Any) -> Callable[[Tensor], Tensor]:
    """Logits of a router in float32, whatever the model computes in."""
    from torch.nn.functional import linear  # pyright: ignore[reportMissingImports]

    weight = module.weight.float()
    return lambda x: linear(x.float(), weight)


def in_best_groups(scores: Tensor, best: Tensor, n_kept: int) -> Tensor:
    """`scores [..., n_experts]`, -inf outside the `n_kept` groups that are highest in `best [..., n_groups]`."""
    kept = best.new_zeros(best.shape).scatter_(-1, best.topk(n_kept, -1).indices, 1).bool()
    width = scores.shape[-1] // best.shape[-1]
    kept = kept[..., None].expand(*kept.shape, width).flatten(-2)
    return scores.masked_fill(~kept, float("-inf"))
