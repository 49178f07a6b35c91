"""Small traces that both engines can replay, spelled out or drawn at random, with every option of the law."""

import itertools
import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from oracles import Oracle, OracleResult, steps_of, verify_spans

import slotwise


@dataclass(frozen=True)
class Case:
    """Rows `experts[layer][row]` (None: absent) and `predicted[horizon][layer][row]` (-1: absent) of a trace."""

    n_experts: int
    experts: list
    request: list
    step: list
    phase: list
    predicted: dict = field(default_factory=dict)
    row_bytes: tuple | None = None

    @property
    def n_layers(self):
        return len(self.experts)

    @property
    def starts(self):
        cuts = [i for i in range(1, len(self.step)) if self.step[i] != self.step[i - 1]]
        return [0, *cuts, len(self.step)]

    def first(self, n_rows):
        """The first rows as a trace of their own."""
        cut = {name: getattr(self, name)[:n_rows] for name in ("request", "step", "phase")}
        predicted = {h: [layer[:n_rows] for layer in p] for h, p in self.predicted.items()}
        return replace(self, experts=[layer[:n_rows] for layer in self.experts], predicted=predicted, **cut)

    def trace(self, **how):
        k = max(len(row) for layer in self.experts for row in layer if row is not None)
        ids = [[[-1] * k if row is None else row for row in layer] for layer in self.experts]
        predicted = {h: np.array(p).transpose(1, 0, 2) for h, p in self.predicted.items()}
        return slotwise.Trace.from_arrays(
            np.array(ids).transpose(1, 0, 2),
            n_experts=self.n_experts,
            request=self.request,
            step=self.step,
            phase=self.phase,
            predicted=predicted or None,
            row_bytes=self.row_bytes,
            **how,
        )

    def by_law(self, policy, *, horizon=1, vram=None, engine=Oracle, verify=None, **options) -> OracleResult:
        spans = list(itertools.pairwise(self.starts))
        if verify:
            spans = verify_spans(self.request, self.phase, self.starts, **verify)
        rows = [[row or [] for row in layer] for layer in self.experts]
        predicted = self.predicted.get(horizon)
        if predicted is not None:
            predicted = [[[None if e < 0 else e for e in row] for row in layer] for layer in predicted]
        request = [self.request[a] if len(set(self.request[a:b])) == 1 else -1 for a, b in spans]
        phase = [min(self.phase[a:b]) for a, b in spans]
        steps = steps_of(rows, spans, request, phase, predicted)
        options |= {} if vram is None else granted(vram, self.row_bytes, options.get("scope", "layer"))
        how = {
            "n_experts": self.n_experts,
            "row_bytes": self.row_bytes,
            "horizon": horizon,
            "policy": described(policy),
        }
        return engine(steps, **how, **options).run()

    def by_replay(self, policy, *, group_rows=None, verify=None, plan_hash=True, **options):
        trace = self.trace(group_rows=group_rows)
        return slotwise.replay(trace, spelled(described(policy)), plan_hash=plan_hash, **options, **verify or {})


def granted(vram, row_bytes, scope):
    """What `vram` bytes of pool buy: slots where a pool's rows are equal, else bytes."""
    if scope == "layer":
        return {"slots": [vram // len(row_bytes) // size for size in row_bytes]}
    if len(set(row_bytes)) == 1:
        return {"slots": vram // row_bytes[0]}
    return {"capacity_bytes": vram}


def case(*layers, n_experts=None, predicted=None, row_bytes=None, **columns) -> Case:
    """A trace from rows spelled out, one a step: `case([[0, 1], [0, 2]])` is one layer and two steps.

    Where the rows differ in length they become several rows of one expert in the same step. `predicted` holds as many
    layers, those before the first predicted one empty; None is a row without predictions.
    """
    n = len(layers[0])
    columns = {"request": [0] * n, "step": list(range(n)), "phase": [1] * n, **columns}
    ahead = [[list(row or []) for row in layer] or [[] for _ in range(n)] for layer in predicted or ()]
    ids = [e for layer in (*layers, *ahead) for row in layer for e in row or [0]]
    layers = [list(layer) for layer in layers]
    if len({len(row) for layer in layers for row in layer if row is not None}) > 1:
        height = [max(len(layer[i] or []) for layer in layers) for i in range(n)]
        first = [i for i, h in enumerate(height) for _ in range(h)]
        columns = {name: [values[i] for i in first] for name, values in columns.items()}
        layers = [_one_a_row(layer, height) for layer in layers]
        begins = [j == 0 or first[j] != first[j - 1] for j in range(len(first))]
        ahead = [[layer[i] if new else [] for i, new in zip(first, begins, strict=True)] for layer in ahead]
    width = max((len(row) for layer in ahead for row in layer), default=0)
    ahead = [[row + [-1] * (width - len(row)) for row in layer] for layer in ahead]
    return Case(
        n_experts=n_experts or 1 + max(ids),
        experts=layers,
        predicted={1: ahead} if width else {},
        row_bytes=row_bytes,
        **columns,
    )


def _one_a_row(rows, height):
    """Rows of any length as `height[i]` rows of one expert, or none, for step i."""
    out = []
    for ids, h in zip(rows, height, strict=True):
        ids = ids or []
        out += [[e] for e in ids] + [None] * (h - len(ids))
    return out


def described(policy):
    """A policy as the oracle wants it: a bare name has no parameters."""
    return {"name": policy, "params": {}} if isinstance(policy, str) else policy


# -- spelling --------------------------------------------------------------------------------------------------------
def spelled(policy) -> str:
    """The policy in the words of the command line; profiles must have a file by now."""

    def call(name, params):
        inner = ", ".join(f"{key}={value}" for key, value in params.items() if key != "counts" or name == "guard")
        return f"{name}({inner})" if inner else name

    parts = [call(policy["name"], policy["params"])]
    parts += [call(part, policy[part]) for part in ("guard", "gate", "pin") if policy.get(part)]
    return "+".join(parts)


def with_profiles(policy, folder: Path):
    """The policy with each table of counts written to a file and named by it."""

    def named(name, params):
        counts = params and params.get("counts")
        if not isinstance(counts, list):
            return params
        path = folder / f"{name}.json"
        path.write_text(json.dumps({"format": "slotwise.profile", "version": 1, "counts": counts, "traces": []}))
        return {"profile": path, **params}

    return {
        **policy,
        "params": named("static", policy["params"]),
        "pin": named("pin", policy.get("pin")),
    }
