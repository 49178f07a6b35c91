"""Forward passes on the device: what the hooks keep of them, worked up many at a time in few, large operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .check import id_dtype
from .errors import BadTrace
from .routers import Routers, Tensor

MOST = 128  # passes that wait for each other at most
ROOM = 1 << 26  # bytes that they hold at most; in a longer pass predictions are ranked layer by layer, to save room


class Pass:
    """One forward pass: what the decoder was told of its tokens, and per MoE layer what its router got and returned.

    Of that only references are kept until the pass has ended, if it `waits` for others to be worked up with; and none
    of its cache, which is larger than all of it.
    """

    def __init__(self, number: int, n_layers: int, token_bytes: int, past: Any, call: dict[str, Any]) -> None:
        self.number, self.past = number, past
        self.tokens, self.position, mask = call.get("input_ids"), call.get("position_ids"), call.get("attention_mask")
        batch, n = self.shape = (*(call["inputs_embeds"] if self.tokens is None else self.tokens).shape[:2],)
        if mask is not None and getattr(mask, "ndim", 0) != 2:
            if batch > 1:
                raise BadTrace("an attention_mask that is not [batch, tokens] does not say which tokens are padding")
            mask = None
        self.mask = mask
        self.kind = (batch, n, self.tokens is None, self.position is None, mask is None)  # alike: worked up together
        self.n_bytes = batch * n * token_bytes
        self.waits = self.n_bytes <= ROOM
        self.seen: list[Any] = [None] * n_layers  # (router input, output); the input is None in one that does not wait
        self.ahead: dict[int, list[Any]] = {}  # horizon -> ids by layer, of one that does not wait

    def columns(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Token ids, positions and mask, `[sequences, tokens]` each; None where they are not given."""
        (batch, n), position, mask = self.shape, self.position, self.mask
        if position is None and mask is not None:
            position = mask.cumsum(-1)[:, -n:] - 1
        elif position is not None:  # of several axes, for models that see images too, those of text are alike
            position = position[0] if position.ndim == 3 else position
            position = position if len(position) == batch else position.expand(batch, n)
        return self.tokens, position, None if mask is None else mask[:, -n:]


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
    """Ids by falling score, `[n_layers, n_tokens, width]`, of logits `[n_layers, n_tokens, n_experts]`; -1: none."""
    scores, ids = found.adapter.scores(logits, modules).topk(width, -1)
    return ids.masked_fill_(scores == float("-inf"), -1) if found.adapter.excludes else ids


def fetch(
    found: Routers, logits_of: list[Callable[[Tensor], Tensor]], group: list[Pass], horizons: list[int], width: int
) -> Fetched:
    """Lays out passes of one kind and starts their copies to the host; on a GPU nobody waits for them here."""
    import torch  # pyright: ignore[reportMissingImports]

    batch, n = group[0].shape
    with torch.no_grad():
        table = _table(found, logits_of, group, horizons, width)
        columns = [
            None if each[0] is None else torch.stack(each).view(len(group), batch, n)
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
    """All rows as bytes of the file, uint8 `[passes * tokens, ids | weights as float16 | predictions by horizon]`."""
    import torch  # pyright: ignore[reportMissingImports]

    n, adapter = len(found.modules), found.adapter
    places = [module.weight.device for module in found.modules]
    home, spread = places[0], len(set(places)) > 1
    kind = torch.uint8 if id_dtype(found.n_experts).itemsize == 1 else torch.int16

    def joined(tensors: Iterable[Tensor]) -> Tensor:
        """Tensors of each layer, and in it of each pass, as one `[n_layers, n_tokens, ...]`."""
        flat = torch.cat([t.to(home) for t in tensors] if spread else list(tensors))
        return flat.view(n, -1, flat.shape[-1])

    def laid_out(by_layer: Tensor) -> Tensor:
        by_row = by_layer.transpose(0, 1)
        return by_row.reshape(len(by_row), -1).view(torch.uint8)

    chosen = [adapter.chosen(one.seen[layer][1], found.top_k) for layer in range(n) for one in group]
    ids, weights = joined(each[2] for each in chosen), joined(each[1] for each in chosen)
    n_tokens, (batch, tokens) = ids.shape[1], group[0].shape
    if n_tokens != len(group) * batch * tokens:
        raise BadTrace(f"routers saw {n_tokens} tokens of {len(group)} passes of {batch} x {tokens}; all must be")
    if not adapter.ranked:
        scores = adapter.scores(joined(each[0] for each in chosen), found.modules).gather(-1, ids)
        order = scores.argsort(dim=-1, descending=True, stable=True)
        ids, weights = ids.gather(-1, order), weights.gather(-1, order)
    table = [laid_out(ids.to(kind)), laid_out(weights.to(torch.float16))]
    waits = group[0].waits
    inputs = [torch.cat([one.seen[layer][0] for one in group]) for layer in range(n if waits and horizons else 0)]
    for horizon in horizons:
        if waits:
            logits = [
                logits_of[at + horizon](inputs[at].flatten(0, -2).to(places[at + horizon])) for at in range(n - horizon)
            ]
            ahead = best(found, torch.stack([each.to(home) for each in logits]), found.modules[horizon:], width)
        else:
            ahead = torch.cat([t.to(home) for t in group[0].ahead[horizon]])
        none = torch.full((horizon, n_tokens, width), -1, dtype=kind, device=home)
        table.append(laid_out(torch.cat([none, ahead.to(kind)])))
    return torch.cat(table, 1)
