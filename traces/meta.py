"""What a trace says about itself: the JSON record in the file's metadata, checked field by field."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

from .errors import BadTrace

FORMAT, VERSION = "slotwise.trace", 1
MAX_LAYERS = 100_000
MAX_ROW_BYTES = 2**36  # a row of 64 GiB: sums over a hundred million loads still fit into 64 bits
MAX_EXPERTS = 65_535  # 65535 itself marks "absent" in uint16


@dataclass(frozen=True)
class Meta(Mapping):
    """The record of one trace. Reads like a mapping (`meta["model"]`) and like an object (`meta.model`).

    `model_layers[i]` is the model's own number of MoE layer i. `row_bytes[i]` is the size of one expert of layer i.
    `predictor` is `{kind, width, horizon}` of the recorded predictions. `requests` holds `{id, label, prompt_tokens}`.
    What is not known is None.
    """

    n_layers: int
    n_experts: int
    top_k: int
    model: str = ""
    revision: str | None = None
    model_layers: tuple[int, ...] = ()
    row_bytes: tuple[int, ...] | None = None
    router: str | None = None
    predictor: Mapping | None = None
    captured_by: str | None = None
    captured_at: str | None = None
    source: str | None = None
    licence: str | None = None
    requests: tuple[Mapping, ...] = ()
    sha256: str | None = None

    def __getitem__(self, key: str) -> Any:
        if key in ("format", "version"):
            return FORMAT if key == "format" else VERSION
        if key not in _NAMES:
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter(("format", "version", *_NAMES))

    def __len__(self) -> int:
        return len(_NAMES) + 2

    def to_json(self) -> str:
        """The JSON object that a file carries; the same record always gives the same text."""
        return json.dumps(dict(self), default=dict, allow_nan=False)

    def with_sha256(self, sha256: str) -> Meta:
        return replace(self, sha256=sha256)


_NAMES = tuple(f.name for f in fields(Meta))


def checked(meta: Meta, where: str) -> Meta:
    """`meta` with its tuples filled in, or BadTrace naming the field, its value and the rule."""
    check_whole(where, "n_layers", meta.n_layers, 1, MAX_LAYERS)
    check_whole(where, "n_experts", meta.n_experts, 1, MAX_EXPERTS)
    check_whole(where, "top_k", meta.top_k, 1, meta.n_experts)
    layers = _wholes(where, "model_layers", meta.model_layers, 0) or tuple(range(meta.n_layers))
    if len(layers) != meta.n_layers or any(a >= b for a, b in pairwise(layers)):
        raise BadTrace(
            f"{where}: model_layers must be {meta.n_layers} rising layer numbers, one per MoE layer, "
            f"not {_short(layers)}"
        )
    rows = meta.row_bytes
    if rows is not None:
        rows = _wholes(where, "row_bytes", rows, 1, MAX_ROW_BYTES)
        if len(rows) != meta.n_layers:
            raise BadTrace(
                f"{where}: row_bytes lists {len(rows)} sizes for n_layers={meta.n_layers}; it needs one per MoE layer"
            )
    for name in ("model", "revision", "router", "captured_by", "captured_at", "source", "licence", "sha256"):
        value = getattr(meta, name)
        if not (isinstance(value, str) or (value is None and name != "model")):
            raise BadTrace(f"{where}: {name} must be text, not {_short(value)}")
    if meta.predictor is not None and not isinstance(meta.predictor, Mapping):
        raise BadTrace(f"{where}: predictor must be an object {{kind, width, horizon}}, not {_short(meta.predictor)}")
    for r in _sequence(where, "requests", meta.requests):
        if not isinstance(r, Mapping) or not isinstance(r.get("id"), int):
            raise BadTrace(f"{where}: requests must be objects {{id, label, prompt_tokens}}, not {_short(r)}")
    try:
        json.dumps([meta.predictor, list(meta.requests)], default=dict, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise BadTrace(f"{where}: predictor and requests must be JSON, without NaN and Infinity ({error})") from None
    return replace(meta, model_layers=layers, row_bytes=rows, requests=tuple(meta.requests))


def parse(text: bytes, where: str) -> Meta:
    """The record from a file's metadata. Unknown keys are ignored, so that later versions may add some."""
    try:
        record = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise BadTrace(f"{where}: the metadata record is not JSON ({error})") from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise BadTrace(f"{where}: the metadata record does not say format={FORMAT!r}")
    if record.get("version") != VERSION:
        raise BadTrace(
            f"{where}: version {_short(record.get('version'))} of {FORMAT}; this reader knows version {VERSION}"
        )
    for name in ("n_layers", "n_experts", "top_k"):
        if name not in record:
            raise BadTrace(f"{where}: the metadata record lacks {name}")
    known = {name: record[name] for name in _NAMES if record.get(name) is not None}
    return checked(Meta(**known), where)


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no JSON number")


def _sequence(where: str, name: str, value: Any) -> tuple:
    if not isinstance(value, list | tuple):
        raise BadTrace(f"{where}: {name} must be a list, not {_short(value)}")
    return tuple(value)


def _wholes(where: str, name: str, value: Any, low: int, high: int = 2**62) -> tuple[int, ...]:
    return tuple(check_whole(where, name, v, low, high) for v in _sequence(where, name, value))


def check_whole(where: str, name: str, value: Any, low: int, high: int) -> int:
    """`value` as an int, or BadTrace unless it is a whole number from low to high."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or not low <= value <= high:
        raise BadTrace(f"{where}: {name}={_short(value)}, but it must be a whole number from {low} to {high}")
    return int(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
