"""Speculative rows that wait on the host: no plan and no byte depends on when their copies are started, or fail."""

import itertools
import random

import numpy as np
import pytest
from conftest import examples, some
from executor_cases import Model, carry_out
from hypothesis import given
from hypothesis import strategies as st
from test_executor import POLICIES, SIZES, Failing, same_plans

from slotwise.executor.backend import make_backend
from slotwise.executor.backend_null import NullBackend
from slotwise.executor.backend_numpy import NumpyBackend
from slotwise.executor.errors import BadExecutor, CopyDoubtful, CopyRefused
from slotwise.executor.slots import Slots
from slotwise.executor.sort import Load
from slotwise.executor.store import HostStore
from slotwise.executor.transfers import WAITING, Transfers
from slotwise.policies import Pool


class Lagging(NumpyBackend):
    """A slow link: a copy is made some time after it was started, as a seed has it, or when somebody waits for it."""

    def __init__(self, seed, odds=0.2, failing=()):
        super().__init__()
        self._draw, self._odds, self._failing = random.Random(seed), odds, dict(failing)
        self._held, self.calls = {}, -1

    def copy(self, copies, after=None):
        self.calls += 1
        kind = self._failing.get(self.calls)
        if kind is CopyRefused:
            raise kind("asked for by a test")
        ticket = len(self._held)
        self._held[ticket] = (copies[: len(copies) // 2] if kind else copies, after)
        if kind:
            raise kind("asked for by a test")
        return ticket

    def _made(self, upto):
        for ticket, held in self._held.items():
            if ticket <= upto and held is not None:
                self._held[ticket] = None
                if held[0]:
                    super().copy(*held).result()

    def landed(self, ticket):
        if self._draw.random() < self._odds:
            self._made(min((t for t, held in self._held.items() if held), default=-1))
        return self._held[ticket] is None

    def hot(self, tick, work, after=()):
        self._made(max(after, default=-1))
        return super().hot(tick, work)

    def drain(self):
        self._made(len(self._held))
        super().drain()


@pytest.mark.once
@examples(80)
@given(data=st.data())
def test_no_plan_and_no_byte_depends_on_what_waits_or_fails_late(data):
    model = Model()
    trace = model.trace(data.draw(st.lists(st.sampled_from([1, 1, 1, 2, 3, 9]), min_size=3, max_size=12)), 5)
    policy, width = data.draw(st.sampled_from(POLICIES)), data.draw(st.sampled_from([1, 4]))
    slots, scope = data.draw(st.integers(1, 9)), data.draw(st.sampled_from(["layer", "global"]))
    pool = {
        "scope": scope,
        "contract": data.draw(st.sampled_from(["event", "sequential"])),
        "lag_prefetch": data.draw(st.sampled_from([0, 0, 3])),
        "prefill": data.draw(st.sampled_from(["cached", "stream"])),
        "overflow": "bypass" if "static" in policy else data.draw(st.sampled_from(["bypass", "bypass", "exceed"])),
    }
    run = {
        "overlap": data.draw(st.booleans()),
        "miss": data.draw(st.sampled_from(["cpu", "fetch", "split"])),
        "late": data.draw(st.sampled_from(["wait", "cold"])),
        "spec_chunk": data.draw(st.sampled_from([None, 1, 2])),
        "max_queued": data.draw(st.sampled_from([1, 2 * model.layout.row_bytes])),
        "link_pad": data.draw(st.sampled_from([0, 0, 2])),
    }
    failing = data.draw(st.dictionaries(st.integers(0, 60), st.sampled_from([CopyRefused, CopyDoubtful]), max_size=8))
    backend = Lagging(data.draw(st.integers(0, 99)), data.draw(st.sampled_from([0.0, 0.2, 0.9])), failing)
    outcome = carry_out(model, trace, policy, slots, width=width, pool=pool, backend=backend, **run)
    same_plans(outcome, trace, policy, slots, width=width, **pool)
    assert outcome.outputs == carry_out(model, trace, "lru", 0).outputs


@pytest.mark.parametrize("late", ["wait", "cold"])
def test_rows_that_wait_are_called_up_or_diverted_when_they_are_demanded(late):
    model = Model()
    trace = model.trace([1] * 12, seed=2)
    runs = [
        carry_out(model, trace, "lru", 6, width=4, backend=Lagging(0, odds=0.0), late=late, max_queued=each)
        for each in (None, 1)
    ]
    assert runs[0].outputs == runs[1].outputs
    assert runs[0].plan_sha256 == runs[1].plan_sha256
    once, queued = (run.executor.transfers for run in runs)
    assert (once.hurried, once.overtaken) == (0, 0)
    assert (queued.hurried > 0, runs[1].executor.dispatcher.diverted > 0) == (late == "wait", late == "cold")
    assert queued.n_copies + queued.overtaken == once.n_copies
    assert queued.overtaken > 0


def test_a_missed_row_on_its_way_by_plan_is_fetched_once_though_it_still_waits():
    model = Model()
    trace, pool = model.trace([1] * 12, seed=2), {"lag_prefetch": 5}
    runs = [
        carry_out(
            model, trace, "lru", 6, width=4, backend=Lagging(0, odds=0.0), pool=pool, miss="fetch", max_queued=each
        )
        for each in (None, 1)
    ]
    once, queued = (run.executor.transfers for run in runs)
    assert runs[1].counters["late"] > 0
    assert queued.hurried > 0
    assert queued.n_copies + queued.overtaken == once.n_copies
    assert runs[0].outputs == runs[1].outputs


@pytest.mark.parametrize("kind", [CopyRefused, CopyDoubtful])
@pytest.mark.parametrize("options", some([{"late": "cold"}, {"late": "wait"}, {"miss": "fetch"}], 1))
def test_a_copy_that_fails_after_it_waited_changes_no_plan_and_waits_again(kind, options):
    model = Model()
    trace = model.trace(SIZES[:6])
    options = {"max_queued": 1, "spec_chunk": 1, **options}
    usual = carry_out(model, trace, "lfru+guard", 5, width=3, **options)
    requeued = 0
    for place in range(usual.executor.transfers.n_batches):
        outcome = carry_out(model, trace, "lfru+guard", 5, width=3, backend=Lagging(1, 0.3, {place: kind}), **options)
        assert outcome.outputs == usual.outputs
        same_plans(outcome, trace, "lfru+guard", 5, width=3)
        late = outcome.executor.transfers.requeued
        assert not (late and outcome.failures)  # one failure: it met a tick's own batch, or one that had waited
        requeued += late
    assert requeued > 0


class Opened:
    """Transfers over a backend that records, with slots of two layers of eight experts."""

    def __init__(self, **options):
        model, self.backend, self.landed = Model(n_layers=2), NullBackend(), set()
        self.backend.landed = lambda ticket: ticket in self.landed
        store = HostStore([model.layout] * 2, 8, self.backend)
        pool = Pool("lru", n_layers=2, n_experts=8, slots=4, full=True)
        self.row = model.layout.row_bytes
        slots = Slots(pool, store, self.backend, scratch=0, staging=0, headroom_bytes=0, pad=2)
        self.transfers = Transfers(store, slots, self.backend, **options)
        self.backend.calls.clear()

    def copied(self):
        """(expert of layer 1, slot) of every copy into a slot, batch by batch, since the last time."""
        base, stride = self.transfers.slots.address(1, 0), self.transfers.slots.strides[1]
        start = self.transfers.store.addresses[1][0]
        found = [
            [((copy.source - start) // stride, (copy.target - base) // stride) for copy in copies]
            for name, copies in self.backend.calls
            if name == "copy" and copies[0].target not in self.transfers.slots.pad
        ]
        self.backend.calls.clear()
        return found


def loads(*pairs):
    return [Load(1, expert, 1, slot) for expert, slot in pairs]


def test_batches_wait_in_order_until_earlier_ones_have_landed_and_demand_overtakes_them():
    opened = Opened(max_queued=2 * Model().layout.row_bytes)
    transfers = opened.transfers
    transfers.ahead(loads((0, 0), (1, 1), (2, 2)))  # more than may be in the driver, which is empty: it goes alone
    transfers.ahead(loads((3, 3)))
    assert opened.copied() == [[(0, 0), (1, 1), (2, 2)]]
    assert transfers.ticket(1, 3) is WAITING
    transfers.fill(loads((7, 0)))
    assert not transfers.pump()
    assert opened.copied() == [[(7, 0)]]
    opened.landed = {1}
    transfers.ahead(loads((4, 1)))  # would fit, but another was here first
    assert opened.copied() == []
    opened.landed = set(range(10))
    assert transfers.pump()
    assert opened.copied() == [[(3, 3)], [(4, 1)]]
    assert transfers.ticket(1, 3) is None


def test_a_slot_that_is_taken_again_drops_the_copy_that_still_waits_for_it():
    transfers = (opened := Opened(max_queued=1)).transfers
    transfers.ahead(loads((0, 0)))
    transfers.ahead(loads((1, 1), (2, 2)))
    transfers.fill(loads((3, 2)))  # a demand load
    transfers.ahead(loads((4, 1)))  # a speculative one
    opened.landed = set(range(10))
    assert transfers.pump()
    assert opened.copied() == [[(0, 0)], [(3, 2)], [(4, 1)]]
    assert transfers.overtaken == 2


def test_a_refused_batch_drops_nothing_that_waits_and_a_doubtful_one_does():
    for kind, dropped in ((CopyRefused, 0), (CopyDoubtful, 1)):
        transfers = (opened := Opened(max_queued=1)).transfers
        transfers.ahead(loads((0, 0)))
        transfers.ahead(loads((1, 1)))

        def copy(copies, after=None, kind=kind):
            raise kind("asked for by a test")

        opened.backend.copy = copy
        with pytest.raises(kind):
            transfers.fill(loads((3, 1)))
        assert transfers.overtaken == dropped
        assert (transfers.ticket(1, 1) is WAITING) == (dropped == 0)


def test_what_waits_is_given_up_when_the_pools_are_emptied():
    transfers = (opened := Opened(max_queued=1)).transfers
    for i in range(3):
        transfers.ahead(loads((i, i)))
    transfers.forget()
    opened.landed = set(range(10))
    assert not transfers.pump()
    assert opened.copied() == [[(0, 0)]]
    assert transfers.overtaken == 2


def test_padded_copies_go_where_nobody_reads_and_are_part_of_the_memory_check():
    opened = Opened(link_pad=3)
    opened.transfers.fill(loads((0, 0), (1, 1), (2, 2)))
    batches = [copies for name, copies in opened.backend.calls if name == "copy"]
    assert [len(copies) for copies in batches] == [2, 2, 2, 2, 1, 3]
    padded = list(itertools.chain(*batches[:-1]))
    assert {copy.target for copy in padded} == set(opened.transfers.slots.pad)
    assert sorted(copy.source for copy in padded) == sorted(3 * [copy.source for copy in batches[-1]])
    assert (opened.transfers.n_copies, opened.transfers.bytes_padded) == (3, 9 * opened.row)
    model, rows = Model(), 3 * 2 + 2
    trace, room = model.trace([1, 1, 1]), rows * model.layout.row_bytes
    padded = carry_out(model, trace, "lru", 2, backend=NumpyBackend(device_bytes=room), link_pad=1)
    assert padded.outputs == carry_out(model, trace, "lru", 2).outputs
    with pytest.raises(BadExecutor, match="at most 1 slots a pool fit"):
        carry_out(model, trace, "lru", 2, backend=NumpyBackend(device_bytes=room - 1), link_pad=1)


def test_where_the_merge_runs_changes_no_byte():
    model = Model()
    trace = model.trace(SIZES)
    runs = [carry_out(model, trace, width=2, backend=make_backend("numpy", merge=each)) for each in ("cpu", "gpu")]
    assert runs[0].outputs == runs[1].outputs
    assert np.isfinite(np.frombuffer(runs[0].outputs, np.float32)).all()


def test_options_of_copies_are_checked_before_anything_opens():
    model = Model()
    for options, told in (
        ({"max_queued": 0}, "max_queued=0"),
        ({"link_pad": -1}, "link_pad=-1"),
        ({"backend": Failing({}), "late": "never"}, "late='never': wait or cold"),
    ):
        with pytest.raises(BadExecutor, match=told):
            carry_out(model, model.trace([1]), **options)
    with pytest.raises(BadExecutor, match="merge='tpu': cpu or gpu"):
        make_backend("numpy", merge="tpu")
