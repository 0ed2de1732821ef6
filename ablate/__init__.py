"""Ablate: which Transformer normalisation wins, each at its own best settings, on language and on vision.

    from ablate import Experiment, Sweep, train, sweep, report

does what the command line does. Names are imported on first use, so that `import ablate` costs milliseconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ablate import _torchvision

_torchvision.install()

if TYPE_CHECKING:
    from ablate.config import Experiment as Experiment
    from ablate.diagnosing.diagnose import Diagnosis as Diagnosis
    from ablate.diagnosing.diagnose import diagnose as diagnose
    from ablate.errors import AblateError as AblateError
    from ablate.reporting.report import Report as Report
    from ablate.reporting.report import report as report
    from ablate.sweeping.run import sweep as sweep
    from ablate.sweeping.spec import Sweep as Sweep
    from ablate.training.train import Result as Result
    from ablate.training.train import train as train

__version__ = "0.1.0"

_HOMES = {
    "AblateError": "ablate.errors",
    "Diagnosis": "ablate.diagnosing.diagnose",
    "Experiment": "ablate.config",
    "Report": "ablate.reporting.report",
    "Result": "ablate.training.train",
    "Sweep": "ablate.sweeping.spec",
    "diagnose": "ablate.diagnosing.diagnose",
    "report": "ablate.reporting.report",
    "sweep": "ablate.sweeping.run",
    "train": "ablate.training.train",
}
__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ablate' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
