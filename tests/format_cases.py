"""What the tests of the imported formats share: a file, damage, and a count of demands by hand."""

import random

from trace_cases import whole

from slotwise import replay
from slotwise.traces import BadTrace, open_trace


def written(folder, content, name="t.dat"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def assert_replayed(trace, folder, ticks) -> None:
    """`ticks`: the ids wanted at each (step, layer), by hand. Ours on disk, replayed, counts what a loop counts."""
    trace.save(folder / "ours.parquet")
    counted = replay(open_trace(folder / "ours.parquet"), policy="lru", slots=trace.n_experts).counters
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
