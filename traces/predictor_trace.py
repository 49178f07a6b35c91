"""The predictor that was there: what the capture recorded beside the routing."""

import numpy as np

from .block import Block
from .errors import BadTrace
from .predictors import Predictor, list_predictors
from .trace import Trace


class Recorded(Predictor):
    """The predictions recorded in the trace, best first."""

    name, source, needs_predicted = "trace", "the capture", True

    def __init__(self, trace: Trace, width: int, horizon: int) -> None:
        recorded = trace.store.widths.get(horizon, 0)
        if not recorded:
            others = ", ".join(p["name"] for p in list_predictors() if p["name"] not in ("trace", "none"))
            have = f" (recorded: horizons {', '.join(map(str, trace.horizons))})" if trace.horizons else ""
            raise BadTrace(
                f"trace {trace.name} has no recorded predictions at horizon {horizon}{have}; width {width} needs a "
                f"predictor that makes them: {others}"
            )
        if width > recorded:
            raise BadTrace(
                f"width {width} is above the {recorded} predictions that trace {trace.name} records at horizon "
                f"{horizon}; ask for {recorded} or fewer, or for another predictor"
            )
        super().__init__(trace, width, horizon)

    def predict(self, block: Block) -> np.ndarray:
        if block.predicted is None:
            raise ValueError("predictor trace: stream the blocks with predicted=True")
        return block.predicted
