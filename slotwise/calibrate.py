"""Measures this machine and makes a machine file of it: what `slotwise machine` estimates, as it really is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from slotwise.executor.backend import make_backend
from slotwise.executor.calibration import FULL, QUICK, Measured
from slotwise.executor.calibration import calibrate as measure
from slotwise.executor.cold import SPIN_US, ColdChain, RowLayout
from slotwise.executor.shapes import Shape, shape_of
from slotwise.replay.machine import Machine, check_machine
from slotwise.replay.machine_figures import SHARES, Contention, Figure, Sheet, Wake

from .callable_file import callable_as_its_function
from .run_result import machine as cpu_in_words
from .run_setup import restricted_to

LIBRARIES = ("slotwise", "numpy", "numba", "cupy-cuda12x", "cupy-cuda13x", "cuda-bindings")
SHAPE = "Qwen3-30B-A3B"


def calibrate(
    *,
    backend: str = "numpy",
    shape: str | None = None,
    hidden: int | None = None,
    intermediate: int | None = None,
    dtype: str | None = None,
    experts: int = 64,
    top_k: int = 8,
    cpu_threads: int | None = None,
    spin_us: float = SPIN_US,
    activations: str = "float32",
    cold: str = "native",
    host: str = "pinned",
    device: int | None = None,
    sms: int | None = None,
    link_pad: int = 0,
    policies: Iterable[str] = (),
    quick: bool = False,
    seed: int = 0,
    name: str | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Machine:
    """A MEASURED machine: every figure, sheets of both chains for one size of row, waking up and contention.

    backend, shape, hidden, intermediate, dtype, host, device, sms, link_pad, cpu_threads, spin_us, activations, cold:
    as `slotwise.run` takes them, and for runs that are alike in them; the shape is Qwen3-30B-A3B's by default.
    experts, top_k: of the layers that are measured. policies: those whose decisions are timed beside the usual ones;
    prices of others have lru's figures. quick: seconds in place of minutes, for a trial; the figures are then rough.
    name: what results call the machine. progress: called with (parts done, parts in all, the next one).
    Raises BadExecutor, BadPolicy.
    """
    layout = layout_of(shape, hidden, intermediate, dtype)
    given = {"device": device, "sms": sms}
    given = {key: value for key, value in given.items() if value is not None} | {"host": host, "cold": cold}
    asked = {
        "backend": backend, "shape": shape, "hidden": layout.hidden, "intermediate": layout.inner, "dtype": dtype,
        "experts": experts, "top_k": top_k, "cpu_threads": cpu_threads, "spin_us": spin_us, "activations": activations,
        "cold": cold, "host": host, "device": device, "sms": sms, "link_pad": link_pad, "quick": quick, "seed": seed,
        "policies": list(policies),
    }  # fmt: skip
    opened = make_backend(backend, **given)
    device_name = opened.device_name
    opened.close()
    with ColdChain(cpu_threads, spin_us=spin_us, activations=activations, kind=cold) as chain:
        found = measure(
            lambda: make_backend(backend, **given), chain, layout, n_experts=experts, top_k=top_k, link_pad=link_pad,
            policies=asked["policies"], effort=QUICK if quick else FULL, seed=seed, progress=progress,
        )  # fmt: skip
        threads, variant = chain.threads, chain.variant
    restricted = restricted_to(sms, link_pad)
    here = f"{device_name} and {cpu_in_words()}" + (f", restricted to {restricted}" if restricted else "")
    return check_machine(
        Machine(
            label="MEASURED",
            name=name or here,
            date=datetime.now(UTC).date().isoformat(), cpu_threads=threads, backend=backend, device=device_name,
            driver=_driver(backend), cpu=cpu_in_words(), libraries=_libraries(),
            restricted_to=restricted, details={"asked": asked, "variant": variant}, **_records(found),
        )
    )  # fmt: skip


def layout_of(shape: str | None, hidden: int | None, intermediate: int | None, dtype: str | None) -> RowLayout:
    """The rows that are measured. Raises BadExecutor."""
    known = Shape(hidden, intermediate) if hidden and intermediate and not shape else shape_of(shape or SHAPE)
    return known.sized(hidden, intermediate).layouts(1, dtype)[0]


def _records(found: Measured) -> dict[str, Any]:
    figures = {name: Figure(*value) for name, value in found.figures.items()}
    return {
        "figures": figures,
        "sheets": tuple(map(_sheet, found.sheets)),
        "policies": {
            family: {name: Figure(*value) for name, value in calls.items()} for family, calls in found.policies.items()
        },
        "overlap": {name: Figure(*value) for name, value in found.overlap.items()},
        "wake": tuple(Wake(**each) for each in found.wake),
        "contention": tuple(
            Contention(each["threads"], **{name: Figure(**each[name]) for name in SHARES}) for each in found.contention
        ),
    }


def _sheet(row: dict[str, Any]) -> Sheet:
    grids = {name: tuple(map(tuple, row[name])) for name in ("seconds", "spread_s")}
    return Sheet(**{**row, **grids, "rows": tuple(row["rows"]), "pairs_per_row": tuple(row["pairs_per_row"])})


def _driver(backend: str) -> str | None:
    """What the kernel says of NVIDIA's; None for other devices, or where it says nothing."""
    said = Path("/proc/driver/nvidia/version")
    return said.read_text().split("\n", 1)[0] if backend == "cupy" and said.exists() else None


def _libraries() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # the extra is not installed
            continue
    return found


callable_as_its_function(__name__)
