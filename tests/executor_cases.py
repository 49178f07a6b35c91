"""What the tests of the executor share: small models, traces through them, and runs that leave nothing open."""

from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from time import sleep

import numpy as np

import slotwise
from slotwise.executor.backend import make_backend
from slotwise.executor.backend_numpy import NumpyBackend
from slotwise.executor.checks import audit
from slotwise.executor.cold import ColdChain, RowLayout
from slotwise.executor.executor import Executor
from slotwise.executor.store import HostStore
from slotwise.policies import Pool
from slotwise.traces import Trace

HIDDEN, INNER = 32, 64


@dataclass(frozen=True)
class Model:
    """Random weights of a seed."""

    n_layers: int = 3
    n_experts: int = 8
    top_k: int = 2
    layout: RowLayout = field(default_factory=lambda: RowLayout(HIDDEN, INNER, ("bf16",) * 3))
    by_layer: tuple[RowLayout, ...] = ()  # in place of the one layout

    @property
    def layouts(self) -> list[RowLayout]:
        return list(self.by_layer) or [self.layout] * self.n_layers

    def trace(self, sizes, seed=0, width=4) -> Trace:
        """Random routing and predictions of one request, with so many tokens in each step."""
        draw = np.random.default_rng(seed)

        def chosen(n, k):
            return np.stack([draw.permutation(self.n_experts)[:k] for _ in range(n * self.n_layers)]).reshape(
                n, self.n_layers, k
            )

        n = sum(sizes)
        step = np.repeat(np.arange(len(sizes)), sizes)
        predicted = chosen(n, width) if self.n_layers > 1 else None
        return Trace.from_arrays(
            chosen(n, self.top_k), n_experts=self.n_experts, predicted=predicted, step=step,
            phase=(np.repeat(sizes, sizes) == 1).astype(np.uint8),
        )  # fmt: skip


@contextmanager
def no_thread_left():
    """Holds the body to leaving no thread of the process behind, neither Python's nor a native one."""
    tasks = Path("/proc/self/task")
    before = set(tasks.iterdir())
    yield
    for _ in range(1000):  # one that has been joined may be listed for a moment
        if not (left := set(tasks.iterdir()) - before):
            return
        sleep(0.02)
    raise AssertionError(f"{len(left)} threads are left")


def spoil(monkeypatch, kind: type[NumpyBackend]) -> list[NumpyBackend]:
    """`slotwise.run` computes on this backend from now on. Returns those that it opens, the store's first."""
    opened: list[NumpyBackend] = []

    def make(_, **options):
        opened.append(kind(**options))
        return opened[-1]

    monkeypatch.setattr(import_module(slotwise.run.__module__), "make_backend", make)
    return opened


@dataclass
class Outcome:
    """What a run leaves: the bytes of its outputs, counters, plan hash, failures, the executor (closed)."""

    outputs: bytes
    counters: dict
    plan_sha256: str
    failures: list
    executor: Executor


def carry_out(
    model: Model, trace: Trace, policy="lru", slots=3, *, width=0, horizon=1, backend: NumpyBackend | None = None,
    threads=1, cold="native", pool=(), **options,
) -> Outcome:  # fmt: skip
    """Every step of the trace through the executor, then an audit of all slots."""
    backend = backend or make_backend("numpy")
    outputs = []
    with ColdChain(threads, kind=cold) as chain:
        store = HostStore(model.layouts, model.n_experts, backend).fill(7, chain)
        pools = Pool(
            policy,
            n_layers=model.n_layers,
            n_experts=model.n_experts,
            slots=slots,
            width=width,
            full=True,
            **dict(pool),
        )
        options = {"headroom_bytes": 0, "plan_hash": True, "horizon": horizon, **options}
        with Executor(pools, store, backend, chain, top_k=model.top_k, **options) as executor:
            for block in trace.blocks(predicted=width > 0, horizon=horizon):
                for step in range(block.n_steps):
                    lo, hi = block.starts[step], block.starts[step + 1]
                    draw = np.random.default_rng(int(block.first_step) + step)
                    x = draw.normal(0, 1, (hi - lo, model.layouts[0].hidden)).astype(np.float32)
                    for layer in range(model.n_layers):
                        ahead = None
                        if block.predicted is not None and layer + horizon < model.n_layers:
                            ahead = block.predicted[layer + horizon, lo:hi]
                        weights = draw.random((hi - lo, model.top_k), np.float32)
                        y = executor.forward(layer, x, block.experts[layer, lo:hi], weights, ahead)
                        outputs.append(y.tobytes())  # on a GPU: in the order of the current stream
                        x = backend.norm(x, y)
            audit(executor)
        counters = pools.counters
    assert executor.plan_hash is not None
    return Outcome(b"".join(outputs), counters, executor.plan_hash.hexdigest(), executor.failures, executor)
