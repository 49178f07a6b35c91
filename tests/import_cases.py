"""What the tests of importers share: the refusal of a file, a naive count of a replay, and files that rot."""

import random

import numpy as np
import pytest
from trace_cases import whole

import slotwise
from slotwise.traces import BadTrace, open_trace


def refusal(*paths, **hints) -> str:
    with pytest.raises(BadTrace) as refused:
        open_trace(paths, **hints)
    assert "\n" not in str(refused.value)
    assert any(str(path) in str(refused.value) for path in paths)
    return str(refused.value)


def naive_lru(steps, slots) -> dict:
    """`steps [step][layer][token]` lists of ids; the counters of `lru` with a pool a layer, by the words of the law."""
    count = dict.fromkeys(("demands", "hits", "misses", "routed"), 0)
    resident = [{} for _ in steps[0]]  # of a layer: expert -> when it was touched last
    for s, step in enumerate(steps):
        for layer, tokens in enumerate(step):
            touches = [expert for ids in tokens for expert in ids]
            demand, pool = list(dict.fromkeys(touches)), resident[layer]
            missing = [expert for expert in demand if expert not in pool]
            touched = {expert: (s, i) for i, expert in enumerate(touches)}
            pool.update({expert: at for expert, at in touched.items() if expert in pool})
            for expert in missing:
                others = [other for other in pool if other not in demand]
                if len(pool) >= slots and others:
                    del pool[min(others, key=pool.get)]
                if len(pool) < slots:
                    pool[expert] = touched[expert]
            count["routed"] += len(touches)
            count["demands"] += len(demand)
            count["misses"] += len(missing)
    count["hits"] = count["demands"] - count["misses"]
    return count


def assert_replays_as(trace, steps, folder):
    """Written as our format and read back, the trace replays to the counters of a naive count over `steps`."""
    trace.save(folder / "ours.parquet")
    ours = open_trace(folder / "ours.parquet")
    assert ours.digest() == trace.digest()
    for slots in range(1, trace.n_experts + 1):
        found = slotwise.replay(ours, policy="lru", slots=slots, batch_gate=1000).counters
        expected = naive_lru(steps, slots)
        assert {key: found[key] for key in expected} == expected, slots


def rotten(data: bytes, tries: int, seed: int = 0):
    """The bytes of a file with a few of them wrong, missing or doubled."""
    rng = random.Random(seed)
    for _ in range(tries):
        out = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(out))
            match rng.randrange(5):
                case 0:
                    out[at] ^= 1 << rng.randrange(8)
                case 1:
                    out[at] = rng.choice(b'0123456789-.,:[]{}"eE\n\xff\x00')
                case 2:
                    del out[at : at + rng.randrange(1, 9)]
                case 3:
                    out[at:at] = out[at : at + rng.randrange(1, 9)]
                case 4:
                    del out[at + 1 :]
        yield bytes(out)


def assert_refused_or_valid(path, data: bytes, tries=200, **hints):
    """Damaged, the file is refused in one line or read with ids in range; both happen."""
    outcomes = []
    for damaged in rotten(data, tries):
        path.write_bytes(damaged)
        try:
            trace = open_trace(path, **hints)
            ids = whole(trace)["experts"].astype(np.int64)
        except BadTrace as error:
            outcomes.append(str(error))
        else:
            assert ((ids < trace.n_experts) | (ids == np.iinfo(trace.dtype).max)).all()
            outcomes.append("read")
    assert 0 < outcomes.count("read") < tries
    assert not any("\n" in outcome for outcome in outcomes)
