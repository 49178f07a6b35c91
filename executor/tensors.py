"""Arrays of callers, NumPy's, CuPy's, torch's, anyone's through DLPack: taken in without a copy, or refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import BadExecutor

if TYPE_CHECKING:
    from .backend import Backend
    from .executor import Executor

CPU, CUDA, PAGE_LOCKED, MANAGED = 1, 2, 3, 13  # DLDeviceType of dlpack.h
_ON_HOST = (CPU, PAGE_LOCKED)


def device_of(value: Any) -> tuple[int, int] | None:
    """(kind, number) of the device that an exporter of DLPack lies on; None for what exports nothing."""
    if not hasattr(value, "__dlpack_device__"):
        return None
    kind, number = value.__dlpack_device__()
    return int(kind), int(number)


def through_dlpack(name: str, value: Any, take: Any) -> Any:
    """What `take`, somebody's `from_dlpack`, makes of a value. Raises BadExecutor with the exporter's reason."""
    try:
        return take(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        why = str(error).strip().split("\n")[0]
        raise BadExecutor(f"{name}: its DLPack export failed ({why}); a torch tensor may need .detach()") from error


def on_host(name: str, value: Any, backend: str) -> np.ndarray:
    """The same memory as a NumPy array. Raises BadExecutor for what is no array, or lies on a device."""
    if isinstance(value, np.ndarray):
        return value
    device = device_of(value)
    if device is not None and device[0] in _ON_HOST:
        return through_dlpack(name, value, np.from_dlpack)
    if device is not None:
        kind = "GPU" if device[0] in (CUDA, MANAGED) else f"device kind {device[0]}, number"
        raise BadExecutor(
            f"{name} lies on {kind} {device[1]}, but backend {backend} takes host memory there: move it with .cpu()"
            + (", or open the executor on backend cupy" if backend != "cupy" else " or to the executor's GPU")
        )
    if hasattr(value, "__array_interface__"):
        return np.asarray(value)
    raise BadExecutor(f"{name} is a {type(value).__name__}: give an array, or a tensor that exports DLPack")


def on_gpu(name: str, value: Any, gpu: int, cupy: Any, unit: int) -> Any:
    """A device tensor of that GPU as a CuPy array over the same memory, a host array as NumPy's. Raises BadExecutor.

    `unit`: bytes that kernels read at once. CuPy's current stream waits for what the exporter's holds, the host not.
    """
    if isinstance(value, np.ndarray):
        return value
    kind, there = (CUDA, value.device.id) if isinstance(value, cupy.ndarray) else device_of(value) or (CPU, 0)
    if kind not in (CUDA, MANAGED):
        return on_host(name, value, "cupy")
    if there != gpu:
        raise BadExecutor(
            f"{name} lies on GPU {there}, but the executor computes on GPU {gpu}: open it there (device=)"
        )
    if not isinstance(value, cupy.ndarray):
        value = through_dlpack(name, value, cupy.from_dlpack)
    if not value.flags.c_contiguous or value.data.ptr % unit:
        raise BadExecutor(f"{name} has gaps, or begins at no multiple of {unit} bytes: pass a contiguous copy")
    return value


def take_in(executor: Executor, x: Any, ids: Any, weights: Any, predicted: Any) -> tuple[Any, Any, Any, Any]:
    """The arrays of one `forward` as the backend's. Raises BadExecutor unless they fit each other and the model."""
    adopt, hidden, top_k = executor.backend.adopt, executor.store.layouts[0].hidden, executor.top_k
    x, ids, weights = adopt("x", x), adopt("ids", ids), adopt("weights", weights)
    if x.ndim != 2 or x.shape[1] != hidden or not 1 <= x.shape[0] <= executor.max_tokens:
        most = executor.max_tokens
        raise BadExecutor(f"x has the shape {list(x.shape)}: it is [n, {hidden}], for n from 1 to max_tokens={most}")
    n = x.shape[0]
    if x.dtype != np.float32 or weights.dtype != np.float32:
        raise BadExecutor(f"x is {x.dtype} and weights are {weights.dtype}: both must be float32")
    for name, value in (("ids", ids), ("weights", weights)):
        if value.shape != (n, top_k) and not (n == 1 and value.shape == (top_k,)):
            raise BadExecutor(f"{name} has the shape {list(value.shape)}: for {n} tokens it is [{n}, {top_k}]")
    _check_ids("ids", ids)
    if predicted is not None:
        predicted = take_ids(executor.backend, predicted)
        if (predicted.shape[0] if predicted.ndim == 2 else 1) != n:
            raise BadExecutor(f"predicted has the shape {list(predicted.shape)}: for {n} tokens it is [{n}, P]")
    return x, ids, weights.reshape(n, top_k), predicted


def take_ids(backend: Backend, predicted: Any) -> Any:
    """Predictions as the backend's array. Raises BadExecutor."""
    taken = backend.adopt("predicted", predicted)
    _check_ids("predicted", taken)
    return taken


def _check_ids(name: str, ids: Any) -> None:
    if ids.dtype.kind not in "iu":
        raise BadExecutor(f"{name} is {ids.dtype}: expert ids are whole numbers, such as int64, int32 or uint8")
    if not ids.dtype.isnative:
        raise BadExecutor(f"{name} is {ids.dtype.str}: pass this machine's byte order, by .astype({ids.dtype.name!r})")
    if ids.ndim not in (1, 2):
        raise BadExecutor(f"{name} has the shape {list(ids.shape)}: it is [n, P], or [P] for one token")
