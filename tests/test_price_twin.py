"""The compiled walk against its slow twin: every step's seconds, causes and late copies, over all that can be asked."""

from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle_price import PriceOracle

import slotwise
from slotwise.replay.machine_figures import Contention, Figure, Sheet, Wake

pytestmark = pytest.mark.kernels


@st.composite
def machines(draw):
    """Slow and fast links and chains, with contention, sheets and wakes or without."""
    scale = st.sampled_from([0.1, 1.0, 5.0])
    machine = slotwise.estimate_machine(
        link=1e9 * draw(scale), host_read=2e9 * draw(scale), device_read=20e9 * draw(scale), cpu_threads=4,
        figures={
            "copy_computed_bytes_per_s": 1e9 * draw(st.sampled_from([0.05, 0.5])),
            "own_caches_bytes": draw(st.sampled_from([1.0, 1500.0, 1e6])),
            "hot_by_most": draw(st.sampled_from([0.0, 0.5, 1.0])), "cold_by_most": draw(st.sampled_from([0.0, 0.3])),
        },
    )  # fmt: skip
    share = st.sampled_from([0.3, 0.8, 1.0]).map(Figure)
    machine = replace(machine, contention=(Contention(4, *(draw(share) for _ in range(4))),))
    if draw(st.booleans()):
        seconds = Figure(draw(st.sampled_from([1e-9, 2e-5, 1e-3])))
        beside = {"hot_with_cold": draw(share), "cold_with_hot": draw(share), "overlap_s": seconds}
        machine = replace(machine, overlap=beside)
    if draw(st.booleans()):
        machine = replace(machine, policies={"lfru+guard": {"policy_s": Figure(7e-5), "policy_ahead_s": Figure(3e-5)}})
    if draw(st.booleans()):
        machine = replace(machine, wake=(Wake(1e-5, 0.0), Wake(1e-3, 2e-4)))
    if draw(st.booleans()):
        spread = draw(st.sampled_from([0.0, 2e-6, 5e-5]))
        machine = replace(
            machine,
            label="MEASURED",
            sheets=tuple(
                Sheet(chain, 1000, tokens, (1, 3, 4), pairs, grid, tuple((spread,) * len(pairs) for _ in grid), threads)
                for chain, threads, base in (("hot", None, 1e-5), ("cold", 4, 4e-5))
                for tokens, pairs in ((1, (1.0,)), (3, (1.0, 2.0)))
                for grid in [tuple(tuple(base * rows**0.8 * p for p in pairs) for rows in (1, 3, 4))]
            ),
        )
    return machine


OPTIONS = {
    "width": st.integers(0, 3),
    "predictor": st.sampled_from(["previous", "oracle", "noisy(recall=0.6)"]),
    "scope": st.sampled_from(["layer", "global"]),
    "contract": st.sampled_from(["event", "sequential"]),
    "miss": st.sampled_from(["cpu", "fetch"]),
    "horizon": st.integers(1, 2),
    "lag_demand": st.sampled_from([0, 0, 3]),
    "lag_prefetch": st.sampled_from([0, 0, 2]),
    "max_loads": st.sampled_from([None, None, 1]),
    "reset": st.sampled_from(["persistent", "request"]),
    "batch_gate": st.sampled_from([8, 2]),
    "verify_tokens": st.sampled_from([1, 1, 3]),
}
PRICES = {
    "overlap": st.sampled_from(["on", "off", "auto"]),
    "late": st.sampled_from(["wait", "cold"]),
    "dense_us": st.sampled_from([0.0, 20.0]),
    "max_queued": st.sampled_from([None, 1500, 4000]),
    "spec_chunk": st.sampled_from([None, 1]),
}


@st.composite
def traces(draw, single):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, layers, experts, k = draw(st.integers(2, 30)), draw(st.integers(1, 3)), 8, draw(st.integers(1, 3))
    skew = rng.random(experts) ** 3 + 0.01
    ids = np.array([
        [rng.choice(experts, k, replace=False, p=skew / skew.sum()) for _ in range(layers)] for _ in range(n)
    ])  # fmt: skip
    step = np.arange(n) if single else np.cumsum(rng.random(n) < 0.6)
    rows = [1000] * layers if draw(st.booleans()) else (rng.integers(1, 4, layers) * 500).tolist()
    return slotwise.Trace.from_arrays(
        ids, n_experts=experts, step=step, request=step // 7, phase=(step % 7 > 0).astype(np.uint8), row_bytes=rows
    )


def held(trace, policy, slots, **asked):
    result = slotwise.replay(trace, policy, slots, bounds=False, **asked)
    price, oracle = result.price, PriceOracle(trace, policy, slots, **asked).run()
    assert np.allclose(price.step_s, oracle.steps, rtol=1e-6, atol=1e-9)
    assert sum(price.parts.values()) == pytest.approx(price.seconds, rel=1e-9)
    assert price.parts == pytest.approx(oracle.parts, rel=1e-5, abs=1e-8)
    assert price.at_once == {"ticks_overlapped": oracle.overlapped, "ticks_serial": oracle.serial}
    late = price.late
    assert (late["late_hits"], late["late_ticks"], late["diverted"]) == (
        oracle.late_hits, oracle.late_ticks, oracle.diverted
    )  # fmt: skip
    assert late["lateness_worst_s"] == pytest.approx(oracle.worst, rel=1e-6, abs=1e-9)
    assert price.busy["cold"] * price.seconds == pytest.approx(oracle.cold_busy, rel=1e-6, abs=1e-9)
    counters = result.counters
    assert (price.step_demands.sum(), price.step_misses.sum()) == (counters["demands"], counters["misses"])
    assert price.step_bytes.sum() == counters["bytes_moved"]
    return price, oracle


@settings(max_examples=40)
@given(st.data())
def test_a_price_is_that_of_the_slow_walk(data):
    options = {name: data.draw(values, name) for name, values in OPTIONS.items()}
    if options["contract"] == "sequential" or options["width"] == 0:
        options["predictor"] = "previous"
    trace = data.draw(traces(single=options["verify_tokens"] > 1))
    if options["scope"] == "global" and len(set(trace.row_bytes)) > 1:
        options["scope"] = "layer"
    if options["width"] == 0:
        del options["predictor"]
    asked = options | {name: data.draw(values, name) for name, values in PRICES.items()}
    policy = data.draw(st.sampled_from(["lru", "lfru+guard", "lru+gate(window=4, admit=2)"]))
    held(trace, policy, data.draw(st.integers(1, 6)), machine=data.draw(machines()), **asked)


@settings(max_examples=15)
@given(st.data())
def test_plain_lru_told_by_its_fast_kernel_has_the_same_price(data):
    trace = data.draw(traces(single=False))
    held(trace, "lru", data.draw(st.integers(1, 6)), machine=data.draw(machines()), miss=data.draw(OPTIONS["miss"]))


@settings(max_examples=15)
@given(st.data())
def test_steps_that_are_streamed_have_the_same_price(data):
    trace = data.draw(traces(single=False))
    held(
        trace, "lru", data.draw(st.integers(1, 6)), machine=data.draw(machines()), prefill="stream", batch_gate=1,
        miss=data.draw(OPTIONS["miss"]),
    )  # fmt: skip


def test_a_share_of_the_misses_is_fetched():
    trace = slotwise.Trace.synthesise(n_tokens=60, n_layers=2, n_experts=8, top_k=3, row_bytes=1000, name="toy")
    machine = slotwise.estimate_machine(link=1e9, host_read=2e9, device_read=20e9)
    prices = {share: held(trace, "lru", 3, machine=machine, split_share=share)[0] for share in (0.0, 0.5, 1.0)}
    assert prices[0.0].busy["cold"] > prices[0.5].busy["cold"] > prices[1.0].busy["cold"] == 0


@pytest.mark.once
def test_prices_of_a_sweep_on_several_threads_are_those_of_one(tmp_path):
    machine = slotwise.estimate_machine(["rtx-3060-x16", "ddr4"])
    asked = {"machine": machine, "row_bytes": 4_718_592, "steps": 400}
    out = slotwise.sweep(
        "sample", ["lru", "lfru+guard"], "16,32,64", (0, 4), out=tmp_path / "r.parquet", workers=8, **asked
    )
    rows = pq.read_table(out).to_pylist()
    assert len(rows) == 12
    for row in rows:
        alone = slotwise.replay("sample", row["policy"], row["slots"], width=row["width"], threads=1, **asked)
        assert row["price"] == alone.price.to_dict()
    counted = []
    slotwise.sweep("sample", "lru", 16, (0, 4), out=out, counted=lambda *counts: counted.append(counts), **asked)
    slotwise.sweep("sample", "lru", 16, out=out, counted=lambda *counts: counted.append(counts), row_bytes=4_718_592,
                   steps=400)  # fmt: skip
    slotwise.sweep("sample", "lru", 16, out=out, counted=lambda *counts: counted.append(counts), overlap="off", **asked)
    assert counted == [(0, 12), (1, 12), (1, 13)]
