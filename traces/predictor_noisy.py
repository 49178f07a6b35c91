"""The oracle with errors: how good must a predictor be before it pays?"""

import numpy as np

from .block import Block
from .errors import BadTrace
from .predictors import Predictor
from .trace import Trace


class Noisy(Predictor):
    """The oracle, each entry kept with probability `recall`, else replaced by an expert the token does not want.

    Draws depend on (seed, row, layer, rank) alone, so neither blocks nor width change them.
    """

    name, source = "noisy", "a dial between none and oracle"

    def __init__(self, trace: Trace, width: int, horizon: int, *, recall: float = 0.8, seed: int = 0) -> None:
        if not (isinstance(recall, int | float) and 0 <= recall <= 1):
            raise BadTrace(f"predictor noisy: recall={recall!r}; it must lie in 0 to 1")
        if not (isinstance(seed, int) and 0 <= seed < 2**64):
            raise BadTrace(f"predictor noisy: seed={seed!r}; it must be a whole number from 0 to 2**64 - 1")
        self.recall, self.seed = recall, seed
        super().__init__(trace, width, horizon)

    def reset(self) -> None:
        super().reset()
        self.row = 0

    def predict(self, block: Block) -> np.ndarray:
        from .kernels import noisy

        out = self._nothing(block)
        noisy(
            block.experts,
            self.horizon,
            min(self.width, self.trace.top_k),
            self.trace.n_experts,
            self.row,
            float(self.recall),
            np.uint64(self.seed),
            out,
        )
        self.row += block.n_rows
        return out
