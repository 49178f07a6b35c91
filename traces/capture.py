"""Capture: forward hooks that record what the routers of a running model choose, and what they would have predicted."""

from __future__ import annotations

import datetime
import inspect
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from .capture_passes import MOST, ROOM, Fetched, Pass, best, fetch
from .capture_rows import RowWriter
from .errors import BadTrace, CaptureFailed
from .meta import Meta, check_whole, checked
from .routers import Routers, Tensor, find_routers

SOON_S = 1.0  # seconds after which what the hooks have kept goes to the file, however little it is


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
    `advance(n_rows)` is called as rows are written.

    Rows go to `path` + ".part" as the model runs, once a second or sooner; leaving the block, for whatever reason,
    turns all complete steps into `path`. After a hard kill `slotwise trace import` makes a trace of those written.
    Tokens and logits are those of a run without capture, and no hook waits for a GPU. Raises BadTrace for a model that
    no adapter knows, for files that exist (unless `force`), and for passes that it cannot tell apart: those of two
    threads at once, and beams, which change places in the batch.
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
        given = {"model": model_name, "revision": revision, "source": source, "licence": licence}
        meta = replace(
            _record(model, found, width if self._ahead else 0, self._ahead),
            **{name: value for name, value in given.items() if value is not None},
        )
        ends = _end_tokens(model) if end_tokens is None else tuple(end_tokens)
        self._rows = RowWriter(Path(path), checked(meta, where), dict.fromkeys(self._ahead, width), labels, ends, force)
        self._advance = advance or (lambda rows: None)
        self._hooks: list[Any] = []
        self._n_passes = 0
        self._pass: Any = None  # the one under way
        self._group: list[Pass] = []
        self._fetched: Fetched | None = None
        self._running: int | None = None  # the thread whose forward pass is under way
        self._watched: Any = lambda: None  # the cache of the last pass, held weakly
        self._wrong: Tensor = 0
        self._compared = 0

    @property
    def n_steps(self) -> int:
        """Steps written so far; the last ones may be under way."""
        return self._rows.n_steps

    @property
    def n_tokens(self) -> int:
        """Rows written so far."""
        return self._rows.n_rows

    @property
    def recall(self) -> float | None:
        """With `check`, the share of all choices that are among the top_k predicted from the same input; else None."""
        return 1 - int(self._wrong) / self._compared if self._compared else None

    def __enter__(self) -> Capture:
        import torch  # pyright: ignore[reportMissingImports]

        if self._hooks or self._n_passes:
            raise BadTrace("a Capture records one block; make another one for the next")
        self._rows.open()
        self._torch, found = torch, self._routers
        self._worked_up = time.monotonic()
        with torch.no_grad():
            self._logits = [found.adapter.logits(module) for module in found.modules]
        self._devices = [module.weight.device for module in found.modules]
        self._spread = len(set(self._devices)) > 1
        self._token_bytes = sum(
            m.weight.shape[1] * m.weight.element_size() + 4 * found.n_experts + 12 * found.top_k for m in found.modules
        )
        self._hooks = [
            self._decoder.register_forward_pre_hook(self._before, with_kwargs=True),
            self._decoder.register_forward_hook(self._after),
            *(
                module.register_forward_hook(partial(self._route, layer))
                for layer, module in enumerate(self._routers.modules)
            ),
        ]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        self._watch(None)
        try:  # on the way out of an error the device may answer no more: what it had not given is lost
            with suppress(RuntimeError) if kind else nullcontext():
                self._work_up()
                self._work_up()
        finally:
            self._rows.close(complete=kind is None)
        if kind is None and self.check and self.recall != 1.0:
            raise CaptureFailed(
                f"{self._rows.path}: {int(self._wrong)} of {self._compared} choices are not what the router computes "
                "from its own input; do not trust the predictions (is the model changed by a library?)"
            )

    # -- hooks, in the order in which a pass meets them; none of them waits for a device ------------------------------

    def _before(self, module: Any, args: tuple, call: dict[str, Any]) -> None:
        given = {**inspect.signature(module.forward).bind_partial(*args).arguments, **call} if args else call
        here = threading.get_ident()
        if self._running not in (None, here):
            raise BadTrace(
                "two threads call the model at once: whose tokens these are is not known; capture one by one"
            )
        self._running = here
        cache = given.get("cache")
        cache = given.get("past_key_values") if cache is None else cache
        past = 0 if cache is None else cache.get_seq_length()  # before the pass: the cache grows with it
        self._n_passes += 1
        self._pass = Pass(self._n_passes, len(self._routers.modules), self._token_bytes, past, given)
        if cache is not self._watched():
            self._watch(cache)

    def _watch(self, cache: Any) -> None:
        """Refuses the change of places in `cache`, and lets go of the cache before it."""
        if last := self._watched():
            del last.reorder_cache
        self._watched = lambda: None
        if hasattr(cache, "reorder_cache"):
            cache.reorder_cache = _beams
            self._watched = weakref.ref(cache)

    def _route(self, layer: int, module: Any, args: tuple, output: Any) -> None:
        now = self._pass
        if self.check or not now.waits or self._torch.is_grad_enabled():
            with self._torch.no_grad():
                now.seen[layer] = self._see(layer, args[0].detach(), output)
        else:  # the least that can be done while the model goes on
            now.seen[layer] = args[0], output

    def _see(self, layer: int, x: Tensor, output: Any) -> tuple[Tensor | None, Any]:
        """What is kept of the router: nothing that holds a graph of gradients, and no input of a pass that is long."""
        now, found = self._pass, self._routers
        output = tuple(each.detach() for each in output) if isinstance(output, tuple) else output.detach()
        x = x.flatten(0, -2)
        if self.check:
            self._compare(layer, x, found.adapter.chosen(output, found.top_k)[2])
        if now.waits:
            return x, output
        for horizon in self._ahead:
            if (target := layer + horizon) < len(self._logits):
                logits = self._logits[target](x.to(self._devices[target]) if self._spread else x)
                ids = best(found, logits[None], [found.modules[target]], self.width).to(self._torch.int16)
                now.ahead.setdefault(horizon, []).append(ids)
        return None, output

    def _after(self, module: Any, args: tuple, output: Any) -> None:
        now, group = self._pass, self._group
        if not all(now.seen):
            missing = [self._routers.layers[i] for i, seen in enumerate(now.seen) if not seen]
            raise BadTrace(
                f"the routers of layers {missing} were not called in a forward pass: something replaces them (a "
                "kernel, a compiled model); turn it off for the capture"
            )
        self._running = None
        if group and now.kind != group[0].kind:
            self._work_up()
        self._group.append(now)
        full = len(self._group) >= MOST or len(self._group) * now.n_bytes >= ROOM
        if full or time.monotonic() - self._worked_up > SOON_S:
            self._work_up()

    def _compare(self, layer: int, x: Tensor, ids: Tensor) -> None:
        """Counts the choices that this layer's router, applied to its own input, would not have predicted."""
        adapter, module = self._routers.adapter, self._routers.modules[layer]
        scores = adapter.scores(self._logits[layer](x)[None], [module])[0]
        chosen = scores.gather(-1, ids).sort(-1, descending=True).values
        wrong = (chosen != scores.topk(self._routers.top_k, -1).values).sum()
        self._wrong = self._wrong + wrong.to(self._devices[0])
        self._compared += ids.shape[0] * ids.shape[1]

    def _work_up(self) -> None:
        """Starts the copies of the passes that wait, and writes those whose copies were started before.

        An interrupt may come anywhere here: the next call then does again what is not done.
        """
        self._worked_up = time.monotonic()
        now = fetch(self._routers, self._logits, self._group, self._ahead, self.width) if self._group else None
        for each in (self._fetched, None if now and now.event else now):  # of a CPU there is nothing to wait for
            if each:
                self._advance(self._rows.write(*each.arrays()))
        self._fetched = now if now and now.event else None
        self._group = []


def _beams(*_: Any) -> None:
    raise BadTrace("beam search changes places in the batch, and is not captured; generate with num_beams=1")


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
