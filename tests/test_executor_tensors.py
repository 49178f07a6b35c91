"""Live callers: arrays of any exporter are read where they lie, and what does not fit is one line with the rule."""

from types import SimpleNamespace

import numpy as np
import pytest
from executor_cases import Model

from slotwise.executor.backend import make_backend
from slotwise.executor.cold import ColdChain
from slotwise.executor.errors import BadExecutor
from slotwise.executor.executor import Executor
from slotwise.executor.store import HostStore
from slotwise.executor.tensors import CUDA, on_gpu, on_host
from slotwise.policies import Pool
from slotwise.policies.errors import BadPolicy

MODEL = Model()
HIDDEN, K = MODEL.layout.hidden, MODEL.top_k


class Exporter:
    """Memory of somebody else's: DLPack is all that it has."""

    def __init__(self, array, device=(1, 0)):
        self._array, self._device = array, device

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._device


class Interface:
    """An array that only tells its address."""

    def __init__(self, array):
        self.kept, self.__array_interface__ = array, array.__array_interface__


@pytest.fixture(scope="module")
def store():
    with ColdChain(1) as chain:
        yield HostStore(MODEL.layouts, MODEL.n_experts, make_backend("numpy")).fill(7, chain), chain


@pytest.fixture
def executor(store):
    rows, chain = store
    pool = Pool("lru", n_layers=3, n_experts=MODEL.n_experts, slots=4, width=2, full=True)
    with Executor(pool, rows, make_backend("numpy"), chain, top_k=K, headroom_bytes=0, max_tokens=16) as opened:
        yield opened


def call(n=3, ids=np.int64):
    draw = np.random.default_rng(n)
    chosen = np.stack([draw.permutation(MODEL.n_experts)[:K] for _ in range(n)])
    return {
        "x": draw.normal(size=(n, HIDDEN)).astype(np.float32),
        "ids": chosen.astype(ids),
        "weights": draw.random((n, K), np.float32),
        "predicted": np.array([[1, 2]] * n).astype(ids),
    }


def computed(executor, arrays, kind):
    """All layers of a step, from arrays as that kind of tensor; what the pool decided, too."""
    executor.pool.reset()
    found = [executor.forward(layer, **{k: kind(v) for k, v in arrays.items()}) for layer in range(3)]
    executor.prefetch(2, kind(arrays["predicted"]))
    return b"".join(y.tobytes() for y in found), executor.pool.slots_of(2)


@pytest.mark.parametrize("ids", [np.uint8, np.int16, np.int32, np.int64])
def test_the_same_numbers_give_the_same_bytes_and_plans_whoever_owns_them(executor, ids):
    expected = computed(executor, call(), np.asarray)
    for kind in (Exporter, Interface):
        assert computed(executor, call(ids=ids), kind) == expected


def test_torch_tensors_are_read_where_they_lie_and_results_are_tensors_without_a_copy(executor):
    torch = pytest.importorskip("torch", reason="torch is optional, and not installed here")
    expected = computed(executor, call(), np.asarray)
    assert computed(executor, call(), torch.from_numpy) == expected
    arrays = {name: torch.from_numpy(value) for name, value in call().items()}
    assert on_host("x", arrays["x"], "numpy").ctypes.data == arrays["x"].data_ptr()
    y = executor.forward(0, **arrays)
    assert torch.from_dlpack(y).data_ptr() == y.ctypes.data
    with pytest.raises(BadExecutor, match=r"x: its DLPack export failed .*detach"):
        executor.forward(0, **arrays | {"x": arrays["x"].clone().requires_grad_()})
    with pytest.raises(BadExecutor, match="x"):
        executor.forward(0, **arrays | {"x": arrays["x"].bfloat16()})


def test_nothing_is_copied_on_the_way_in():
    array = call()["x"]
    for kind in (Exporter, Interface):
        assert np.shares_memory(on_host("x", kind(array), "numpy"), array)


def test_one_token_may_come_without_its_dimension_and_rows_with_gaps_are_read_as_they_are(executor):
    alone = call(1)
    y = executor.forward(0, **alone)
    flat = {name: value if name == "x" else value[0] for name, value in alone.items()}
    assert executor.forward(0, **flat).tobytes() == y.tobytes()
    apart = {name: np.repeat(value, 2, axis=0)[::2] for name, value in call(3).items()}
    assert not apart["x"].flags.c_contiguous
    assert executor.forward(0, **apart).tobytes() == executor.forward(0, **call(3)).tobytes()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (
            {"x": np.zeros((3, HIDDEN - 1), np.float32)},
            r"x has the shape \[3, 31\]: it is \[n, 32\], for n from 1 to max_to",
        ),
        ({"x": np.zeros((17, HIDDEN), np.float32)}, r"x has the shape \[17, 32\]"),
        ({"x": np.zeros((0, HIDDEN), np.float32)}, r"x has the shape \[0, 32\]"),
        ({"x": np.zeros((3, HIDDEN))}, "x is float64 and weights are float32: both must be float32"),
        ({"weights": np.zeros((3, K), np.float16)}, "weights are float16"),
        ({"weights": np.zeros((2, K), np.float32)}, r"weights has the shape \[2, 2\]: for 3 tokens it is \[3, 2\]"),
        ({"ids": np.zeros((3, K + 1), np.int64)}, r"ids has the shape \[3, 3\]: for 3 tokens it is \[3, 2\]"),
        ({"ids": np.zeros((3, K))}, "ids is float64: expert ids are whole numbers, such as int64"),
        ({"ids": np.zeros((3, K), bool)}, "ids is bool"),
        ({"ids": [[1, 2]] * 3}, "ids is a list: give an array, or a tensor that exports DLPack"),
        ({"predicted": np.zeros((2, 4), np.int32)}, r"predicted has the shape \[2, 4\]: for 3 tokens it is \[3, P\]"),
        ({"predicted": np.zeros((1, 3, 4), np.int32)}, r"predicted has the shape \[1, 3, 4\]"),
        (
            {"x": Exporter(np.zeros((3, HIDDEN), np.float32), (CUDA, 1))},
            r"x lies on GPU 1, but backend numpy .*\.cpu\(\)",
        ),
        ({"x": Exporter(np.zeros((3, HIDDEN), np.float32), (8, 0))}, "x lies on device kind 8, number 0"),
    ],
)
def test_what_does_not_fit_is_one_line_and_no_step_has_begun(executor, wrong, told):
    before = executor.forward(0, **call()).tobytes(), executor._step, executor.pool.counters
    with pytest.raises(BadExecutor, match=told) as refused:
        executor.forward(0, **call() | wrong)
    assert "\n" not in str(refused.value)
    assert (executor._step, executor.pool.counters) == before[1:]
    assert executor.forward(0, **call()).tobytes() == before[0]


def test_an_expert_or_layer_that_there_is_not_is_refused_and_no_step_has_begun(executor):
    executor.forward(1, **call())
    step = executor._step
    for layer, ids in ((0, np.full((3, K), 8)), (3, call()["ids"]), (-1, call()["ids"])):
        with pytest.raises(BadPolicy):
            executor.forward(layer, **call() | {"ids": ids})
        assert executor._step == step


def test_a_tensor_of_another_gpu_is_refused_and_host_arrays_are_not():
    """What is decided before anything is asked of CuPy; the rest needs a GPU."""
    cupy = SimpleNamespace(ndarray=type("ndarray", (), {}))
    array = np.zeros(4, np.float32)
    with pytest.raises(BadExecutor, match=r"x lies on GPU 1, but the executor computes on GPU 0: open it there"):
        on_gpu("x", Exporter(array, (CUDA, 1)), 0, cupy, 16)
    assert on_gpu("x", array, 0, cupy, 16) is array
    assert np.shares_memory(on_gpu("x", Exporter(array), 0, cupy, 16), array)


def test_a_backend_serves_one_executor_and_rows_of_a_pool_are_on_one_device(executor, store):
    rows, chain = store
    executor.forward(0, **call())
    again = {"top_k": K, "headroom_bytes": 0, "max_tokens": 16}
    with pytest.raises(BadExecutor, match="served another executor"):
        Executor(executor.pool, rows, executor.backend, chain, **again)
    executor.forward(1, **call())  # the first one goes on
    with pytest.raises(BadExecutor, match="the pool has rows already"):
        Executor(executor.pool, rows, make_backend("numpy"), chain, **again)


def test_ids_of_another_byte_order_are_refused_before_the_plan(executor):
    with pytest.raises(BadExecutor, match="byte order"):
        executor.forward(0, **call(ids=">i8"))
    assert executor.pool.counters["demands"] == 0


@pytest.mark.parametrize("wrong", [{"top_k": 0}, {"top_k": "2"}, {"horizon": 0}, {"max_tokens": 0}, {"staging": -1}])
def test_sizes_are_checked_at_opening(store, wrong):
    rows, chain = store
    pool = Pool("lru", n_layers=3, n_experts=MODEL.n_experts, slots=4, full=True)
    with pytest.raises(BadExecutor, match=next(iter(wrong))):
        Executor(pool, rows, make_backend("numpy"), chain, **({"top_k": K, "headroom_bytes": 0} | wrong))
