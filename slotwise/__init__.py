"""Which experts to keep in VRAM, answered from router traces. The public names, each imported when first used."""

from importlib import import_module
from typing import TYPE_CHECKING

from . import cache as _cache

if TYPE_CHECKING:
    from slotwise.executor.backend import list_backends as list_backends
    from slotwise.executor.errors import BadExecutor as BadExecutor
    from slotwise.policies import Pool as Pool
    from slotwise.policies import list_policies as list_policies
    from slotwise.policies import parse_policy as parse_policy
    from slotwise.policies.errors import BadPolicy as BadPolicy
    from slotwise.replay import replay as replay
    from slotwise.replay import sweep as sweep
    from slotwise.replay.errors import BadOption as BadOption
    from slotwise.replay.machine import Machine as Machine
    from slotwise.replay.machine import read_machine as read_machine
    from slotwise.replay.machine import write_machine as write_machine
    from slotwise.replay.machine_presets import estimate_machine as estimate_machine
    from slotwise.replay.machine_presets import list_machines as list_machines
    from slotwise.reports.errors import BadResult as BadResult
    from slotwise.traces import Trace as Trace
    from slotwise.traces import TraceWarning as TraceWarning
    from slotwise.traces import list_formats as list_formats
    from slotwise.traces import list_predictors as list_predictors
    from slotwise.traces import open_trace as open_trace
    from slotwise.traces.capture import Capture as Capture
    from slotwise.traces.capture_run import capture as capture
    from slotwise.traces.edit import cut as cut
    from slotwise.traces.edit import merge as merge
    from slotwise.traces.edit import split as split
    from slotwise.traces.errors import BadTrace as BadTrace
    from slotwise.traces.exporting import export as export
    from slotwise.traces.exporting import list_exports as list_exports
    from slotwise.traces.profile import open_counted as open_counted
    from slotwise.traces.profile import write_profile as write_profile
    from slotwise.traces.regroup import regroup as regroup
    from slotwise.traces.stats import describe as describe
    from slotwise.traces.synth import synthesise as synthesise

    from .advise import advise as advise
    from .calibrate import calibrate as calibrate
    from .compare import compare as compare
    from .quality import plot_predictions as plot_predictions
    from .report import write_report as write_report
    from .run import run as run
    from .validate import validate as validate

__version__ = "0.1.0"

_cache.settle()

_HOMES = {  # public name -> the module that defines it
    "open_trace": "slotwise.traces",
    "Trace": "slotwise.traces",
    "replay": "slotwise.replay",
    "sweep": "slotwise.replay",
    "Machine": "slotwise.replay.machine",
    "read_machine": "slotwise.replay.machine",
    "write_machine": "slotwise.replay.machine",
    "estimate_machine": "slotwise.replay.machine_presets",
    "list_machines": "slotwise.replay.machine_presets",
    "advise": "slotwise.advise",
    "calibrate": "slotwise.calibrate",
    "compare": "slotwise.compare",
    "run": "slotwise.run",
    "validate": "slotwise.validate",
    "list_backends": "slotwise.executor.backend",
    "BadExecutor": "slotwise.executor.errors",
    "Pool": "slotwise.policies",
    "parse_policy": "slotwise.policies",
    "list_policies": "slotwise.policies",
    "list_formats": "slotwise.traces",
    "list_predictors": "slotwise.traces",
    "Capture": "slotwise.traces.capture",
    "capture": "slotwise.traces.capture_run",
    "describe": "slotwise.traces.stats",
    "plot_predictions": "slotwise.quality",
    "synthesise": "slotwise.traces.synth",
    "split": "slotwise.traces.edit",
    "merge": "slotwise.traces.edit",
    "cut": "slotwise.traces.edit",
    "regroup": "slotwise.traces.regroup",
    "export": "slotwise.traces.exporting",
    "list_exports": "slotwise.traces.exporting",
    "open_counted": "slotwise.traces.profile",
    "write_profile": "slotwise.traces.profile",
    "write_report": "slotwise.report",
    "TraceWarning": "slotwise.traces.errors",
    "BadTrace": "slotwise.traces.errors",
    "BadPolicy": "slotwise.policies.errors",
    "BadOption": "slotwise.replay.errors",
    "BadResult": "slotwise.reports.errors",
}
__all__ = [  # written out for type checkers; a test compares it with the table
    "BadExecutor",
    "BadOption",
    "BadPolicy",
    "BadResult",
    "BadTrace",
    "Capture",
    "Machine",
    "Pool",
    "Trace",
    "TraceWarning",
    "__version__",
    "advise",
    "calibrate",
    "capture",
    "compare",
    "cut",
    "describe",
    "estimate_machine",
    "export",
    "list_backends",
    "list_exports",
    "list_formats",
    "list_machines",
    "list_policies",
    "list_predictors",
    "merge",
    "open_counted",
    "open_trace",
    "parse_policy",
    "plot_predictions",
    "read_machine",
    "regroup",
    "replay",
    "run",
    "split",
    "sweep",
    "synthesise",
    "validate",
    "write_machine",
    "write_profile",
    "write_report",
]


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'slotwise' has no attribute {name!r}")
    home = import_module(_HOMES[name])
    # slotwise.replay is a folder and a function: the subpackage itself can be called, so that both spellings stay true.
    value = home if home.__name__ == f"slotwise.{name}" and callable(home) else getattr(home, name)
    globals()[name] = value
    return value


def __dir__():
    return sorted(__all__)
