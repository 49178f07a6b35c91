"""The predictor that has nothing to say."""

import numpy as np

from .block import Block
from .predictors import Predictor


class Nothing(Predictor):
    """Predicts nothing: the width is there, the entries are absent."""

    name, source = "none", "the control"

    def predict(self, block: Block) -> np.ndarray:
        return self._nothing(block)
