"""`ablate align`: the experiment that aligns a trained model, from what the command line says."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ablate import tracking
from ablate.config.errors import AblateError
from ablate.data.text.tokenizers import HuggingFace, keep_tokenizer, load_data_tokenizer
from ablate.experiment.align import AlignConfig
from ablate.experiment.tree import Experiment
from ablate.post_training.alignment.measures import Reward
from ablate.post_training.alignment.run import procedure
from ablate.sweeps.donors import resolved
from ablate.training.procedures import Place
from ablate.training.train import train
from ablate.training.trained import Source, find


@dataclass(frozen=True)
class How:
    """What is done to the model."""

    align: AlignConfig
    """By which method."""
    pairs: str
    """Preference pairs: a file, a glob or a dataset."""
    split: str = "train"
    """The dataset's split."""
    template: str = "alpaca"
    """The words around a question, as in `data.template`."""
    steps: int = 500
    """Updates."""
    batch_size: int = 16
    """Pairs, of rloo answers, in an update."""
    lr: float = 1e-6
    """Peak learning rate, which falls to nothing on a straight line."""
    seed: int = 0
    """What the order of the pairs, new weights and sampled answers depend on."""


@dataclass(frozen=True)
class Aligned:
    """How it ended."""

    status: str
    """completed, or diverged: then there is no model."""
    run_id: str
    """The MLflow run."""
    folder: str
    """The model as `transformers` loads it: `hf:FOLDER` for `ablate evaluate`."""
    metrics: dict[str, float]
    """Measured on held-out prompts, by name."""
    told: str
    """What was learnt from."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def align(given: str, how: How, storage: str | None = None, reward: Reward | None = None) -> Aligned:
    """Aligns a run, a checkpoint or `sweep:NAME/ARM`; `reward` is a reward model in Python.

    Raises AblateError for what is no language model, for pairs that are missing or not as expected, and without the
    extra `rlhf`.
    """
    start = resolved(given, storage)
    source = find(start)
    if (task := source.experiment.model.task) != "language_modeling":
        raise AblateError(f"{given} is for {task.replace('_', ' ')}; align is for language models.")
    experiment = experiment_of(source, start, how, storage)
    place = Place("align", f"{how.align.method} {given}", tags={"ablate.aligned": given})
    ended = train(experiment, place, procedure=procedure(reward))
    assert ended.run_id is not None
    facts = ended.facts
    told = f"{how.pairs}: {facts['ablate.corpus_description']}"
    if ended.status != "completed":
        told += f". {ended.status}: {ended.reason}"
    return Aligned(ended.status, ended.run_id, facts.get("ablate.folder", ""), ended.metrics, told)


def experiment_of(source: Source, start: str, how: How, storage: str | None = None) -> Experiment:
    """What aligns the model of `source`, which `start` names, as `how` says. Raises ConfigError and DataError."""
    before = source.experiment.to_tree()
    local = Path(how.pairs).expanduser()
    is_file = bool(local.suffix) and not local.is_dir()
    data = {"files": how.pairs} if is_file else {"dataset": how.pairs, "train_split": how.split}
    judged = how.align.reward
    align = how.align.model_dump(mode="json") | ({"reward": resolved(judged, storage)} if judged else {})
    return Experiment.from_mapping(
        {name: before[name] for name in ("model", "norm", "init", "plugins")},
        {
            "data": {"kind": "preferences", **data, "template": how.template, "tokenizer": _tokenizer(source),
                     "seq_len": source.inputs[1][0]},
            "warm_start": {"from": start, "copy": "all"},
            "align": align,
            "optimizer": {"kind": "adamw", "lr": how.lr, "betas": [0.9, 0.999], "weight_decay": 0},
            "schedule": {"kind": "wsd", "warmup_steps": 0, "decay_fraction": 1, "shape": "linear", "final_fraction": 0},
            "trainer": {"max_steps": how.steps, "batch_size": how.batch_size, "val_check_interval": how.steps,
                        "log_every_n_steps": 1, "gradient_clip_val": 1.0},
            "seed": how.seed,
        },
    )  # fmt: skip


def _tokenizer(source: Source) -> str:
    """What `data.tokenizer` calls the tokenizer of a run; that of one which was trained on its text is kept in the
    cache, as it has no name. Raises DataError where it is not there any more."""
    data, cache = source.experiment.data, tracking.cache_folder()
    name = str(getattr(data, "tokenizer", "bytes"))
    if not name.startswith("bpe-"):
        return name
    tokenizer = load_data_tokenizer(data, cache)
    assert isinstance(tokenizer, HuggingFace)
    return str(keep_tokenizer(tokenizer.json, cache))
