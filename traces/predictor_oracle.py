"""The predictor that knows: what prefetching could bring at most."""

import numpy as np

from .block import Block
from .predictors import Predictor


class Oracle(Predictor):
    """Predicts each token's own demand, in router rank; past top_k there is nothing left to say."""

    name, source = "oracle", "the bound"

    def predict(self, block: Block) -> np.ndarray:
        out = self._nothing(block)
        width = min(self.width, block.experts.shape[2])
        out[self.horizon :, :, :width] = block.experts[self.horizon :, :, :width]
        return out
