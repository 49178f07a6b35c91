"""What the executor asks of a device, and the scan that finds those there are: one file `backend_<name>.py` each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from .cold import RowLayout
from .errors import BadExecutor


class Copy(NamedTuple):
    """One row on its way: addresses in host and device memory, and bytes."""

    source: int
    target: int
    n_bytes: int


class Rows(NamedTuple):
    """Rows to compute: their addresses, and per row the tokens that chose it. `offsets` has one item more than `rows`.

    `places`: for each pair its row of the tick's output, token * k + rank.
    """

    rows: np.ndarray
    offsets: np.ndarray
    tokens: np.ndarray
    places: np.ndarray


class Backend(Protocol):
    """A device: memory, a copy engine, a hot chain and the merge. Tickets are whatever the backend makes of them.

    Every backend is made with `host`, the kind of memory that rows are copied from (`host_memory.HOSTS`), and `merge`,
    where the merge runs (`merge.MERGES`); other options are its own.

    Everything submitted runs in order within the copy engine and within the hot chain; across the two only what
    `after` names is waited for, and the host never waits unless a line here says so.
    """

    name: str
    device_name: str  # what computes, in words
    owned: bool  # by an executor, which closes it: one backend cannot serve two
    timing: bool  # whether spans of hot work and copies are kept; the executor sets it before it prepares
    poison: bool  # whether outputs are NaN before each tick, so that what nobody computes shows
    counter: int  # address of a 32-bit word that counts finished cold jobs, if the device waits for it by itself, or 0
    reader_waits: int  # copies that had to wait for the last reader of their slot, since it was not done

    @staticmethod
    def missing(cold: str = "native") -> str | None:
        """Why it cannot run here, with that kind of cold chain, and what would help; None if it can."""
        ...

    def free_bytes(self) -> int | None:
        """Device memory that is free now; None where nobody counts it."""
        ...

    def host_memory(self, n_bytes: int) -> np.ndarray:
        """uint8 memory that rows can be copied from, aligned to 64 bytes, of the kind `host` that it was made with.

        Raises BadExecutor if there is not so much of it.
        """
        ...

    def device_memory(self, n_bytes: int) -> int:
        """Address of new device memory, aligned to 256 bytes. Called while the executor opens, and never later."""
        ...

    def prepare(self, layouts: Sequence[RowLayout], n_tokens: int, top_k: int) -> None:
        """Takes in the layers' layouts and the most tokens of a tick."""
        ...

    def upload(self, values: np.ndarray) -> Any:
        """The same numbers where the device works on them."""
        ...

    def adopt(self, name: str, value: Any) -> Any:
        """A caller's array as one of the device's or of NumPy's, over the same memory. Raises BadExecutor."""
        ...

    def download(self, values: Any) -> np.ndarray:
        """A copy of device numbers for the host to keep. Waits."""
        ...

    def host(self, *values: Any) -> list[np.ndarray]:
        """The same numbers where the host can read them, until the next call. One wait for all of them."""
        ...

    def read(self, address: int, n_bytes: int) -> np.ndarray:
        """uint8 [n_bytes] of device memory, copied to the host. Waits."""
        ...

    def copy(self, copies: Sequence[Copy], after: Any = None) -> Any:
        """Starts one batch of copies, once the hot work `after` is done. Returns its ticket."""
        ...

    def landed(self, ticket: Any) -> bool:
        """Whether a batch of copies is complete."""
        ...

    def begin(self, layer: int, x: Any, top_k: int) -> Any:
        """Opens a tick of `x` [n, hidden] and n * top_k pairs. Returns its handle."""
        ...

    def hot(self, tick: Any, work: Rows, after: Sequence[Any] = ()) -> Any:
        """Starts computing rows in device memory, once the copies `after` have landed. Returns a ticket for `copy`."""
        ...

    def inputs(self, tick: Any) -> tuple[np.ndarray, np.ndarray]:
        """(x [n, hidden], out [n * top_k, hidden]) of the tick in host memory, for the cold chain to read and write."""
        ...

    def settle(self, tick: Any) -> None:
        """Waits until the hot work of the tick is done."""
        ...

    def hot_spans(self, tick: Any) -> list[tuple[float, float]]:
        """When each piece of the tick's hot work began and ended, by `time.monotonic`, in order. After `settle`."""
        ...

    def late_spans(self, tick: Any) -> list[tuple[float, float]]:
        """When the tick's hot work waited for copies, in order. After `settle`."""
        ...

    def copy_spans(self) -> list[tuple[float, float, int]]:
        """(began, ended, bytes) of batches that landed since the last call, by `time.monotonic`; none without `timing`.

        A batch begins when its bytes may move, not while it waits for hot work or for the batch before it.
        """
        ...

    def read_rate(self, most_bytes: int) -> float | None:
        """Bytes per second at which the hot chain could read device memory at best; None if it reads none.

        Takes memory for the time of the call: as much as defeats the caches, but at most so many bytes.
        """
        ...

    def conditions(self) -> dict[str, float]:
        """What the device says of itself now: clocks and temperature, by names with units; {} if it tells nothing."""
        ...

    def merge(self, tick: Any, chains: np.ndarray, weights: Any, jobs: int) -> Any:
        """y [n, hidden]: per token the outputs of its pairs times their weights, summed in router order.

        `chains` [n, k] says who computed each pair: ABSENT (nobody), HOT or COLD. The cold work is done by now; or,
        with a `counter`, once that has counted so many jobs.
        """
        ...

    def norm(self, x: Any, y: Any) -> Any:
        """What the next layer takes in: x + y over the root of its mean square, row by row."""
        ...

    def queue(self) -> AbstractContextManager[Any]:
        """Within it, what the caller queues on the device goes where the backend's own work goes: no events between."""
        ...

    def spin(self, microseconds: float) -> None:
        """Keeps the device busy for so long: stands for attention and everything dense."""
        ...

    def synchronize(self) -> None:
        """Waits until the device has nothing left to do but copies."""
        ...

    def drain(self) -> None:
        """Waits until nothing runs, copies neither."""
        ...

    def close(self) -> None:
        """Waits, then ends threads and gives all memory back. A second call does nothing."""
        ...


def backends() -> dict[str, type[Backend]]:
    """The backends there are, by name."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("backend_*.py")):
        name = path.stem.removeprefix("backend_")
        found[name] = import_module(f".{path.stem}", __package__).BACKEND
    return found


def list_backends() -> list[dict[str, Any]]:
    """One plain row per backend: name, description, and why it cannot be used here (None if it can)."""
    return [
        {"name": name, "description": (kind.__doc__ or "").split("\n", maxsplit=1)[0], "missing": kind.missing()}
        for name, kind in backends().items()
    ]


def make_backend(name: str, **options: Any) -> Backend:
    """The backend of that name, ready to be opened by an executor. Raises BadExecutor where it is not or cannot run."""
    known = backends()
    if name not in known:
        raise BadExecutor(f"no backend {name!r}; there are {', '.join(known)}")
    reason = known[name].missing(options.get("cold", "native"))
    if reason:
        raise BadExecutor(f"backend {name}: {reason}")
    if "cold" not in signature(known[name]).parameters:
        options.pop("cold", None)  # it computes nothing on the CPU
    unknown = sorted(set(options) - set(signature(known[name]).parameters))
    if unknown:
        raise BadExecutor(f"backend {name} has no {unknown[0]}: that is an option of another backend")
    return known[name](**options)
