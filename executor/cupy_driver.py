"""What our CuPy modules share: the driver, its errors in words, and kernels launched from prepared arguments."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .errors import BadExecutor, ContextLost

GET_IT = "install slotwise[cuda12] or slotwise[cuda13], whichever the driver supports"

NOT_READY = 600  # CUDA_ERROR_NOT_READY

LOST = frozenset({  # CUresult and cudaError alike: after these the context answers nothing else (CUDA Driver API)
    4, 201, 214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719,
})  # fmt: skip


def need_cupy() -> Any:
    """The module cupy, with at least one GPU behind it. Raises BadExecutor, saying what is absent and how to get it."""
    try:
        import cupy  # pyright: ignore[reportMissingImports]
    except ImportError as missing:
        raise BadExecutor(f"the cupy backend needs CuPy, which cannot be imported ({missing}): {GET_IT}") from missing
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as absent:
        raise BadExecutor(f"the cupy backend needs an NVIDIA GPU and its driver: {absent}") from absent
    if count < 1:
        raise BadExecutor("the cupy backend needs an NVIDIA GPU: the driver sees none")
    return cupy


def need_driver() -> Any:
    """The module cuda.bindings.driver. Raises BadExecutor where it is absent."""
    try:
        from cuda.bindings import driver  # pyright: ignore[reportMissingImports]
    except ImportError as missing:
        raise BadExecutor(f"the cupy backend needs cuda.bindings ({missing}): {GET_IT}") from missing
    return driver


def check(answer: Any) -> Any:
    """What a call of cuda.bindings.driver answered, without its error code.

    Raises ContextLost for an error after which there are only errors, BadExecutor for another, with the code's name.
    """
    error, *values = answer
    if int(error) in LOST:
        raise ContextLost(f"the CUDA driver answers {error.name} ({int(error)}), and nothing else from now on")
    if int(error):
        raise BadExecutor(f"the CUDA driver answers {error.name} ({int(error)})")
    return values[0] if len(values) == 1 else tuple(values) or None


def telling(call: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, where CuPy's errors of a lost device are ContextLost."""

    @functools.wraps(call)
    def told(*values: Any, **options: Any) -> Any:
        try:
            return call(*values, **options)
        except (need_cupy().cuda.runtime.CUDARuntimeError, need_cupy().cuda.driver.CUDADriverError) as error:
            if error.status not in LOST:
                raise
            raise ContextLost(f"CUDA answers {error}, and nothing else from now on") from error

    return told


def attribute(name: str) -> int:
    """A number of CuPy's current device: `name` as in CUdevice_attribute, without its prefix."""
    driver = need_driver()
    key = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return check(driver.cuDeviceGetAttribute(key, need_cupy().cuda.runtime.getDevice()))


def source(name: str) -> str:
    """The text of a .cu file beside this one."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def compiled(text: str) -> Any:
    """A CuPy module of CUDA C++ without headers, which CuPy keeps on disk. Nothing is fused but what says fmaf."""
    return need_cupy().RawModule(code=text, options=("--std=c++17", "--fmad=false"), backend="nvrtc")


class Calls:
    """The driver's own functions through ctypes, where the host's time matters; cuda.bindings makes the structures.

    Those that return at once keep the GIL: giving it away and asking for it again costs more than they do.
    """

    def __init__(self):
        quick, waiting = ctypes.PyDLL("libcuda.so.1"), ctypes.CDLL("libcuda.so.1")  # loaded already, by CuPy
        pointer, number, word = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint
        self.launch = _call(quick, "cuLaunchKernelEx", pointer, pointer, pointer, pointer)
        self.graph_set = _call(quick, "cuGraphExecKernelNodeSetParams_v2", pointer, pointer, pointer)
        self.graph_launch = _call(quick, "cuGraphLaunch", pointer, pointer)
        self.event_record = _call(quick, "cuEventRecord", pointer, pointer)
        self.event_query = _call(quick, "cuEventQuery", pointer)
        self.event_synchronize = _call(waiting, "cuEventSynchronize", pointer)
        self.stream_query = _call(quick, "cuStreamQuery", pointer)
        self.stream_wait = _call(quick, "cuStreamWaitEvent", pointer, pointer, word)
        self.copy_to_device = _call(quick, "cuMemcpyHtoDAsync_v2", pointer, pointer, number, pointer)
        batch = (pointer, pointer, pointer, number, pointer, pointer, number)
        self.batch_13 = _call(quick, "cuMemcpyBatchAsync_v2", *batch, pointer)  # CUDA 13
        self.batch_12_8 = _call(quick, "cuMemcpyBatchAsync", *batch, pointer, pointer)  # with the index that failed


def _call(library: ctypes.CDLL, name: str, *arguments: Any) -> Any:
    """A function of the driver that answers an error code, or None if this driver is older than the function."""
    if not hasattr(library, name):
        return None
    call = getattr(library, name)
    call.argtypes, call.restype = arguments, ctypes.c_int
    return call


@functools.cache
def calls() -> Calls:
    """The functions of the driver of this process."""
    return Calls()


def refused(error: int) -> None:
    """As `check`, for an error code alone."""
    if error:
        check((need_driver().CUresult(error),))


class Kernel:
    """One kernel with one structure as its argument, launched from prepared memory.

    `args` is that structure, a numpy record [1]: fill it, then `launch`. The driver copies it during the call, so it
    can be filled again at once. dependent: the kernel may begin while the one before it in the stream still runs; it
    must wait for that one's end itself (griddepcontrol.wait).
    """

    def __init__(
        self,
        module: Any,
        name: str,
        args: np.ndarray,
        *,
        grid: int,
        block: int,
        shared_bytes: int = 0,
        dependent: bool = False,
    ):
        driver = need_driver()
        self.raw = module.get_function(name)  # keeps the code loaded
        self.args: Any = args
        self.function = int(self.raw.kernel.ptr)
        if shared_bytes:
            # The whole carve-out: else the first kernel on an SM leaves no room for the second beside it.
            wanted = ("MAX_DYNAMIC_SHARED_SIZE_BYTES", shared_bytes), ("PREFERRED_SHARED_MEMORY_CARVEOUT", 100)
            for key, value in wanted:
                kind = getattr(driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{key}")
                check(driver.cuFuncSetAttribute(driver.CUfunction(self.function), kind, value))
        self.config = driver.CUlaunchConfig()
        self.config.gridDimX, self.config.gridDimY, self.config.gridDimZ = grid, 1, 1
        self.config.blockDimX, self.config.blockDimY, self.config.blockDimZ = block, 1, 1
        self.config.sharedMemBytes = shared_bytes
        if dependent:
            may = driver.CUlaunchAttribute()
            may.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            may.value.programmaticStreamSerializationAllowed = 1
            self.config.attrs, self.config.numAttrs = [may], 1
        self._pointers = np.array([args.ctypes.data], np.uint64)
        self.parameters = self._pointers.ctypes.data
        self._stream, self._grid = 0, (grid, 1)
        self._config_at = int(self.config.getPtr())
        self._launch = calls().launch

    def grid(self, x: int, y: int = 1) -> None:
        """Sets the number of blocks of the next launches."""
        if (x, y) != self._grid:
            self.config.gridDimX, self.config.gridDimY = self._grid = x, y

    def launch(self, stream: int) -> None:
        """Queues the kernel on a stream, given as its handle. Raises BadExecutor if the driver refuses."""
        if stream != self._stream:
            self.config.hStream = self._stream = stream
        refused(self._launch(self._config_at, self.function, self.parameters, None))


class KernelGraph:
    """Kernels that run one after another, queued by one launch of a graph; each launch takes their arguments anew."""

    def __init__(self, kernels: Sequence[Kernel]):
        driver, cupy = need_driver(), need_cupy()
        stream = cupy.cuda.Stream(non_blocking=True)
        stream.begin_capture()
        for kernel in kernels:
            kernel.launch(stream.ptr)
        self._graph = stream.end_capture()  # keeps graph and executable
        self._graph.upload(stream)
        stream.synchronize()
        of_function = {kernel.function: kernel for kernel in kernels}
        self._keep, self._nodes = [kernels], []
        for node in check(driver.cuGraphGetNodes(driver.CUgraph(int(self._graph.graph)), len(kernels)))[0]:
            parameters = check(driver.cuGraphKernelNodeGetParams(node))
            parameters.kernelParams = of_function[int(parameters.func)].parameters
            self._keep.append((node, parameters))
            self._nodes.append((int(node), int(parameters.getPtr())))
        self._exec = int(self._graph.graphExec)
        self.handles = (self._exec, *(handle for node in self._nodes for handle in node))
        self._set, self._launch = calls().graph_set, calls().graph_launch

    def launch(self, stream: int) -> None:
        """Queues the kernels on a stream, given as its handle. Launches before keep the arguments that they had."""
        for node, parameters in self._nodes:
            refused(self._set(self._exec, node, parameters))
        refused(self._launch(self._exec, stream))
