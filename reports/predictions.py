"""One picture of how good recorded predictions are: recall and precision by layer, a row of axes per horizon."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from .errors import BadResult
from .style import DPI, LIGHT, RC, short

LOOKS = {
    "recorded": {"color": LIGHT["c0"], "marker": "o"},
    "previous": {"color": LIGHT["c1"], "marker": "s"},
    "frequency": {"color": LIGHT["c2"], "marker": "^"},
}
SAID = {
    "recorded": "recorded in the trace",
    "previous": "experts of the token before",
    "frequency": "experts chosen most so far",
}


def draw_predictions(facts: Mapping[str, Any]) -> bytes:
    """The PNG of what `slotwise.describe` says of predictions. Raises BadResult if the trace has none."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    records: Sequence[Any] = facts["predictions"]
    if not records:
        raise BadResult(f"trace {facts['name']} has no recorded predictions, so there is nothing to plot")
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(8.4, 0.75 + 2.5 * len(records)), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(
            short(f"Predictions of {facts['name']}", 80), fontsize=10.5, fontweight="bold", x=0.01, ha="left"
        )
        grid = figure.subplots(len(records), 2, squeeze=False, sharex=True, sharey=True)
        for record, row in zip(records, grid, strict=True):
            far = f"{record['horizon']} layer{'s' * (record['horizon'] != 1)} ahead"
            for axes, measure in zip(row, ("recall", "precision"), strict=True):
                for who, found in {"recorded": record, **record["baselines"]}.items():
                    values = [by_width[-1] for by_width in found[f"{measure}_by_layer"]]
                    known = [math.nan if value is None else 100 * value for value in values]
                    axes.plot(facts["model_layers"], known, label=SAID[who], markersize=3.5, **LOOKS[who])
                axes.set_ylim(0, 102)
                axes.set_title(f"{measure}@{record['width']}, {far}", fontsize=9, loc="left")
        for axes in grid[:, 0]:
            axes.set_ylabel("%")
        for axes in grid[-1]:
            axes.set_xlabel("layer, by the model's own numbers")
            axes.xaxis.get_major_locator().set_params(integer=True)
        figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
        png = io.BytesIO()
        said = "; ".join(f"horizon {r['horizon']}: recall {r['recall'][-1]}" for r in records)
        figure.savefig(
            png, format="png", dpi=DPI, facecolor=LIGHT["paper"], metadata={"Software": "slotwise", "Description": said}
        )
    return png.getvalue()
