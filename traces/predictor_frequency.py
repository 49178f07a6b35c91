"""What has been wanted most: a guess from popularity alone."""

import numpy as np

from .block import Block
from .predictors import Predictor


class Frequency(Predictor):
    """Predicts the experts demanded at most ticks so far, most first; ties go to the lower id."""

    name, source = "frequency", "popularity, the usual baseline"

    def reset(self) -> None:
        super().reset()
        shape = self.trace.n_layers, self.trace.n_experts
        self.heat = np.zeros(shape, np.int64)
        self.order = np.tile(np.arange(shape[1]), (shape[0], 1))  # by heat falling, then id
        self.place = self.order.copy()  # of each expert in `order`

    def predict(self, block: Block) -> np.ndarray:
        from .kernels import frequency

        out = self._nothing(block)
        frequency(block.experts, block.starts, self._anew(block), self.horizon, self.heat, self.order, self.place, out)
        return out
