"""Capture: forward hooks that record what the routers of a running model choose, and what they would have predicted."""

from __future__ import annotations

import datetime
import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .capture_rows import RowWriter
from .errors import BadTrace, CaptureFailed
from .meta import Meta, check_whole
from .routers import Routers, Tensor, find_routers

FEW = 64  # rows of a step up to which predictions of all layers are ranked at once, in fewer and larger operations


class Capture:
    """Records the routing of every forward pass of `model` inside a `with` block; the trace is at `path` afterwards.

        with slotwise.Capture(model, "T.parquet"):
            model.generate(**inputs, max_new_tokens=64)

    `model` is a causal language model of transformers, in evaluation mode. A forward pass is a step. A pass over an
    empty cache opens a request for each sequence of the batch; later passes over the cache go on with them, by their
    place in the batch. A pass of one token a sequence over a filled cache is decode, any other one is prefill.
    Masked (padding) tokens are not recorded, nor are sequences that have ended: in a batch those are fed one of
    `end_tokens` (ids; default: those of the model's generation config) and padding after it.

    `width` predictions a token are recorded for each of `horizons`: the ids that layer l's router scores highest on the
    router input of layer l - horizon (default width: the model's top_k; 0: none). `check` also holds each router's
    choice against what is predicted from its own input: `recall` must be 1.0, else leaving the block raises
    CaptureFailed.
    `labels` name the requests in order; `source`, `model_name`, `revision`, `licence` go into the trace's record.
    `advance(n_rows)` is called after each step.

    Rows go to `path` + ".part" step by step; leaving the block, for whatever reason, turns the complete steps into
    `path`. After a hard kill `slotwise trace import` does. Tokens and logits are those of a run without capture; on a
    GPU a step is fetched while the next one runs. Raises BadTrace for a model that no adapter knows, for files that
    exist (unless `force`), and for passes that it cannot tell apart.
    """

    def __init__(
        self,
        model: Any,
        path: str | Path,
        *,
        width: int | None = None,
        horizons: Sequence[int] = (1,),
        check: bool = False,
        end_tokens: Sequence[int] | None = None,
        labels: Sequence[str] = (),
        model_name: str | None = None,
        revision: str | None = None,
        source: str | None = None,
        licence: str | None = None,
        force: bool = False,
        advance: Callable[[int], None] | None = None,
    ) -> None:
        if getattr(model, "training", False):
            raise BadTrace("the model is in training mode, where routers may draw; call model.eval() first")
        self._routers = found = find_routers(model)
        where, n = "capture", len(found.modules)
        width = found.top_k if width is None else check_whole(where, "width", width, 0, found.n_experts)
        self._ahead = sorted({check_whole(where, "horizon", h, 1, max(n - 1, 1)) for h in horizons}) if width else []
        if self._ahead and n == 1:
            raise BadTrace("the model has one MoE layer, and nothing comes before it to predict from; ask for width 0")
        self.width, self.check = width, check
        self._decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
        self._meta = _record(model, found, width if self._ahead else 0, self._ahead)
        given = {"model": model_name, "revision": revision, "source": source, "licence": licence}
        self._meta = replace(self._meta, **{name: value for name, value in given.items() if value is not None})
        ends = _end_tokens(model) if end_tokens is None else tuple(end_tokens)
        self._rows = RowWriter(Path(path), self._meta, dict.fromkeys(self._ahead, width), labels, ends, force)
        self._advance = advance or (lambda rows: None)
        self._hooks: list[Any] = []
        self._pending: _Fetched | None = None
        self._wrong: Tensor = 0
        self._compared = 0
        self._call: dict[str, Any] = {}
        self._kept = _Kept(n, self._ahead)

    @property
    def n_steps(self) -> int:
        """Steps recorded so far; on a GPU the last one may be under way."""
        return self._rows.n_steps

    @property
    def n_tokens(self) -> int:
        """Rows recorded so far."""
        return self._rows.n_rows

    @property
    def recall(self) -> float | None:
        """With `check`, the share of all choices that are among the top_k predicted from the same input; else None."""
        return 1 - int(self._wrong) / self._compared if self._compared else None

    def __enter__(self) -> Capture:
        self._rows.open()
        self._hooks = [
            self._decoder.register_forward_pre_hook(self._before, with_kwargs=True),
            self._decoder.register_forward_hook(self._after),
            *(
                module.register_forward_hook(lambda module, args, output, layer=layer: self._route(layer, args, output))
                for layer, module in enumerate(self._routers.modules)
            ),
        ]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        with (
            suppress(RuntimeError) if kind else nullcontext()
        ):  # of a device that broke: the step it was to give is lost
            self._drain()
        self._rows.close(complete=kind is None)
        if kind is None and self.check and self.recall != 1.0:
            raise CaptureFailed(
                f"{self._rows.path}: {int(self._wrong)} of {self._compared} choices are not what the router computes "
                "from its own input; do not trust the predictions (is the model changed by a library?)"
            )

    # -- hooks, in the order in which a pass meets them; none of them waits for a device ------------------------------

    def _before(self, module: Any, args: tuple, call: dict[str, Any]) -> None:
        self._call = {**inspect.signature(module.forward).bind_partial(*args).arguments, **call} if args else call
        caches = (self._call.get(name) for name in ("cache", "past_key_values"))  # the newer and the older name
        cache = next((each for each in caches if each is not None), None)
        self._call["past"] = 0 if cache is None else cache.get_seq_length()
        self._kept = _Kept(len(self._routers.modules), self._ahead)

    def _route(self, layer: int, args: tuple, output: Any) -> None:
        import torch  # pyright: ignore[reportMissingImports]

        kept, found = self._kept, self._routers
        with torch.no_grad():
            logits, weights, ids = found.adapter.chosen(output, found.top_k)
            kept.weights[layer], kept.ids[layer] = weights, ids
            if not found.adapter.ranked:
                kept.logits[layer] = logits
            x = args[0].reshape(-1, args[0].shape[-1])
            if self.check:
                self._compare(layer, x, ids)
            for horizon in self._ahead:
                if layer + horizon < len(found.modules):
                    module = found.modules[layer + horizon]
                    ahead = found.adapter.logits(module, x.to(module.weight.device))
                    kept.ahead[horizon].append(ahead if len(x) <= FEW else self._best(ahead[None], [module]))

    def _after(self, module: Any, args: tuple, output: Any) -> None:
        import torch  # pyright: ignore[reportMissingImports]

        missing = [self._routers.layers[i] for i, ids in enumerate(self._kept.ids) if ids is None]
        if missing:
            raise BadTrace(
                f"the routers of layers {missing} were not called in a forward pass: something replaces them (a "
                "kernel, a compiled model); turn it off for the capture"
            )
        with torch.no_grad():
            now = self._fetched(self._table())
        self._drain()
        self._pending = now
        if not now.late:
            self._drain()

    # -- on the device ------------------------------------------------------------------------------------------------

    def _best(self, logits: Tensor, modules: list[Any]) -> Tensor:
        """Ids by falling score, int16 `[n_layers, n_tokens, width]` of logits `[n_layers, n_tokens, n_experts]`."""
        import torch  # pyright: ignore[reportMissingImports]

        scores, ids = self._routers.adapter.scores(logits, modules).topk(self.width, -1)
        return ids.to(torch.int16).masked_fill(scores == float("-inf"), -1)

    def _compare(self, layer: int, x: Tensor, ids: Tensor) -> None:
        """Counts the choices that this layer's router, applied to its own input, would not have predicted."""
        adapter, module = self._routers.adapter, self._routers.modules[layer]
        scores = adapter.scores(adapter.logits(module, x)[None], [module])[0]
        chosen = scores.gather(-1, ids).sort(-1, descending=True).values
        self._wrong = self._wrong + (chosen != scores.topk(self._routers.top_k, -1).values).sum()
        self._compared += ids.shape[0] * ids.shape[1]

    def _table(self) -> Tensor:
        """Everything of the step, int16 `[n_layers, n_tokens, ids | weights as float16 | predictions by horizon]`."""
        import torch  # pyright: ignore[reportMissingImports]

        kept, found = self._kept, self._routers
        home = kept.ids[0].device
        ids, weights = (torch.stack([t.to(home) for t in each]) for each in (kept.ids, kept.weights))
        if not found.adapter.ranked:
            scores = found.adapter.scores(torch.stack([t.to(home) for t in kept.logits]), found.modules)
            order = scores.gather(-1, ids).argsort(dim=-1, descending=True, stable=True)
            ids, weights = ids.gather(-1, order), weights.gather(-1, order)
        n, k = len(found.modules), found.top_k
        table = torch.full((n, ids.shape[1], 2 * k + len(self._ahead) * self.width), -1, dtype=torch.int16, device=home)
        table[..., :k] = ids
        table[..., k : 2 * k] = weights.to(torch.float16).view(torch.int16)
        for at, horizon in enumerate(self._ahead):
            ahead = [t.to(home) for t in kept.ahead[horizon]]
            few = ids.shape[1] <= FEW
            best = self._best(torch.stack(ahead), found.modules[horizon:]) if few else torch.cat(ahead)
            begin = 2 * k + at * self.width
            table[horizon:, :, begin : begin + self.width] = best
        return table

    def _fetched(self, table: Tensor) -> _Fetched:
        """Starts the copies to the host; on a GPU nobody waits for them here."""
        import torch  # pyright: ignore[reportMissingImports]

        call = self._call
        tokens = call.get("input_ids")
        batch, n = (tokens if tokens is not None else call["inputs_embeds"]).shape[:2]
        if table.shape[1] != batch * n:
            raise BadTrace(f"the routers saw {table.shape[1]} tokens of a pass of {batch} x {n}; every one is needed")
        mask, position = call.get("attention_mask"), call.get("position_ids")
        if mask is not None and getattr(mask, "ndim", 0) != 2:
            if batch > 1:
                raise BadTrace("an attention_mask that is not [batch, tokens] does not say which tokens are padding")
            mask = None
        if position is None and mask is not None:
            position = mask.cumsum(-1)[:, -n:] - 1
        elif position is not None and position.ndim == 3:  # one of each axis of an image; of text they are alike
            position = position[0]
        mask = None if mask is None else mask[:, -n:]
        columns = [
            None if t is None else t.detach().to("cpu", non_blocking=True) for t in (table, tokens, position, mask)
        ]
        event = None
        if table.is_cuda:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(table.device))
        return _Fetched((batch, n), call["past"], columns, event)

    # -- on the host --------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Writes the step whose copies were started before."""
        step, self._pending = self._pending, None
        if step is None:
            return
        if step.late:
            step.late.synchronize()
        arrays: list[Any] = [None if t is None else t.numpy() for t in step.columns]
        self._advance(self._rows.write(step.shape, int(step.past), *arrays))


class _Kept:
    """What the hooks of one pass have seen: tensors by layer, predictions by horizon in the order of layers."""

    def __init__(self, n_layers: int, horizons: list[int]) -> None:
        self.ids: list[Any] = [None] * n_layers
        self.weights: list[Any] = [None] * n_layers
        self.logits: list[Any] = [None] * n_layers
        self.ahead: dict[int, list[Any]] = {horizon: [] for horizon in horizons}


@dataclass(frozen=True, eq=False)
class _Fetched:
    """A step on its way to the host: (batch, tokens), tokens cached before, and what is copied until `late` is done."""

    shape: tuple[int, int]
    past: Any
    columns: list[Any]
    late: Any


def _record(model: Any, found: Routers, width: int, horizons: list[int]) -> Meta:
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]

    config = model.config
    predictor = {"kind": "this layer's router on the router input of the layer `horizon` before", "width": width}
    return Meta(
        n_layers=len(found.modules),
        n_experts=found.n_experts,
        top_k=found.top_k,
        model=Path(getattr(config, "_name_or_path", "") or getattr(config, "model_type", "")).name,
        revision=getattr(config, "_commit_hash", None),
        model_layers=found.layers,
        row_bytes=found.row_bytes,
        router=found.adapter.name,
        predictor={**predictor, "horizon": horizons[0]} if width else None,
        captured_by=f"slotwise with transformers {transformers.__version__}, torch {torch.__version__} "
        f"({found.modules[0].weight.device}, {str(model.dtype).removeprefix('torch.')})",
        captured_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def _end_tokens(model: Any) -> tuple[int, ...]:
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return tuple(ends) if isinstance(ends, list | tuple) else () if ends is None else (int(ends),)
