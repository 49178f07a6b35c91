"""Files to arrays: router traces, our Parquet format, foreign formats, synthesis, statistics, predictors."""

from .block import Block
from .errors import BadTrace, TraceWarning
from .opening import list_formats, open_trace
from .predictors import list_predictors, make_predictor
from .trace import Trace

__all__ = [
    "BadTrace",
    "Block",
    "Trace",
    "TraceWarning",
    "list_formats",
    "list_predictors",
    "make_predictor",
    "open_trace",
]
