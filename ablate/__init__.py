"""Ablate: which Transformer normalisation wins, each at its own best settings, on language and on vision.

    from ablate import Experiment, Sweep, train, sweep, report

does what the command line does. Names are imported on first use, so that `import ablate` costs milliseconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ablate.config import torchvision_repair
from ablate.config.lazy import postpone_collection

torchvision_repair.install()

if TYPE_CHECKING:
    from ablate.addons.bundles.compare import compare as compare
    from ablate.addons.bundles.publish import publish as publish
    from ablate.addons.bundles.verify import verify as verify
    from ablate.addons.export.in_memory import to_hf as to_hf
    from ablate.addons.judging.judge import Judgement as Judgement
    from ablate.addons.judging.judge import judge as judge
    from ablate.config.errors import AblateError as AblateError
    from ablate.diagnostics.figures.run import Drawing as Drawing
    from ablate.diagnostics.figures.run import figure as figure
    from ablate.diagnostics.run import Diagnosis as Diagnosis
    from ablate.diagnostics.run import diagnose as diagnose
    from ablate.experiment.tree import Experiment as Experiment
    from ablate.reports.report import Report as Report
    from ablate.reports.report import report as report
    from ablate.scheduler.run import sweep as sweep
    from ablate.sweeps.spec.sweep import Sweep as Sweep
    from ablate.training.procedures import Result as Result
    from ablate.training.shown import train as train
    from ablate.training.trained import open_trained as open_trained

__version__ = "0.2.0.dev0"

_HOMES = {
    "AblateError": "ablate.config.errors",
    "Diagnosis": "ablate.diagnostics.run",
    "Drawing": "ablate.diagnostics.figures.run",
    "Experiment": "ablate.experiment.tree",
    "Judgement": "ablate.addons.judging.judge",
    "Report": "ablate.reports.report",
    "Result": "ablate.training.procedures",
    "Sweep": "ablate.sweeps.spec.sweep",
    "compare": "ablate.addons.bundles.compare",
    "diagnose": "ablate.diagnostics.run",
    "figure": "ablate.diagnostics.figures.run",
    "judge": "ablate.addons.judging.judge",
    "open_trained": "ablate.training.trained",
    "publish": "ablate.addons.bundles.publish",
    "report": "ablate.reports.report",
    "sweep": "ablate.scheduler.run",
    "to_hf": "ablate.addons.export.in_memory",
    "train": "ablate.training.shown",
    "verify": "ablate.addons.bundles.verify",
}
__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ablate' has no attribute {name!r}")
    with postpone_collection():
        module = import_module(_HOMES[name])
    return getattr(module, name)


def __dir__() -> list[str]:
    return __all__
