"""The plot of a trace's predictions: what `describe` says of them, drawn, into a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slotwise.reports.predictions import draw_predictions
from slotwise.traces.files import beside


def plot_predictions(facts: Mapping[str, Any], path: str | Path) -> None:
    """Recall and precision by layer and horizon beside their baselines, as a PNG; `facts` are those of `describe`.

    The file is written beside and renamed. Raises BadResult if the trace has no predictions.
    """
    png = draw_predictions(facts)
    with beside(Path(path)) as temporary:
        temporary.write_bytes(png)
