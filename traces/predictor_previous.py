"""Once more what was there last time: the simplest guess."""

import numpy as np

from .block import Block
from .predictors import Predictor


class Previous(Predictor):
    """Predicts the experts that this layer demanded at the previous step, in their order of demand."""

    name, source = "previous", "temporal locality, the usual baseline"

    def reset(self) -> None:
        super().reset()
        self.demand = np.zeros((self.trace.n_layers, self.trace.n_experts), self.trace.dtype)
        self.n_demand = np.zeros(self.trace.n_layers, np.int64)

    def predict(self, block: Block) -> np.ndarray:
        from .kernels import previous

        out = self._nothing(block)
        previous(block.experts, block.starts, self._anew(block), self.horizon, self.demand, self.n_demand, out)
        return out
