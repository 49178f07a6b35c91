"""What an executor does fast against its slow twin, over the table of `oracle_executor.py`."""

import numpy as np
import pytest
from cold_cases import needs_native
from oracle_executor import TWINS

from slotwise.executor.reference import errors

pytestmark = needs_native


@pytest.mark.parametrize("name", TWINS)
def test_the_fast_way_gives_what_the_slow_one_gives(name):
    fast, slow, bound = TWINS[name]
    for seed in range(40):
        found, expected = fast(np.random.default_rng(seed)), slow(np.random.default_rng(seed))
        assert found.shape == expected.shape, seed
        if bound:
            assert errors(found, expected).max() <= bound, seed
        else:
            assert np.array_equal(found, expected), seed
