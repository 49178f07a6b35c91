"""Threads over layers share one pool: what it is made of exists before they start."""

import pytest
from conftest import python

IMPATIENT = """
import sys
import slotwise
from slotwise.policies import memory

made = []
class Counted(memory.Buffer):
    def __init__(self, **sizes):
        made.append(1)
        super().__init__(**sizes)

memory.Buffer = Counted
alone = slotwise.replay("sample", "{policy}", 32, steps=200, threads=1).counters
sys.setswitchinterval(1e-6)  # threads take turns at nearly every instruction
for _ in range(10):
    del made[:]
    assert slotwise.replay("sample", "{policy}", 32, steps=200, threads=8).counters == alone
    assert len(made) == 1, f"{{len(made)}} memories for one pool"
"""


@pytest.mark.parametrize("policy", ["fifo", "lfru"])
def test_impatient_threads_share_one_memory(policy):
    """On Python 3.12 and 3.13 they made one each, and compiled code went on in one that was freed: it crashed."""
    python(IMPATIENT.format(policy=policy))
