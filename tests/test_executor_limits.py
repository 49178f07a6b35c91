"""While an executor is open, the thread pools of other libraries have one thread; afterwards what they had before."""

from conftest import python

SCRIPT = """
import numpy as np
from numba import get_num_threads, njit, prange
from threadpoolctl import threadpool_info, threadpool_limits
from slotwise.executor.backend import make_backend
from slotwise.executor.cold import ColdChain, RowLayout
from slotwise.executor.executor import Executor
from slotwise.executor.store import HostStore
from slotwise.policies import Pool

def threads():
    return {pool["user_api"]: pool["num_threads"] for pool in threadpool_info()} | {"numba": get_num_threads()}

threadpool_limits(2)  # as on a machine of two cores
@njit(parallel=True)
def total(x):
    found = 0.0
    for i in prange(len(x)):
        found += x[i]
    return found
assert total(np.ones(9)) == 9
before = threads()
assert before["blas"] == 2, before
layout = RowLayout(32, 32, ("f32",) * 3)

def opened(chain, store):
    pool = Pool("lru", n_layers=1, n_experts=4, slots=2, full=True)
    return Executor(pool, store, make_backend("null"), chain, top_k=2, headroom_bytes=0)

with ColdChain(1, kind="numba") as chain:
    store = HostStore([layout], 4, make_backend("null"))
    with opened(chain, store):
        assert set(threads().values()) == {1}, threads()
        second = opened(chain, store)
    assert set(threads().values()) == {1}, "the second is open yet"
    second.close()
    second.close()
    assert threads() == before
    abandoned = opened(chain, store)
    del abandoned
    assert threads() == before
    try:
        Executor(Pool("lru", n_layers=2, n_experts=4, slots=2, full=True), store, make_backend("null"), chain, top_k=2)
    except ValueError:
        assert threads() == before
print("done", before["numba"])
"""


def test_blas_openmp_and_numba_have_one_thread_until_the_last_executor_closes():
    assert python(f"import os\nos.environ['NUMBA_NUM_THREADS'] = '2'\n{SCRIPT}").split() == ["done", "2"]
