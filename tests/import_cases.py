"""What the tests of importers share: a file, its refusal, naive counts of a replay, and files that rot."""

import random

import numpy as np
import pytest
from trace_cases import whole

import slotwise
from slotwise.traces import BadTrace, open_trace


def written(folder, content, name="t.dat"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


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


def assert_replayed(trace, folder, ticks) -> None:
    """`ticks`: the ids wanted at each (step, layer), by hand. Ours on disk, replayed, counts what a loop counts."""
    trace.save(folder / "ours.parquet")
    counted = slotwise.replay(open_trace(folder / "ours.parquet"), policy="lru", slots=trace.n_experts).counters
    assert counted["demands"] == sum(len(set(ids)) for _, ids in ticks)
    assert counted["misses"] == len({(layer, e) for layer, ids in ticks for e in ids})
    assert counted["hits"] == counted["demands"] - counted["misses"]


def outcomes(folder, good: bytes, name, n_experts, times=150, **hints) -> list[str]:
    """What becomes of a file that rots or is cut off: "read" with valid ids, or the message of its refusal."""
    rng, found = random.Random(0), []
    for i in range(times):
        data = bytearray(good)
        if i % 3:
            for _ in range(rng.randrange(1, 3)):
                at = rng.randrange(len(data))
                digit = chr(data[at]).isdigit() and rng.random() < 0.7
                data[at] = rng.choice(b"0123456789") if digit else rng.choice([data[at] ^ 1, rng.randrange(256)])
        else:
            del data[rng.randrange(1, len(data)) :]
        try:
            ids = whole(open_trace(written(folder, bytes(data)), name, n_experts=n_experts, **hints))["experts"]
        except BadTrace as error:
            found.append(str(error))
        else:
            assert ((ids < n_experts) | (ids == 255)).all()
            found.append("read")
    assert not any("\n" in outcome for outcome in found)
    return found
