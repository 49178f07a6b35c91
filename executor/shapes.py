"""Shapes of experts in models that people run, by the models' config.json: a run then needs a name, no numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from .cold import RowLayout
from .errors import BadExecutor


class Shape(NamedTuple):
    """Of one expert: `hidden`, `inner` (the intermediate size), and what its row is stored and computed as.

    dense: weights that a token reads in each layer beside its experts: attention, router, shared experts.
    """

    hidden: int
    inner: int
    dtype: str = "bf16"
    activation: str = "swiglu"
    biases: bool = False
    dense: int = 0

    def dense_us(self, read_per_s: float) -> float:
        """Microseconds that a device reading so many bytes per second takes for the dense weights of a layer, in bf16.

        A token alone is bound by that; what attention reads of its cache is not in it.
        """
        return 1e6 * 2 * self.dense / read_per_s

    def sized(self, hidden: int | None, inner: int | None) -> Shape:
        """The same with other sizes, where they are given."""
        return self._replace(hidden=hidden or self.hidden, inner=inner or self.inner)

    def layouts(self, n_layers: int, dtype: str | None = None) -> list[RowLayout]:
        """The rows of each layer, all projections in `dtype` (default: the shape's own).

        `Q4_K_M` is the mix of llama.cpp (llama_tensor_get_type in llama-quant.cpp): Q4_K, but down in Q6_K in the first
        and last eighth of the layers and in every third between.
        """
        found = []
        for layer in range(n_layers):
            gate = down = dtype or self.dtype
            if gate == "Q4_K_M":
                eighth, last = n_layers // 8, 7 * n_layers // 8
                more = layer < eighth or layer >= last or (layer - eighth) % 3 == 2
                gate, down = "Q4_K", "Q6_K" if more else "Q4_K"
            found.append(RowLayout(self.hidden, self.inner, (gate, gate, down), self.activation, biases=self.biases))
        return found


def attention(hidden: int, heads: int, kv_heads: int, head: int) -> int:
    """Weights of the four projections."""
    return 2 * hidden * head * (heads + kv_heads)


_MXFP4 = ("MXFP4", "swiglu_clamped", True)
_LATENT = 2048 * 16 * 192 + 2048 * (512 + 64) + 512 * 16 * (128 + 128) + 16 * 128 * 2048  # of DeepSeek-V2-Lite
PRESETS = {  # name -> shape; a trace's model is matched without regard to case, dashes and dots
    "Qwen3-30B-A3B": Shape(2048, 768, dense=attention(2048, 32, 4, 128) + 2048 * 128),
    "Qwen3-235B-A22B": Shape(4096, 1536, dense=attention(4096, 64, 4, 128) + 4096 * 128),
    "OLMoE-1B-7B": Shape(2048, 1024, dense=attention(2048, 16, 16, 128) + 2048 * 64),
    "Mixtral-8x7B": Shape(4096, 14336, dense=attention(4096, 32, 8, 128) + 4096 * 8),
    "gpt-oss-20b": Shape(2880, 2880, *_MXFP4, dense=attention(2880, 64, 8, 64) + 2880 * 32),
    "gpt-oss-120b": Shape(2880, 2880, *_MXFP4, dense=attention(2880, 64, 8, 64) + 2880 * 128),
    "DeepSeek-V2-Lite": Shape(2048, 1408, dense=_LATENT + 3 * 2048 * 2 * 1408 + 2048 * 64),
    "tiny": Shape(128, 64, "f32"),  # no model: seconds on any CPU
}


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def shape_of(name: str) -> Shape:
    """The preset of that name. Raises BadExecutor with those there are."""
    for preset, shape in PRESETS.items():
        if _plain(preset) == _plain(name):
            return shape
    raise BadExecutor(f"no shape {name!r}; presets: {', '.join(PRESETS)}")


def shape_for(model: str) -> Shape | None:
    """The preset that a trace's model is, or None."""
    models = (preset for preset in PRESETS if preset != "tiny")
    return next((PRESETS[preset] for preset in models if _plain(preset) in _plain(model)), None)


def as_recorded(layouts: Sequence[RowLayout]) -> dict[str, Any]:
    """The rows of a run as its result states them: what differs between layers is None there and in `rows_by_layer`."""
    alike: dict[RowLayout, list[int]] = {}
    for layer, layout in enumerate(layouts):
        alike.setdefault(layout, []).append(layer)
    by_layer = [
        {
            "layers": _ranges(layers), "intermediate": layout.inner, "dtypes": list(layout.dtypes),
            "row_bytes": layout.row_bytes,
        }
        for layout, layers in alike.items()
    ]  # fmt: skip
    one = {
        name: by_layer[0][name] if all(each[name] == by_layer[0][name] for each in by_layer) else None
        for name in ("intermediate", "dtypes", "row_bytes")
    }
    return {"hidden": layouts[0].hidden, **one, "rows_by_layer": by_layer if len(by_layer) > 1 else None}


def _ranges(numbers: list[int]) -> str:
    """[0, 1, 2, 5] -> `0-2,5`."""
    parts: list[list[int]] = []
    for n in numbers:
        if parts and parts[-1][1] == n - 1:
            parts[-1][1] = n
        else:
            parts.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
