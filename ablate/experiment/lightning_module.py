"""`experiment: {kind: lightning, module: my_project.models.LitModel, data: my_project.data.MyData, steps: 1000}`: a
LightningModule and a LightningDataModule of somebody else, as they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from ablate.config.bounds import MOST_SEED
from ablate.config.errors import Problem
from ablate.config.formatting import format_settings, join_words
from ablate.config.merging import iterate_leaves
from ablate.experiment.trainable import SettingsExperiment, experiments

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
OWN = {"for_module": "module", "for_data": "data"}
"""Setting -> the field whose class alone gets what is below it."""
_LENGTHS = ("max_steps", "max_epochs", "max_time", "min_steps", "min_epochs", "fast_dev_run")
_TAKEN = dict.fromkeys(_LENGTHS, "is not accepted: all runs train for experiment.steps steps, no more and no fewer")
_TAKEN |= {"default_root_dir": "is not accepted: it is the folder of the run"}
_TAKEN |= {"num_nodes": "is not accepted: a run has one device"}


@experiments.register
class LightningExperiment(SettingsExperiment):
    """A LightningModule of somebody else, trained by Lightning for each settings and seed. What the file names is
    imported, from the current folder or an installed package."""

    kind: Literal["lightning"] = "lightning"
    module: str
    """The LightningModule, as PACKAGE.MODULE.CLASS; or a function that returns one."""
    data: str | None = None
    """The LightningDataModule, in the same way. None: the module has its own data loaders."""
    settings: dict[str, Any] = {}
    """Arguments of the two constructors by their names; each goes where it is accepted. Below `for_module` and
    `for_data` are those of one alone. An object is {class_path: PACKAGE.MODULE.CLASS, init_args: {...}}; with `partial:
    true` it is a function that makes one, as every optimizer and schedule is. Arms and the search give others under the
    same names, such as optimizer.init_args.lr."""
    steps: int = Field(gt=0)
    """The steps of each run: `max_steps` of Lightning's Trainer. After the last one it is validated."""
    trainer: dict[str, Any] = {}
    """Further arguments of Lightning's Trainer, such as accelerator, precision, gradient_clip_val, limit_val_batches,
    val_check_interval; callbacks and loggers by class_path."""
    seed: int = Field(0, ge=0, le=MOST_SEED)
    """The seed of the search, for `seed_everything(seed, workers=True)` before module and data are built."""

    driver: ClassVar[str] = "ablate.training.lightning_modules"
    imports_inputs: ClassVar[bool] = True
    same: ClassVar[str] = "train the same LightningModule"
    seeding: ClassVar[str] = (
        "seed_everything(seed) was called before module and data were built: look for weights that are loaded, and for "
        "seeds and generators that the code makes."
    )

    def check(self) -> Iterator[Problem]:
        for path, name in (("module", self.module), ("data", self.data)):
            if name is not None and not _NAME.fullmatch(name):
                yield Problem(
                    path, "must be PACKAGE.MODULE.CLASS, as in an import, such as my_project.models.Net", name
                )
        for name, value in self.trainer.items():
            if name in _TAKEN:
                yield Problem(f"trainer.{name}", _TAKEN[name], value)
        if (devices := self.trainer.get("devices", 1)) not in (1, "1") and not _has_one(devices):
            text = "must be 1, or a list with one number: a run has one device, and more workers use more of them"
            yield Problem("trainer.devices", text, devices)
        for name in OWN:
            if not isinstance(given := self.settings.get(name, {}), dict):
                yield Problem(name, "must be a mapping from names of arguments to values", given)

    def identify(self) -> dict[str, Any]:
        return {"lightning.module": self.module, "lightning.data": self.data}

    @property
    def program(self) -> str:
        return self.module.rpartition(".")[2]

    # ------------------------------------------------------------------ runs

    @property
    def resumes(self) -> bool:
        return True

    def describe_length(self) -> str:
        return f"{self.steps:,} steps of {self.program}"

    def describe_runs(self) -> list[str]:
        built = join_words(filter(None, (self.module, self.data)))
        given = format_settings(dict(iterate_leaves(self.trainer)), {}) if self.trainer else "its defaults"
        return [
            f"Each run calls seed_everything(seed, workers=True), builds {built}, and trains for {self.steps:,} steps "
            f"by a Lightning Trainer on one device, with {given}. Its value is what self.log gave at the last "
            "validation, which follows the last step; or at the end of training, if no validation logs it.",
            "It counts as diverged where that value, or a weight of the module, is not finite at a validation.",
            "Arms with the same seed need not see the same batches in the same order: that depends on the random "
            "numbers that the module has drawn before, and on seeds of its own, which are not replaced. That all arms "
            "have the same data, and as many items in a step, is up to the settings.",
            "A run that was interrupted goes on from its last checkpoint, not bit for bit: random generators and the "
            "place in the data are not restored.",
        ]


def _has_one(devices: Any) -> bool:
    return isinstance(devices, (list, tuple)) and len(devices) == 1
