"""The model card of an export: `README.md`, as the Hugging Face hub shows it."""

from __future__ import annotations

import contextlib
from typing import Any

from ablate.config.errors import AblateError
from ablate.config.yaml import dump_yaml
from ablate.data.hub import find_folder
from ablate.tracking.connection import find_active_run
from ablate.training.trained import TrainedModel

LIBRARIES = {"hf": "transformers", "timm": "timm"}
"""Form -> the library that loads it, by its name on the hub."""
PIPELINES = {"language_modeling": "text-generation", "image_classification": "image-classification"}
"""Task -> its name on the hub."""


def build_card(source: TrainedModel, form: str, how: str, ema: bool) -> str:
    """Return the card of a model that was exported as `form`; `how` is the sentence on how to load it."""
    experiment, run_id = source.experiment, source.run_id
    facts: dict[str, Any] = {"library_name": LIBRARIES.get(form, "ablate"), "tags": ["ablate", experiment.norm.kind]}
    if experiment.task.kind in PIPELINES and form in LIBRARIES:
        facts["pipeline_tag"] = PIPELINES[experiment.task.kind]
    dataset = getattr(experiment.data, "dataset", None)
    if dataset and "/" in dataset and find_folder(dataset) is None:
        facts["datasets"] = [dataset]
    model, items = experiment.model, source.step * experiment.items_per_update
    count = sum(p.numel() for p in source.blank().parameters())
    trained = f"{source.step:,} updates, {items:,} {experiment.unit}" if source.step else "a number that is not stored"
    rows = {
        "model": f"{model.kind}, {model.layers} layers, width {model.hidden}, {count:,} parameters",
        "norms": f"{experiment.norm.kind}: {experiment.norm.rule}" if experiment.norm.rule else experiment.norm.kind,
        "data": dataset or experiment.data.kind,
        "training": f"{trained}; {experiment.optimizer.kind}, learning rate {experiment.optimizer.lr:g}, schedule "
        f"{experiment.schedule.kind}, seed {experiment.seed}",
        "weights": "average over the updates" if ema else "of the last update",
    }
    run = None
    with contextlib.suppress(AblateError):  # a server that does not answer, or a run that was deleted
        run = find_active_run(run_id) if run_id else None
    if run is not None and not ema and "val/loss" in run.data.metrics:
        rows["val/loss"] = f"{run.data.metrics['val/loss']:.4f} nats, at the last validation of run {run_id}"
    table = "\n".join(f"| {name} | {' '.join(text.replace('|', '/').split())} |" for name, text in rows.items())
    return f"""---
{dump_yaml(facts).strip()}
---
# {model.kind} with {experiment.norm.kind}

Trained with Ablate, which compares models with each other, each at its own best settings; most of them are small and
trained briefly. For this card the model was not evaluated on anything but what the table says.

| | |
|---|---|
{table}

To load it: {how}.

## All settings

```yaml
{experiment.to_yaml().strip()}
```
"""
