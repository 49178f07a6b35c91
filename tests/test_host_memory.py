"""Memory that rows are copied from: its kinds give the same bytes, and what does not fit is refused with numbers."""

import threading
from contextlib import closing

import numpy as np
import pytest
from conftest import slotwise as cli
from executor_cases import Model, carry_out
from hypothesis import given
from hypothesis import strategies as st
from test_executor import SIZES, Failing, same_plans

import slotwise
from slotwise.executor import store as stores
from slotwise.executor.backend import Copy, make_backend
from slotwise.executor.backend_numpy import NumpyBackend
from slotwise.executor.ceilings import measure
from slotwise.executor.cold import ColdChain
from slotwise.executor.errors import BadExecutor, CopyDoubtful, CopyRefused, ExecutorWarning
from slotwise.executor.host_memory import HOSTS, Ring, huge_pages, ordinary
from slotwise.executor.store import HostStore
from slotwise.policies.room import available_bytes

pytestmark = pytest.mark.once

GIB = 1 << 30


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("miss", ["cpu", "fetch"])
def test_every_kind_of_memory_gives_the_same_plans_and_bytes(host, miss):
    model = Model()
    trace = model.trace(SIZES)
    before = threading.active_count()
    for ring_bytes in (1024, 1 << 15):  # a row is 12 KiB: many pieces, or two rows at a time
        backend = make_backend("numpy", host=host, ring_bytes=ring_bytes)
        outcome = carry_out(model, trace, "lfru+guard", 4, width=3, backend=backend, miss=miss, max_queued=1)
        same_plans(outcome, trace, "lfru+guard", 4, width=3)
        assert outcome.outputs == carry_out(model, trace, "lru", 0).outputs
        assert (backend._ring is not None and backend._ring.reused > 10) == (host == "staged")
    assert threading.active_count() == before


@given(
    sizes=st.lists(st.integers(1, 900), min_size=1, max_size=60),
    ring_bytes=st.sampled_from([1024, 2048, 5120]),
    most=st.sampled_from([1, 2, 512]),
)
def test_a_ring_is_never_written_where_a_copy_still_reads(sizes, ring_bytes, most):
    """Copies are made as late as they may be: when somebody waits for them, or at the end."""
    rows = [np.full(size, i + 1, np.uint8) for i, size in enumerate(sizes)]
    targets = [np.zeros_like(row) for row in rows]
    device, held = NumpyBackend(), []
    ring = Ring(ordinary(ring_bytes), most)

    def wait(ticket):
        while held and held[0][0] <= ticket:
            device._carry(held.pop(0)[1], None)

    def submit(batch):
        assert len(batch) <= most
        held.append((len(held) and held[-1][0] + 1, batch))
        return held[-1][0]

    copies = [Copy(row.ctypes.data, to.ctypes.data, row.size) for row, to in zip(rows, targets, strict=True)]
    half = len(copies) // 2
    if half:
        ring.carry(copies[:half], submit, wait)
    wait(ring.carry(copies[half:], submit, wait))
    assert all(np.array_equal(row, to) for row, to in zip(rows, targets, strict=True))


def test_what_a_refused_batch_took_of_a_ring_is_free_again():
    ring, row = Ring(ordinary(1024)), np.arange(256, dtype=np.uint8)
    to = np.zeros_like(row)

    def refuse(batch):
        raise CopyRefused("asked for by a test")

    for _ in range(20):
        with pytest.raises(CopyRefused):
            ring.carry([Copy(row.ctypes.data, to.ctypes.data, 256)], refuse, pytest.fail)
    assert ring.reused == 0
    with pytest.raises(BadExecutor, match="a ring of 100 bytes"):
        Ring(ordinary(100))
    with pytest.raises(BadExecutor, match="host='heap': pinned, registered or staged"):
        make_backend("numpy", host="heap")


def test_huge_pages_are_aligned_zeroed_and_written_like_any_memory():
    memory = huge_pages((3 << 20) + 7)
    assert memory.size == (3 << 20) + 7
    assert memory.ctypes.data % (2 << 20) == 0
    assert not memory.any()
    memory[:] = 1
    assert memory.sum() == memory.size


@pytest.mark.parametrize("kind", [CopyRefused, CopyDoubtful])
def test_staged_copies_that_fail_are_repeated_by_a_replay(kind):
    class Staged(Failing):
        def __init__(self, failing):
            NumpyBackend.__init__(self, host="staged", ring_bytes=1024)
            self.failing, self.calls = failing, -1

    model = Model()
    trace = model.trace(SIZES[:5])
    usual = carry_out(model, trace, "lru", 3, width=3)
    for place in range(0, usual.executor.transfers.n_batches, 2):
        outcome = carry_out(model, trace, "lru", 3, width=3, backend=Staged({place: kind}))
        assert (outcome.outputs, len(outcome.failures)) == (usual.outputs, 1)
        same_plans(outcome, trace, "lru", 3, width=3)


def machine(folder, *, available, groups="", **files):
    """A /proc and a /sys/fs/cgroup as this process might see them; returns what can be had there."""
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable: {available >> 10} kB\n")
    if groups:
        (folder / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = folder / "sys" / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(text))
    return available_bytes(folder / "proc", folder / "sys")


V2 = {"memory_dot_max": 8 * GIB, "memory_dot_current": 5 * GIB, "memory_dot_stat": f"anon 1\ninactive_file {GIB}\n"}
V1 = {
    "memory_dot_limit_in_bytes": 6 * GIB,
    "memory_dot_usage_in_bytes": 5 * GIB,
    "memory_dot_stat": f"inactive_file 7\ntotal_inactive_file {GIB // 2}\n",
}


def test_what_can_be_had_is_the_least_that_machine_and_groups_leave(tmp_path):
    def case(name, **options):
        return machine(tmp_path / name, available=20 * GIB, **options)

    under = lambda path, files: {f"{path}__{name}": value for name, value in files.items()}  # noqa: E731
    assert case("bare") == 20 * GIB
    assert case("v2", groups="0::/\n", **V2) == 4 * GIB
    assert case("inside", groups="0::/a/b\n", **under("a", V2)) == 4 * GIB
    assert case("unlimited", groups="0::/\n", **{**V2, "memory_dot_max": "max\n"}) == 20 * GIB
    assert case("v1", groups="4:cpu,memory:/x\n", **under("memory__x", V1)) == GIB + GIB // 2
    assert case("unseen", groups="4:memory:/docker/77\n0::/\n", **under("memory", V1)) == GIB + GIB // 2
    assert case("other", groups="4:cpu:/\n", **V1) == 20 * GIB
    assert case("full", groups="0::/\n", **{**V2, "memory_dot_current": 12 * GIB}) == 0
    tight = under("a", {**V2, "memory_dot_max": 5 * GIB})
    assert case("both", groups="0::/a\n", **V2, **tight) == GIB
    assert machine(tmp_path / "machine", available=GIB, groups="0::/\n", **V2) == GIB


def test_a_store_that_does_not_fit_is_an_error_with_numbers_and_with_force_a_warning(monkeypatch):
    model, backend = Model(), make_backend("numpy")
    needed = 2 * 8 * model.layout.row_bytes
    monkeypatch.setattr(stores, "available_bytes", lambda: needed - 1)
    with pytest.raises(
        BadExecutor,
        match=r"rows of 2 layers x 8 experts take .* GiB can be had now; .*--alias-layers N of `run`.*`calibrate`",
    ):
        HostStore([model.layout] * 2, 8, backend)
    with pytest.warns(ExecutorWarning, match="can be had now"):
        HostStore([model.layout] * 2, 8, backend, force=True)
    HostStore([model.layout] * 2, 8, backend, alias_layers=1)
    monkeypatch.setattr(stores, "available_bytes", lambda: needed)
    HostStore([model.layout] * 2, 8, backend)


def test_the_link_is_measured_with_rows_of_the_store_if_the_device_has_room_for_one():
    model, seen = Model(), []

    class Watched(NumpyBackend):
        def _carry(self, copies, after):
            seen.extend(copies)
            super()._carry(copies, after)

    store = HostStore([model.layout] * 2, 8, make_backend("numpy"))
    row = model.layout.row_bytes
    with ColdChain(1) as chain:
        with closing(Watched(device_bytes=3 * row + 100)) as backend:
            speed = measure(backend, chain, store)["copy_rows_per_s"]
        with closing(NumpyBackend(device_bytes=row - 1)) as small:
            assert measure(small, chain, store)["copy_rows_per_s"] is None
    assert speed is not None
    assert 0 < speed < 1e13
    rows = [copy for copy in seen if copy.n_bytes == row]
    assert {copy.source for copy in rows} == {address for layer in store.addresses for address in layer}
    assert len({copy.target for copy in rows}) == 3


@pytest.mark.parametrize("host", HOSTS)
def test_a_run_says_its_memory_the_speed_of_it_and_what_it_was_restricted_to(host):
    asked = {"policy": "lru", "slots": 16, "width": 2, "steps": 10, "shape": "tiny", "headroom": 0, "alias_layers": 1}
    rest = {"max_queued": "32KiB", "spec_chunk": 1, "link_pad": 2, "merge": "cpu", "spin_us": 0.0, "cpu_threads": 1}
    (run,) = slotwise.run("sample", check=True, host=host, **asked, **rest)["runs"]
    assert (run["host"], run["merge"], run["restricted_to"]) == (host, "cpu", "1/3 of the link")
    assert run["ceilings"]["copy_rows_per_s"] > 0
    assert run["timing"]["bytes_padded"] == 2 * run["timing"]["bytes_copied"]
    words = ("run", "sample", "--shape", "tiny", "--headroom", "0", "--steps", "3", "--alias-layers", "1")
    said = cli(*words, "--host", host, "--link-pad", "1").stdout
    assert "restricted to 1/2 of the link" in said
    assert f"; {host} rows of 128 x 64" in said
