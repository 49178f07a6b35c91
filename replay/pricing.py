"""Prices a replay: the options of a price, and the walk over the pieces of a run as they are replayed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from .errors import BadOption
from .gate import gates_of
from .machine import Machine, check_machine, read_machine
from .machine_figures import BESIDE
from .price import Price
from .price_link import ALWAYS, BY_TABLE, FIGURES, N_FIGURES, N_STATE, NEVER, WORST_LATENESS
from .price_queue import N_COUNTS
from .price_tables import pack, sheets_for, single
from .sizes import parse_bytes

OVERLAPS = {"off": NEVER, "on": ALWAYS, "auto": BY_TABLE}
MOST_US = 1e6
MOST_ROWS = 4096  # of a step of one token that are looked up in a table


@dataclass(frozen=True)
class Pricing:
    """What a price was asked for. `machine` is a Machine, or the path of its file; the others are those of `run`.

    overlap: "on", "off", or "auto": at the ticks where it is expected to pay, see `gate`. late: hits whose copy has not
    landed "wait" for it, or are computed "cold". dense_us: microseconds of the device a layer, for attention.
    cpu_threads: of the cold chain, by default the machine's.
    max_queued: at most so many speculative bytes (also "64MiB") are handed to the link at a time, and demand overtakes
    the rest. spec_chunk: at most so many speculative rows in one batch. split_share: the share of the misses that is
    fetched (with miss="cpu"). bounds: also price the run without look-ahead, and with an oracle of the same width.
    """

    machine: Machine | str | Path
    overlap: str = "on"
    late: str = "wait"
    dense_us: float = 0.0
    cpu_threads: int | None = None
    max_queued: int | str | None = None
    spec_chunk: int | None = None
    split_share: float | None = None
    bounds: bool = True

    def __post_init__(self):
        for name, known in (("overlap", OVERLAPS), ("late", ("wait", "cold"))):
            if getattr(self, name) not in known:
                raise BadOption(f"{name} is {' or '.join(known)}, not {getattr(self, name)!r}")
        if not _number(self.dense_us, 0, MOST_US):
            raise BadOption(f"dense_us={self.dense_us!r}: microseconds from 0 to {MOST_US:g}")
        if self.split_share is not None and not _number(self.split_share, 0, 1):
            raise BadOption(f"split_share={self.split_share!r}: it is a share, 0 to 1")
        if isinstance(self.max_queued, str):
            object.__setattr__(self, "max_queued", parse_bytes(self.max_queued))
        for name in ("cpu_threads", "max_queued", "spec_chunk"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise BadOption(f"{name}={value!r}: it is a whole number of at least 1")
        machine = self.machine
        found = check_machine(machine) if isinstance(machine, Machine) else read_machine(machine)
        object.__setattr__(self, "machine", found)

    @classmethod
    def taken_from(cls, options: dict[str, Any]) -> Pricing | None:
        """Takes its keywords out of those of a replay; None without a machine."""
        mine = {field.name: options.pop(field.name) for field in fields(cls) if field.name in options}
        if mine.get("machine") is not None:
            return cls(**mine)
        for field in fields(cls):
            if field.name in mine and mine[field.name] != field.default and field.name != "machine":
                raise BadOption(f"{field.name}={mine[field.name]!r}: it prices a replay; give a machine with it")
        return None

    @property
    def known(self) -> Machine:
        """The machine, read."""
        assert isinstance(self.machine, Machine)
        return self.machine

    def asked(self) -> dict[str, Any]:
        """The keywords that it was made of, the machine read."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def policy_of(self, options: Any) -> tuple[str, float, float]:
        """Whose figures of the host's decisions there are for these options, and what they are."""
        return self.known.policy(options.spec.family)

    def recorded(self) -> dict[str, Any]:
        """As a result states them. `when_late` is `late`, which is also a counter."""
        machine = self.known
        return {
            "machine": machine.name, "machine_sha256": machine.sha256, "machine_label": machine.label,
            "machine_date": machine.date, "overlap": self.overlap, "when_late": self.late,
            "dense_us": float(self.dense_us), "cpu_threads": self.cpu_threads or machine.cpu_threads,
            "max_queued": self.max_queued, "spec_chunk": self.spec_chunk, "split_share": self.split_share,
        }  # fmt: skip


class Pricer:
    """The walk of one run. `advance` prices a piece that has been replayed, `price` is the end of it."""

    def __init__(self, pricing: Pricing, options: Any, trace: Any):
        rows = options.rows_of(trace)
        if rows is None:
            raise BadOption(
                "machine: the trace does not record how large a row is, so a price needs row_bytes; give it"
            )
        self.pricing, self.options = pricing, options
        machine, threads = pricing.known, pricing.recorded()["cpu_threads"]
        self._policy = pricing.policy_of(options)
        distinct = sorted(set(rows))
        chains = [[sheets_for(machine, chain, size, threads) for chain in ("hot", "cold")] for size in distinct]
        self.measured = machine.label == "MEASURED" and all(measured for kind in chains for _, measured in kind)
        self._sheets, self._shape = pack([[sheets for sheets, _ in kind] for kind in chains])
        self._one = single(self._sheets, self._shape, min(trace.n_experts, trace.top_k, MOST_ROWS))
        self._kinds = np.array([distinct.index(size) for size in rows])
        self._gates = (
            gates_of(
                machine, self._sheets, self._shape, batch_gate=options.batch_gate, n_experts=trace.n_experts,
                top_k=trace.top_k, ahead_s=self._policy[2] if options.width else 0.0,
            )
            if pricing.overlap == "auto"
            else np.zeros((1, 1, 1, 1), np.uint16)
        )  # fmt: skip
        self._wake = np.array([[each.gap_s, each.seconds] for each in machine.wake]).reshape(-1, 2)
        self._row_bytes = np.array(rows, np.int64)
        kinds = "demand", "ahead", "computed"  # what the walk counts on, in this order
        self._row_s = np.array([[machine.row_s(kind, size) for kind in kinds] for size in rows])
        self._figures = self._set(machine, threads, trace)
        self._state, self._totals = np.zeros(N_STATE), np.zeros((2, N_STATE))
        self._land = np.full((trace.n_layers, trace.n_experts), -1.0)
        limited = pricing.max_queued is not None
        self._queue = np.zeros(N_COUNTS, np.int64)
        self._waiting = np.full((2 * self._land.size if limited else 1, 2), -1)
        self._driver = np.zeros((self._waiting.shape[0], 2))
        most_events = self._waiting.shape[0] + trace.n_experts + 8
        self._scratch = np.zeros(3 * 4), np.zeros(3), np.zeros(2 * most_events)  # as `walk` takes them
        self._steps: list[tuple[np.ndarray, ...]] = []
        self._told: tuple[Any, np.ndarray, np.ndarray] = (None, *_NOTHING)

    def _set(self, machine: Machine, threads: int, trace: Any) -> np.ndarray:
        options, pricing = self.options, self.pricing
        shares = min(machine.contention, key=lambda each: (abs(each.threads - threads), each.threads))
        if pricing.split_share is not None and options.miss != "cpu":
            raise BadOption(
                f"split_share={pricing.split_share}: miss={options.miss} says already what is fetched; leave it out"
            )
        share = {"cpu": pricing.split_share or 0.0, "fetch": 1.0}[options.miss]
        scratch = min(trace.n_experts, max(1, options.batch_gate) * trace.top_k)
        values = {name: machine[name] for name in FIGURES if name in machine.figures} | {
            "policy_s": self._policy[1],
            "policy_ahead_s": self._policy[2],
            "dense_s": machine["dense_s"] + pricing.dense_us * 1e-6,
            "cold_with_link": shares.cold_with_link.value,
            "cold_with_own": shares.cold_with_own.value,
            "link_with_cold": shares.link_with_cold.value,
            "hot_with_link": shares.hot_with_link.value,
            "share": share,
            "max_queued": np.inf if pricing.max_queued is None else pricing.max_queued,
            "overlap": OVERLAPS[pricing.overlap],
            **dict(zip(BESIDE, machine.beside, strict=True)),
            "late_cold": pricing.late == "cold",
            "batch_gate": options.batch_gate,
            "chunk": pricing.spec_chunk or 0,
            "scratch": scratch,
            "staging": 2 * trace.top_k if options.prefill == "stream" else 0,
        }
        figures = np.zeros(N_FIGURES)
        for at, name in enumerate(FIGURES):
            figures[at] = values[name]
        return figures

    def told(self, block: Any, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the replay of a block's pieces says what became of demands and predictions."""
        if self._told[0] is not block:
            self._told = (block, np.zeros(block.experts.shape, np.uint8), np.zeros(ids.shape, np.uint8))
        return self._told[1:]

    def advance(self, piece: Any, accepted: np.ndarray) -> None:
        """Prices a piece. accepted [steps]: tokens that each of its steps yields."""
        from .price_compiled import walk
        from .price_walk import N_OUT

        block, n = piece.block, len(piece.starts) - 1
        low = piece.first_step - block.first_step
        phases = block.phase[low : low + n].astype(np.int64)
        told, ahead = self.told(block, piece.ids)
        out = np.zeros((n, N_OUT))
        ids = piece.ids if piece.ids.size else _NOTHING[0].astype(block.experts.dtype)
        walk(
            piece.starts, piece.resets, phases, block.experts, told, ids, ahead,
            min(self.options.width, ids.shape[2]), self.options.horizon, self._figures, self._state, self._totals,
            self._one, self._sheets, self._shape, self._kinds, self._wake, self._row_s, self._row_bytes, self._land,
            self._queue, self._driver, self._waiting, *self._scratch, self._gates, out,
        )  # fmt: skip
        self._steps.append((out, accepted, block.phase[low : low + n], block.request[low : low + n]))

    def price(self) -> Price:
        """What the run cost."""
        totals = self._totals.copy()
        totals[:, WORST_LATENESS] = self._state[WORST_LATENESS]
        parts = self._steps or [(np.zeros((0, 4)), *(np.zeros(0, np.int64),) * 3)]
        out, tokens, phase, request = (np.concatenate(each) for each in zip(*parts, strict=True))
        return Price(
            label="SIMULATED" if self.measured else "ESTIMATED",
            options=self.pricing.recorded() | {"policy_cost_of": self._policy[0], "lag_auto": self.options.lag_auto},
            phase=self.options.phase,
            totals=totals,
            step_demands=out[:, 0],
            step_misses=out[:, 1],
            step_bytes=out[:, 2],
            step_s=out[:, 3],
            step_tokens=tokens,
            step_phase=phase,
            step_request=request,
        )


_NOTHING = np.zeros((0, 0, 0), np.uint8), np.zeros((0, 0, 0), np.uint8)


def _number(value: Any, low: float, high: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high
