"""Forward passes on the device: what the hooks keep of them, worked up many at a time in few, large operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .errors import BadTrace
from .routers import Routers, Tensor

FEW = 64  # tokens: shorter passes wait for each other; in a longer one predictions are ranked at once, to save room


class Pass:
    """One forward pass: what the decoder was called with, and per MoE layer what its router returned."""

    def __init__(self, number: int, n_layers: int, horizons: list[int], call: dict[str, Any]) -> None:
        self.number, self.call = number, call
        cache = next((call[name] for name in ("cache", "past_key_values") if call.get(name) is not None), None)
        self.cache = cache
        self.past = 0 if cache is None else cache.get_seq_length()  # before the pass: the cache grows with it
        self.logits: list[Any] = [None] * n_layers
        self.ids: list[Any] = [None] * n_layers
        self.weights: list[Any] = [None] * n_layers
        self.inputs: list[Any] = [None] * n_layers  # of routers in a short pass: predictions come of them later
        self.ahead: dict[int, list[Any]] = {horizon: [] for horizon in horizons}  # ids, of a long pass

    @cached_property
    def shape(self) -> tuple[int, int]:
        """(sequences, tokens of each)."""
        tokens = self.call.get("input_ids")
        return tuple((self.call["inputs_embeds"] if tokens is None else tokens).shape[:2])

    @property
    def n_tokens(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def opens(self) -> bool:
        """Is it the first of its sequences? Several tokens each count as that: such passes do not wait."""
        return self.shape[1] > 1 or not self.past

    def columns(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Token ids, positions and mask, `[sequences, tokens]` each; None where they are not given."""
        (batch, n), tokens = self.shape, self.call.get("input_ids")
        position, mask = self.call.get("position_ids"), self.call.get("attention_mask")
        if mask is not None and getattr(mask, "ndim", 0) != 2:
            if batch > 1:
                raise BadTrace("an attention_mask that is not [batch, tokens] does not say which tokens are padding")
            mask = None
        if position is None and mask is not None:
            position = mask.cumsum(-1)[:, -n:] - 1
        elif position is not None:  # of several axes, for models that see images too, those of text are alike
            position = (position[0] if position.ndim == 3 else position).expand(batch, n)
        return tokens, position, None if mask is None else mask[:, -n:]


@dataclass(frozen=True, eq=False)
class Fetched:
    """Passes of one shape on their way to the host; `tensors` are complete when `event`, if there is one, has come."""

    number: int  # of the last pass
    shape: tuple[int, int, int]  # passes, sequences, tokens of each
    past: list[Any]
    tensors: tuple[Tensor | None, ...]
    event: Any

    def arrays(self) -> tuple[Any, ...]:
        """What `RowWriter.write` takes. Waits for the copies."""
        if self.event:
            self.event.synchronize()
        past = np.array([int(past) for past in self.past])
        return self.number, self.shape, past, *(None if t is None else t.numpy() for t in self.tensors)


def best(found: Routers, logits: Tensor, modules: list[Any], width: int) -> Tensor:
    """Ids by falling score, int16 `[n_layers, n_tokens, width]`, of logits `[n_layers, n_tokens, n_experts]`."""
    import torch  # pyright: ignore[reportMissingImports]

    scores, ids = found.adapter.scores(logits, modules).topk(width, -1)
    return ids.to(torch.int16).masked_fill_(scores == float("-inf"), -1)


def fetch(
    found: Routers, logits_of: list[Callable[[Tensor], Tensor]], group: list[Pass], horizons: list[int], width: int
) -> Fetched:
    """Lays out passes of one shape and starts their copies to the host; on a GPU nobody waits for them here."""
    import torch  # pyright: ignore[reportMissingImports]

    batch, n = group[0].shape
    with torch.no_grad():
        table = _table(found, logits_of, group, horizons, width)
        if table.shape[1] != len(group) * batch * n:
            raise BadTrace(f"routers saw {table.shape[1]} tokens of {len(group)} passes of {batch} x {n}; all must be")
        columns = [
            None if any(t is None for t in each) else torch.stack(each).view(len(group), batch, n)
            for each in zip(*(one.columns() for one in group), strict=True)
        ]
        tensors = tuple(None if t is None else t.to("cpu", non_blocking=True) for t in (table, *columns))
    event = None
    if table.is_cuda:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(table.device))
    return Fetched(group[-1].number, (len(group), batch, n), [one.past for one in group], tensors, event)


def _table(
    found: Routers, logits_of: list[Callable[[Tensor], Tensor]], group: list[Pass], horizons: list[int], width: int
) -> Tensor:
    """All rows, int16 `[n_layers, passes * tokens, ids | weights as float16 | predictions by horizon]`."""
    import torch  # pyright: ignore[reportMissingImports]

    n, k, home = len(found.modules), found.top_k, group[0].ids[0].device

    def joined(layers: list[list[Tensor]]) -> Tensor:
        """Tensors of [layer][pass] as one `[n_layers, n_tokens, ...]`."""
        flat = torch.cat([t.to(home) for layer in layers for t in layer])
        return flat.view(len(layers), -1, flat.shape[-1])

    ids = joined([[one.ids[layer] for one in group] for layer in range(n)])
    weights = joined([[one.weights[layer] for one in group] for layer in range(n)])
    if not found.adapter.ranked:
        logits = joined([[one.logits[layer] for one in group] for layer in range(n)])
        scores = found.adapter.scores(logits, found.modules).gather(-1, ids)
        order = scores.argsort(dim=-1, descending=True, stable=True)
        ids, weights = ids.gather(-1, order), weights.gather(-1, order)
    table = torch.full((n, ids.shape[1], 2 * k + len(horizons) * width), -1, dtype=torch.int16, device=home)
    table[..., :k] = ids
    table[..., k : 2 * k] = weights.to(torch.float16).view(torch.int16)
    long = group[0].n_tokens > FEW
    inputs = [torch.cat([one.inputs[layer] for one in group]) for layer in range(0 if long or not horizons else n)]
    for at, horizon in enumerate(horizons):
        begin = 2 * k + at * width
        if long:
            ahead = torch.cat([t.to(home) for t in group[0].ahead[horizon]])
        else:
            places = [found.modules[target].weight.device for target in range(horizon, n)]
            logits = [
                logits_of[layer + horizon](x.to(place)).to(home)
                for layer, (x, place) in enumerate(zip(inputs, places, strict=False))
            ]
            ahead = best(found, torch.stack(logits), found.modules[horizon:], width)
        table[horizon:, :, begin : begin + width] = ahead
    return table
