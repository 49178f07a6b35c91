"""How routers of Hugging Face models choose: one adapter an architecture (`router_*.py`), found by scan."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from .errors import BadTrace

Tensor = Any  # torch.Tensor, which is imported by functions only


class Router:
    """What one kind of router does with its input. Holds no weights; `module` is the model's own router of a layer.

    A plain one scores by its logits, the top-k of which are chosen in falling order.
    """

    name: ClassVar[str]  # what a trace's `router` says
    model_types: ClassVar[tuple[str, ...]]  # of the model's config
    ranked: ClassVar[bool] = True  # the chosen ids come in falling order of score
    excludes: ClassVar[bool] = False  # some experts cannot be chosen for a token: their score is -inf

    def logits(self, module: Any) -> Callable[[Tensor], Tensor]:
        """A function of router inputs `[n_tokens, hidden]` that gives `[n_tokens, n_experts]` by the model's operation.

        Weights are looked up here, once, since a lookup takes as long as the operation on one token.
        """
        from torch.nn.functional import linear  # pyright: ignore[reportMissingImports]

        weight, bias = module.weight, getattr(module, "bias", None)
        return lambda x: linear(x, weight, bias)

    def scores(self, logits: Tensor, modules: list[Any]) -> Tensor:
        """What the choice is made by, `[n_layers, n_tokens, n_experts]`; -inf for what cannot be chosen.

        `modules` are the routers of the layers.
        """
        return logits

    def chosen(self, output: Any, top_k: int) -> tuple[Tensor, Tensor, Tensor]:
        """(logits, weights, ids) in what the router returned; weights and ids are `[n_tokens, top_k]`."""
        logits, weights, ids = output
        return logits, weights, ids


@dataclass(frozen=True)
class Routers:
    """The routers of a model: `modules[i]` is that of MoE layer i, the model's layer `layers[i]`."""

    adapter: Router
    modules: list[Any]
    layers: tuple[int, ...]
    n_experts: int
    top_k: int
    row_bytes: tuple[int, ...] | None


def find_routers(model: Any) -> Routers:
    """Raises BadTrace if `model`, a causal language model of transformers, has no MoE layers or no adapter knows them.

    An MoE block is a module with `experts` and a `gate` or `router`.
    """
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    kind = getattr(config, "model_type", type(model).__name__)
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else getattr(model, "base_model", model)
    decoder_layers: Any = getattr(decoder, "layers", ())
    found = [
        (index, block.gate if hasattr(block, "gate") else block.router, block.experts)
        for index, layer in enumerate(decoder_layers)
        for block in layer.modules()
        if hasattr(block, "experts") and (hasattr(block, "gate") or hasattr(block, "router"))
    ]
    if not found:
        raise BadTrace(
            f"a model of type {kind!r} has no layer with `experts` beside a `gate` or `router`: there is no routing to "
            f"capture; types with an adapter: {', '.join(sorted(_adapters()))}"
        )
    layers, modules, experts = (list(each) for each in zip(*found, strict=True))
    if kind not in _adapters():
        raise BadTrace(
            f"no adapter for models of type {kind!r}: its {len(found)} MoE layers have a {type(modules[0]).__name__}, "
            "and nothing says how that scores experts; a file traces/router_<name>.py with a Router does. Types with "
            f"one: {', '.join(sorted(_adapters()))}"
        )
    n_experts = {int(module.weight.shape[0]) for module in modules}
    top_k = getattr(config, "num_experts_per_tok", None)
    if len(n_experts) > 1 or not top_k:
        raise BadTrace(f"a model of type {kind!r} with {sorted(n_experts)} experts and top_k={top_k}; layers are alike")
    return Routers(
        _adapters()[kind], modules, tuple(layers), min(n_experts), top_k, _row_bytes(experts, min(n_experts))
    )


def _row_bytes(experts: list[Any], n_experts: int) -> tuple[int, ...] | None:
    """Bytes of one expert by layer, as it lies in memory; None where a layer's are no multiple of their number."""
    total = [sum(p.numel() * p.element_size() for p in module.parameters()) for module in experts]
    if any(n_bytes % n_experts or not n_bytes for n_bytes in total):
        return None
    return tuple(n_bytes // n_experts for n_bytes in total)


@functools.cache
def _adapters() -> dict[str, Router]:
    """Model type -> adapter."""
    names = sorted(m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if m.name.startswith("router_"))
    modules = [importlib.import_module(f"{__package__}.{name}") for name in names]
    classes = [c for m in modules for c in vars(m).values() if isinstance(c, type) and c.__module__ == m.__name__]
    return {kind: c() for c in classes if issubclass(c, Router) for kind in c.model_types}
