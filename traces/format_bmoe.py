"""BigMoeOnEdge's route trace: CSV with a `#` preamble, one line per routed expert.

  # route_trace v1
  # model=NAME arch=ARCH n_layer=L n_expert=E n_expert_used=K
  # layer=I expert_bytes=N ...          a line per layer
  turn,phase,step,layer,slot,expert,weight,...

Columns are found by name: turn is the request, phase 0 prefill and 1 decode,
step the token, slot the router's rank. A prefill has its last layer for the
final token alone, where the engine wanted no other logits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PureWindowsPath

import numpy as np

from .errors import BadTrace
from .importing import short, warn
from .trace import Trace

name = "bmoe"
description = "CSV '# route_trace v1': turn,phase,step,layer,slot,expert,weight,...; row sizes in the preamble"
source = "Helldez/BigMoeOnEdge"

KEYS = ("turn", "phase", "step", "layer", "slot", "expert")
MODEL = re.compile(
    r"# model=(?P<model>.*) arch=(?P<arch>\S*) n_layer=(?P<n_layer>\d{1,6}) n_expert=(?P<n_expert>\d{1,9}) "
    r"n_expert_used=(?P<k>\d{1,9})\s*$"
)
LAYER = re.compile(r"# layer=(\d{1,6}) expert_bytes=(\d{1,18})\b")


def sniff(path: Path, head: bytes) -> bool:
    return head.startswith(b"# route_trace v1")


def read(
    paths: Sequence[Path],
    *,
    n_experts: int | None = None,
    top_k: int | None = None,
    row_bytes: int | None = None,
    model: str | None = None,
) -> Trace:
    """One file. A turn is a request; its prefill is one step with the tokens in order of `step`, then a step a token.

    The engine computes the last layer of a prefill for the final token only; the other rows are absent there.
    """
    if len(paths) > 1:
        raise BadTrace(f"{paths[1]}: a route trace is one file; import {paths[0]} and this one by themselves")
    path = paths[0]
    header, sizes, n_lines = _preamble(path)
    k, n_experts = int(header["k"]) if top_k is None else top_k, n_experts or int(header["n_expert"])
    lines = _Lines(path, n_lines)
    lines.hold("phase", 0, 1)
    lines.hold("turn", 0, 2**20)
    lines.hold("step", 0, 2**31 - 1)
    lines.hold("layer", 0, int(header["n_layer"]) - 1)
    lines.hold("slot", 0, k - 1)
    lines.hold("expert", 0, n_experts - 1)
    column = lines.columns
    key = (column["turn"] * 2 + column["phase"]) << 31 | column["step"]  # of the token: unique, and in order of time
    tokens, token = np.unique(key, return_inverse=True)
    layers, layer = np.unique(column["layer"], return_inverse=True)
    _complete(path, lines, token, layer, tokens, layers, k)
    at = (token * len(layers) + layer) * k + column["slot"]
    shape = len(tokens), len(layers), k
    experts = np.full(shape, -1, np.int32)
    experts.reshape(-1)[at] = column["expert"]
    turn, decode, position = tokens >> 32, tokens >> 31 & 1, tokens & 2**31 - 1
    request = np.unique(turn, return_inverse=True)[1]
    opens = np.append(True, (request[1:] != request[:-1]) | (decode[1:] > decode[:-1])) | (decode == 1)
    return Trace.from_arrays(
        experts,
        weights=_weights(path, lines, at, shape),
        n_experts=n_experts,
        request=request,
        step=np.cumsum(opens) - 1,
        position=position,
        phase=decode,
        model=model or PureWindowsPath(header["model"]).name.removesuffix(".gguf"),
        model_layers=layers.tolist(),
        row_bytes=_row_bytes(path, sizes, layers.tolist(), row_bytes),
        name=path.stem,
        where=str(path),
        captured_by="BigMoeOnEdge",
        source=f"bmoe: {path.name}",
        requests=[
            {"id": i, "label": f"turn {t}", "prompt_tokens": int(((turn == t) & (decode == 0)).sum())}
            for i, t in enumerate(np.unique(turn).tolist())
        ],
    )


class _Lines:
    """The columns of the CSV part, with the line numbers for messages."""

    def __init__(self, path: Path, n_preamble: int) -> None:
        import pyarrow as pa
        from pyarrow import csv

        self.path, self.first = path, n_preamble + 2
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            names = [next(file) for _ in range(n_preamble + 1)][-1].strip().split(",")
        missing = [name for name in KEYS if name not in names]
        if missing:
            raise BadTrace(
                f"{path} line {n_preamble + 1}: no column {missing[0]!r}; a route trace has {','.join(KEYS)}"
            )
        types = {name: pa.int64() for name in (*KEYS, "dropped")} | {"weight": pa.float64()}
        types = {name: kind for name, kind in types.items() if name in names}
        try:
            table = csv.read_csv(
                path,
                csv.ReadOptions(skip_rows=n_preamble),
                csv.ParseOptions(),
                csv.ConvertOptions(column_types=types, include_columns=list(types), null_values=[]),
            )
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            raise BadTrace(self._culprit(names, types) or f"{path}: {short(str(error))}") from None
        self.columns = {name: table.column(name).combine_chunks().to_numpy(zero_copy_only=False) for name in types}
        if not table.num_rows:
            raise BadTrace(f"{path}: a preamble and no routing")

    def _culprit(self, names: list[str], types: dict) -> str:
        """Slow: the first line that cannot be read, for the message."""
        with self.path.open(encoding="utf-8-sig", errors="replace") as file:
            for at, line in enumerate(file, 1):
                fields = line.rstrip("\r\n").split(",")
                if at < self.first or not line.strip():
                    continue
                if len(fields) != len(names):
                    return f"{self.path} line {at}: {len(fields)} fields, but the header has {len(names)} (truncated?)"
                for name, text in zip(names, fields, strict=True):
                    if name in types and not re.fullmatch(
                        r"-?\d{1,18}" if name != "weight" else r"[-+.\deEnaif]+", text
                    ):
                        return f"{self.path} line {at}: {name} {short(text)} is not a number"
        return ""

    def hold(self, name: str, low: int, high: int) -> None:
        """Every value of the column lies in low to high, or BadTrace naming its line."""
        wrong = np.flatnonzero((self.columns[name] < low) | (self.columns[name] > high))
        if wrong.size:
            raise BadTrace(
                f"{self.path} line {self.first + wrong[0]}: {name} {self.columns[name][wrong[0]]}, but the "
                f"preamble allows {low} to {high}"
            )


def _preamble(path: Path) -> tuple[dict[str, str], dict[int, int], int]:
    """(fields of the model line, expert bytes by layer, number of `#` lines)."""
    header, sizes, n = None, {}, 0
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        for line in file:
            if not line.startswith("#"):
                break
            n += 1
            header = header or MODEL.match(line)
            if layer := LAYER.match(line):
                sizes[int(layer[1])] = int(layer[2])
        else:
            raise BadTrace(f"{path}: a preamble and no columns; truncated?")
    if header is None:
        raise BadTrace(f"{path}: no line '# model= arch= n_layer= n_expert= n_expert_used=' in the preamble")
    return header.groupdict(), sizes, n


def _complete(
    path: Path, lines: _Lines, token: np.ndarray, layer: np.ndarray, tokens: np.ndarray, layers: np.ndarray, k: int
) -> None:
    """Every token has every layer with k slots once; only prefill tokens may lack the last layer.

    Checked by counting, so that a file cannot make us allocate more than it holds."""

    def name(t) -> str:
        return f"turn {tokens[t] >> 32} phase {tokens[t] >> 31 & 1} step {tokens[t] & 2**31 - 1}"

    cell = token * len(layers) + layer
    entry = cell * np.int64(k) + lines.columns["slot"]
    order = np.argsort(entry, kind="stable")
    again = np.flatnonzero(entry[order[1:]] == entry[order[:-1]])
    if again.size:
        at = order[again[0] + 1]
        raise BadTrace(
            f"{path} line {lines.first + at}: {name(token[at])} layer {layers[layer[at]]} slot "
            f"{lines.columns['slot'][at]} again; are these two captures in one file?"
        )
    cells, slots = np.unique(cell, return_counts=True)
    if (slots != k).any():
        i = int(np.argmax(slots != k))
        raise BadTrace(
            f"{path}: {name(cells[i] // len(layers))} layer {layers[cells[i] % len(layers)]} has {slots[i]} of "
            f"{k} slots; truncated?"
        )
    have = np.bincount(cells // len(layers), minlength=len(tokens))
    last = np.bincount(cells[cells % len(layers) == len(layers) - 1] // len(layers), minlength=len(tokens))
    short_of = np.flatnonzero(have + (1 - last) * (tokens >> 31 & 1 == 0) != len(layers))
    if short_of.size:
        t = short_of[0]
        gone = np.setdiff1d(np.arange(len(layers)), cells[cells // len(layers) == t] % len(layers))
        raise BadTrace(f"{path}: {name(t)} has no layer {layers[gone[0]]}; every token passes every layer (truncated?)")


def _weights(path: Path, lines: _Lines, at: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    if lines.columns.get("dropped", np.zeros(1)).any():
        warn(
            str(path),
            f"the engine dropped {np.count_nonzero(lines.columns['dropped'])} routings to save reads; the trace "
            "keeps what the router chose, so later choices may follow from the dropping",
        )
    given = lines.columns.get("weight")
    if given is None:
        return None
    if np.isnan(given).all():
        warn(str(path), "weights are unknown (nan); left out")
        return None
    weights = np.zeros(shape, np.float64)
    weights.reshape(-1)[at] = given
    return weights


def _row_bytes(path: Path, sizes: dict[int, int], layers: list[int], told: int | None) -> list[int] | None:
    if told is not None:
        return [told] * len(layers)
    if not sizes:
        return None
    gone = [layer for layer in layers if not sizes.get(layer)]
    if gone:
        raise BadTrace(f"{path}: layer {gone[0]} routes experts, but the preamble gives it no expert_bytes")
    return [sizes[layer] for layer in layers]
