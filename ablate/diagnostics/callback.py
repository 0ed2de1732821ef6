"""The callback that measures the layers during training, and its figure."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import LightningModule, Trainer
from torch.optim import Optimizer

from ablate.data import Corpus
from ablate.diagnostics.measures import Gradients, Layers, Measurement, Options, Result, Subject, measurements
from ablate.diagnostics.measures.angular import distance_matrix
from ablate.diagnostics.measures.base import FOLDER, TRAINING, to_json_number
from ablate.diagnostics.measures.gradients import collect_gradients
from ablate.diagnostics.measures.subject import build_loader
from ablate.plots.drawing import save_png
from ablate.plots.figure import Bar, Figure, Part
from ablate.plots.layers import Course, map_course, map_distances, scale_courses
from ablate.tracking.tracker import Tracker
from ablate.training.callbacks import RunCallback, count_seen_items
from ablate.training.module import TrainingModule
from ablate.training.random_states import undisturbed


class LayerDiagnostics(RunCallback):
    """Takes the measurements of `trainer.diagnose`: before the first update, at regular intervals, and after the last;
    a gradient is the next update's. Training is not affected: the model is in evaluation mode meanwhile, no gradient is
    stored, and the states of random generators are restored. The numbers are artifacts of the run,
    `layers/training.json`, and not metrics: hundreds of metrics, one for each layer, would hide the loss. The numbers
    so far are stored in the checkpoints, so that the figures of a resumed run equal those of an uninterrupted run.
    """

    def __init__(self, module: TrainingModule, corpus: Corpus) -> None:
        self.config = module.experiment.trainer.diagnose
        model, task, self.unit = module.model, module.task, module.unit
        self.subject = Subject(
            label="run",
            layers=Layers(model),
            forward=lambda batch: model(batch.inputs),
            items=min(len(corpus.val), max(1, self.config.tokens // module.per_item)),
            load=build_loader([corpus.val], padded=task.inputs == "tokens"),
            per_item=module.per_item,
            unit=module.unit,
            classifies=task.classifies,
            sum_losses=lambda batch: task.sum_losses(model, model, batch.inputs, batch.targets),
        )
        trainer = module.experiment.trainer
        self.updates, self.accumulate = trainer.max_steps, trainer.accumulate
        part = self.subject.items / trainer.batch_size
        layers = self.subject.layers
        fitting = [
            name
            for name in self.config.names
            if not measurements[name].find_obstacle(layers.keeps_shape, layers.placement)
        ]
        self.every = self.config.every(fitting, self.updates, len(layers), part)
        self.history: dict[str, dict[int, list[float]]] = {}
        """Column -> tokens or images seen -> the number of each layer."""
        self.last: dict[str, Result] = {}
        """Measurement -> its last numbers."""

    def state_dict(self) -> dict[str, Any]:
        return {"history": self.history, "last": {name: asdict(result) for name, result in self.last.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.history = {column: dict(course) for column, course in state_dict["history"].items()}
        self.last = {name: Result(**fields) for name, fields in state_dict["last"].items()}

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if batch_idx % self.accumulate == 0:
            self._measure(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self.updates and (batch_idx + 1) % self.accumulate == 0:
            self._measure(trainer, pl_module)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        if Gradients.name in self.every and self._is_due(Gradients.name, trainer.global_step, self.updates - 1):
            assert isinstance(pl_module, TrainingModule)
            measurement = Gradients(self.subject)
            targets = pl_module.experiment.trainer.batch_size * pl_module.per_item
            measurement.observe(collect_gradients(self.subject.layers), targets)
            self._keep(trainer, pl_module, measurement)

    def _is_due(self, name: str, done: int, last: int) -> bool:
        """Return whether a measurement is due after `done` updates; the final one is after `last`."""
        every = self.every[name]
        return done == last or (every <= self.updates and done % every == 0)

    def _measure(self, trainer: Trainer, module: LightningModule) -> None:
        """Take the measurements that need passes of their own."""
        due = [n for n in self.every if n != Gradients.name and self._is_due(n, trainer.global_step, self.updates)]
        if not due:
            return
        object.__setattr__(self.subject, "device", module.device)
        batch = self.subject.load_batch(0, self.subject.items)
        batch = replace(batch, inputs=trainer.precision_plugin.convert_input(batch.inputs))
        with undisturbed(module), trainer.precision_plugin.val_step_context():
            for name in due:
                measurement = measurements[name](self.subject, Options())
                measurement.update(batch, 0)
                self._keep(trainer, module, measurement)

    def _keep(self, trainer: Trainer, module: LightningModule, measurement: Measurement) -> None:
        result = measurement.result()
        self.last[measurement.name] = result
        for column, numbers in measurement.per_layer(result).items():
            self.history.setdefault(column, {})[count_seen_items(trainer, module)] = numbers

    def publish(self, folder: Path, tracker: Tracker) -> None:
        """Write the numbers as JSON and CSV, and a figure of them, into `folder` and the run."""
        if not self.history:
            return
        folder = folder / FOLDER
        folder.mkdir(exist_ok=True)
        (folder / TRAINING).write_text(json.dumps(self.to_dict(), allow_nan=False) + "\n", encoding="utf-8")
        with (folder / "training.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["column", self.unit, "layer", "value"])
            for column, course in self.history.items():
                for at, row in course.items():
                    writer.writerows([column, at, layer, value] for layer, value in enumerate(row, 1))
        # one figure, as PNG alone: it takes seconds, and there may be hundreds of runs; the report of a sweep has more
        save_png(draw_overview(self.last, self.history, self.unit), folder)
        for path in (folder / name for name in (TRAINING, "training.csv", "training.png")):
            tracker.log_file(path, FOLDER)

    def list_layers(self) -> dict[str, list[float | None]]:
        return {
            column: [to_json_number(value) for value in course[max(course)]] for column, course in self.history.items()
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; a number that is not finite is null."""
        return {
            "unit": self.unit,
            "history": {
                column: {str(at): [to_json_number(v) for v in row] for at, row in course.items()}
                for column, course in self.history.items()
            },
            "last": {name: result.to_dict() for name, result in self.last.items()},
        }


NAME = "training"


def draw_overview(results: Mapping[str, Result], history: Mapping[str, Course], unit: str) -> Figure:
    """Return a heat map of each number of the layers during training, and one of the angular distances at the end."""
    labels = {column: label for kind in measurements.values() for column, label in kind.columns.items()}
    panels = [
        map_course(course, scale_courses("", [course]), unit, labels.get(column, column), own_bar=True)
        for column, course in history.items()
    ]
    for result in results.values():
        if any("distance" in row for row in result.rows):
            matrix = distance_matrix(result)
            top = float(np.nanmax(matrix)) or 1.0
            title = "angular distance at the end (share of pi)"
            panels.append(map_distances(matrix, top, title, Bar("", (0, top))))
    return Figure(NAME, "The layers in training", [Part(panels, across=3)])
