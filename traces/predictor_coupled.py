"""What goes with what the token has just used: experts of neighbouring layers that were demanded together."""

import numpy as np

from .block import Block
from .errors import BadTrace
from .predictors import Predictor

MOST = 2**32  # bytes of counts


class Coupled(Predictor):
    """Predicts the experts that earlier steps demanded most often with those of `horizon` layers before, ties by id.

    An expert's score is the sum, over the experts that this step demanded `horizon` layers before, of the earlier steps
    at which both were demanded; a score of 0 is no prediction.
    """

    name, source = "coupled", "co-occurrence over layers, learned on earlier steps"

    def reset(self) -> None:
        super().reset()
        layers, experts = self.trace.n_layers, self.trace.n_experts
        if (size := 4 * layers * experts * experts) > MOST:
            raise BadTrace(
                f"predictor coupled: pairs of {experts} experts over {layers} layers take {size} bytes, above {MOST}; "
                "take another predictor, or cut the trace to fewer layers"
            )
        self.counts = np.zeros((layers, experts, experts), np.uint32)

    def predict(self, block: Block) -> np.ndarray:
        from .kernels_coupled import coupled

        out = self._nothing(block)
        coupled(block.experts, block.starts, self._anew(block), self.horizon, self.counts, out)
        return out
