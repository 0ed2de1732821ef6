"""Opening trained models: from a checkpoint, by the run's id or by its path."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ablate import tracking
from ablate.config import plugins
from ablate.config.errors import AblateError, did_you_mean
from ablate.config.yaml import read_yaml
from ablate.data.text.tokenizers import Tokenizer, load_data_tokenizer
from ablate.distributed.matrices import ungroup
from ablate.estimate.inputs import build_blank
from ablate.experiment.extensions import load_extensions
from ablate.experiment.tree import Experiment
from ablate.models import Model
from ablate.parallel import sharded, tensor
from ablate.tracking.remote_files import fetch_checkpoint, is_url
from ablate.training.checkpoints import load
from ablate.training.runs import CHECKPOINT

EXPORTED = "model.safetensors"  # of an export
ALIGNED = "hf"  # in the folder of an aligned run: the model as transformers loads it
PREFIX = "model."  # of the model in the state of a task


@dataclass(frozen=True)
class TrainedModel:
    """A trained model."""

    file: Path
    experiment: Experiment
    state: Mapping[str, Tensor]
    """The weights by the model's own names; adapters (`lora`) are merged."""
    step: int
    """Number of its training updates; 0 if unknown, for an export."""

    @property
    def run_id(self) -> str | None:
        """The MLflow run of the checkpoint, if it is in the store's folder of runs."""
        folder = self.file.absolute().parent
        return folder.name if folder.parent == tracking.store_path() / "runs" else None

    @property
    def inputs(self) -> tuple[int, tuple[int, ...]]:
        """(classes, shape of one input) according to the weights; text has length 0 if the data sets none."""
        length, *_ = self.experiment.data.input_shape or (0,)
        return self.experiment.task.read_inputs(self.experiment.model, self.state, length)

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer of a language model's data."""
        return load_data_tokenizer(self.experiment.data, tracking.cache_folder())

    def blank(self) -> Model:
        """Return the model without its weights, on the meta device."""
        return build_blank(self.experiment, *self.inputs)

    def model(self) -> Model:
        """Return the model, in evaluation mode."""
        model = self.blank()
        model.load_state_dict(dict(self.state), assign=True)
        if any(buffer.is_meta for buffer in model.buffers()):  # one that is computed, and in no checkpoint
            with torch.random.fork_rng(devices=[]):
                model = self.experiment.build_model(*self.inputs)
            model.load_state_dict(dict(self.state))
        return model.eval()


def open_trained(name: str, ema: bool = False, finite: bool = True) -> TrainedModel:
    """Return the model of a checkpoint's file, its folder, the address of either (`s3://...`), a run's id, or a folder
    that `ablate export --to safetensors` or an aligned run wrote; `ema`: with the averaged weights. Raises AblateError,
    also if its configuration names a plugin that may not be run (see `plugins.restrict`), if its weights do not
    match its model, and, with `finite`, if some are NaN or infinite."""
    for folder in (Path(name).expanduser(), tracking.store_path() / "runs" / name):
        if os.path.isfile(folder / EXPORTED):  # False for a name too long, where Path.is_file raises
            source = _open_export(folder)
            break
    else:
        source = _open_checkpoint(name, ema)
    check_weights(source, finite)
    return source


def _open_checkpoint(name: str, ema: bool) -> TrainedModel:
    """Return the model of a checkpoint."""
    file = _find_checkpoint(name)
    try:
        content = load(file)
        if not isinstance(content, Mapping):
            raise AblateError(f"{file} is not a checkpoint of Ablate: it contains a {type(content).__name__}.")
        tree, step = content["experiment"], int(content["global_step"])
        experiment = _read_experiment(tree, str(file))
        if file.is_dir():  # several ranks have written it
            change = tensor.change_fused_rows(experiment.model, content["tensor_parallel"], ungroup)
            weights = sharded.read_weights(file, change)
        else:
            weights = content["state_dict"]
        average = content.get("callbacks", {}).get("WeightAverage", {}).get("weights")
        weights = average if ema and average is not None else weights
        items = weights.items() if isinstance(weights, Mapping) else [(type(weights).__name__, None)]
        if odd := [name for name, value in items if not isinstance(name, str) or not isinstance(value, Tensor)]:
            raise AblateError(f"{file} does not contain the weights of a model, tensors by name: {odd[0]}.")
    except (MemoryError, AblateError):
        raise
    except KeyError as error:
        raise AblateError(f"{file} is not a checkpoint of this version of Ablate: it has no {error}.") from None
    except Exception as error:
        raise AblateError(
            f"The checkpoint {file} is damaged ({error}). The previous one may be in the same folder."
        ) from None
    if ema and average is None:
        raise AblateError(f"{file} has no averaged weights: its run did not set trainer.ema_decay.")
    own = {name.removeprefix(PREFIX): value for name, value in weights.items() if name.startswith(PREFIX)}
    return _merge(TrainedModel(file, experiment, dict(average) if average is not None and ema else own, step))


def _read_experiment(tree: Mapping[str, Any], source: str) -> Experiment:
    """Return the experiment that is stored in `source`. Raises ConfigError, before any of its plugins is run."""
    with plugins.restrict(tracking.has_plugin, source):
        return Experiment.from_mapping(tree, source=source)


def _merge(source: TrainedModel) -> TrainedModel:
    """Return `source` with the weights of the plain model: adapters are added to the weights."""
    state: Mapping[str, Tensor] = source.state
    for extension in load_extensions(source.experiment):
        try:
            state = extension.merge(source.blank, source.experiment, state)
        except (LookupError, RuntimeError, TypeError, ValueError) as error:  # of torch and peft, for weights that lack
            raise AblateError(f"{source.file} does not contain the trained weights: {_shorten(error)}") from None
    return replace(source, state=state)


def _open_export(folder: Path) -> TrainedModel:
    """Return the model of an exported folder, which stores a tied matrix under one of its names."""
    from safetensors.torch import load_file

    try:
        experiment = _read_experiment(read_yaml(folder / "config.yaml"), str(folder / "config.yaml"))
        state = load_file(folder / EXPORTED)
    except AblateError:
        raise
    except Exception as error:
        raise AblateError(f"{folder} cannot be read as an export of Ablate: {error}") from None
    for name, other in experiment.model.tied_weights().items():
        if other in state:
            state.setdefault(name, state[other])
    return TrainedModel(folder / EXPORTED, experiment, state, 0)


def check_weights(source: TrainedModel, finite: bool = True) -> None:
    """Raise AblateError if the weights do not match the model of the experiment, or, with `finite`, are not finite."""
    config, state, what = source.experiment.model, source.state, f"{source.file} does not contain the model of its"
    try:
        if config.layers > len(state):  # building a deep model takes minutes
            raise ValueError(f"it has {len(state)} tensors, but should have {config.layers} layers")
        expected = source.blank().state_dict()
    except (MemoryError, AblateError):
        raise
    except KeyError as error:
        raise AblateError(f"{what} configuration: it has no {error.args[0]}.") from None
    except Exception as error:  # shapes from which no model can be built
        raise AblateError(f"{what} configuration: {_shorten(error)}") from None
    problems = [f"it has no {name}" for name in expected if name not in state]
    problems += [f"the model has no {name}" for name in state if name not in expected]
    for name, value in expected.items():
        if name in state and (state[name].shape, state[name].is_floating_point()) != (
            value.shape, value.is_floating_point()
        ):  # fmt: skip
            here, there = (f"{list(part.shape)} of {part.dtype}" for part in (state[name], value))
            problems.append(f"{name} is {here}, and {there} in the model")
    if problems:
        more = f" (and {len(problems) - 1} more)" if problems[1:] else ""
        raise AblateError(f"{what} configuration: {problems[0]}{more}.")
    broken = [name for name, value in state.items() if finite and not bool(torch.isfinite(value).all())]
    if broken:
        where = f"{broken[0]} and {len(broken) - 1} more tensors" if broken[1:] else broken[0]
        text = f"{source.file} has weights that are NaN or infinite, in {where}, as after a diverged run."
        raise AblateError(f"{text} ablate export --not-finite writes them anyway.")


def _shorten(error: BaseException) -> str:
    return textwrap.shorten(str(error) or type(error).__name__, 300, placeholder=" ...").rstrip(".") + "."


def _find_checkpoint(name: str) -> Path:
    """Return the checkpoint that `name` names."""
    if is_url(name):
        return fetch_checkpoint(name, CHECKPOINT, tracking.cache_folder())
    path = Path(name).expanduser()
    runs = tracking.store_path() / "runs"
    places = (path, path / CHECKPOINT, runs / name / CHECKPOINT)
    checkpoint = next((p for p in places if os.path.isfile(p) or (os.path.isdir(p) and p.suffix == ".ckpt")), None)
    if checkpoint is None:
        known = [folder.parent.name for folder in runs.glob(f"*/{CHECKPOINT}")] if runs.is_dir() else []
        if os.path.isfile(runs / name / ALIGNED / "config.json"):  # a policy would have its weights beside it
            raise AblateError(
                f"{name} is a reward model, which assigns one number to an answer: use it as align.reward."
            )
        text = f"{name} is neither a checkpoint nor a run with a checkpoint in {runs}."
        raise AblateError(
            f"{text}{did_you_mean(name, known)} ablate ui shows the runs; their tag ablate.checkpoint has the path."
        )
    return checkpoint
