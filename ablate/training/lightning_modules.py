"""Runs of a LightningModule of somebody else (`ablate.experiment.lightning_module`): what its file names is imported,
its arguments are checked against signatures, and Lightning trains it."""

from __future__ import annotations

import functools
import inspect
import math
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, seed_everything
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ablate import tracking
from ablate.config.errors import ChangedInputsError, Problem, RunFailed, did_you_mean
from ablate.config.formatting import join_words
from ablate.data.files import fingerprint_files
from ablate.experiment.lightning_module import OWN, LightningExperiment
from ablate.tracking.provenance import describe_commit, read_versions
from ablate.training.callbacks import Stop
from ablate.training.external import Driver, ExternalRun
from ablate.training.procedures import Ended
from ablate.training.runs import CHECKPOINT, describe_error, translate_errors
from ablate.training.trainer import quieten

PACKAGES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}
"""Root of the module in which LightningModule is -> the package with its Trainer."""
KEYS = ("class_path", "init_args", "partial")
"""What an object of the settings has."""
ANY = ""
"""An argument of any name."""
DEFAULTS: dict[str, Any] = {
    "devices": 1,
    "logger": False,
    "num_sanity_val_steps": 0,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
"""Arguments of the Trainer, where the file gives no others."""


class LightningDriver(Driver):
    """Imports, checks and trains a LightningModule."""

    spoils = True

    def settle(self, threads: int) -> None:
        torch.set_num_threads(threads)

    def check(self, experiment: LightningExperiment) -> list[Problem]:
        quieten()
        make = import_module(PACKAGES["lightning"]).Trainer
        known = inspect.signature(make).parameters
        problems = [
            Problem(f"trainer.{name}", f"is no argument of Lightning's Trainer.{did_you_mean(name, known)}", value)
            for name, value in experiment.trainer.items()
            if name not in known
        ]
        problems += [*_check_arguments(experiment), *_check_values(experiment.trainer, "trainer")]
        plain = {name: value for name, value in experiment.trainer.items() if not any(_list_names(value))}
        if not problems:
            try:
                make(**{**DEFAULTS, **plain})
            except Exception as error:
                problems = [Problem("trainer", f"Lightning's Trainer refuses it: {describe_error(error)}")]
        return problems

    def fingerprint(self, experiment: LightningExperiment) -> dict[str, str]:
        """Return package or file -> SHA-256, of the code that is not installed, without importing it."""
        found: dict[str, list[Path]] = {}
        for name in filter(None, [experiment.module, experiment.data, *_list_names(experiment.to_tree())]):
            found |= _find_sources(name)
        return {name: fingerprint_files(files, tracking.cache_folder()) for name, files in found.items()}

    def gather_facts(self, experiment: LightningExperiment) -> dict[str, Any]:
        folder = Path.cwd()
        versions = read_versions(("torch", "lightning", "pytorch-lightning"))
        return {"ablate.cwd": str(folder), **versions, **describe_commit(folder)}

    def run(self, run: ExternalRun) -> Ended:
        quieten()
        return _train(run)


DRIVER = LightningDriver()


def _train(run: ExternalRun) -> Ended:
    experiment: LightningExperiment = run.experiment
    seed_everything(experiment.seed, workers=True, verbose=False)
    given, _ = _share_settings(experiment)
    module = load_object(experiment.module)(**build(given["module"]))
    data = load_object(experiment.data)(**build(given["data"])) if experiment.data else None
    if (package := _find_package(type(module))) is None:
        raise RunFailed(f"{experiment.module} made a {type(module).__name__}, which is no LightningModule")
    options = {**DEFAULTS, **build(experiment.trainer)}
    callbacks = options.pop("callbacks", None) or []
    callbacks = [*callbacks] if isinstance(callbacks, list) else [callbacks]
    options.setdefault("enable_checkpointing", any(hasattr(one, "best_model_path") for one in callbacks))
    watch = Watch(run)
    trainer = import_module(package).Trainer(
        **options,
        max_steps=experiment.steps,
        max_epochs=-1,
        callbacks=[*callbacks, watch],
        default_root_dir=run.folder,
    )
    trainer._signal_connector.register_signal_handlers = lambda: None  # the worker's own ask through `run.must_stop`
    checkpoint = run.folder / CHECKPOINT
    status, reason = "completed", ""
    try:
        with translate_errors():
            # its own file: hyperparameters that the module saves are objects of any class
            trainer.fit(
                module,
                datamodule=data,
                ckpt_path=str(checkpoint) if checkpoint.exists() else None,
                weights_only=False,
            )
    except Stop as stop:
        status, reason = stop.status, stop.reason
    if status == "completed" and trainer.global_step < experiment.steps:
        raise RunFailed(
            f"it ended after {trainer.global_step:,} of {experiment.steps:,} steps, by a callback, the module or empty "
            "data: runs of different lengths cannot be compared. Remove what ends it, or set the pruner of a sweep"
        )
    missing = [name for name in run.hooks.metrics if name not in watch.values]
    if status == "completed" and missing:
        known = ", ".join(watch.values) or "nothing"
        hint = did_you_mean(missing[0], watch.values)
        raise RunFailed(f"self.log gave no {join_words(missing)}. It gave: {known}.{hint}")
    finite = {name: value for name, value in watch.values.items() if math.isfinite(value)}
    facts = {"ablate.parameters": sum(one.numel() for one in module.parameters())}
    return Ended(status, reason, trainer.global_step, finite, facts)


class Watch(Callback):
    """Takes the values of each validation, ends the run where it must end, and writes the checkpoint to resume from."""

    def __init__(self, run: ExternalRun) -> None:
        self.run = run
        self.values: dict[str, float] = {}
        """The last value of each metric."""
        self._step = 0

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.values = state_dict["values"]

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        step, before = trainer.global_step, self._step
        self._step = step
        if step >= self.run.experiment.steps:  # so that it is validated, whatever the interval of validations
            trainer.should_stop, trainer.check_val_every_n_epoch = True, None
        elif step > before:  # not amid gradients that are accumulated
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
            if step % trainer.log_every_n_steps == 0 and isinstance(loss, torch.Tensor):
                self.run.show(step, float(loss))
            if self.run.must_stop():
                self._save(trainer)
                raise Stop("interrupted", f"stopped at step {step}")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self._take(trainer, pl_module)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.global_step not in self.run.curve:
            self._take(trainer, pl_module)
        else:  # what is logged at the end of an epoch of training
            self.values = {**_read_metrics(trainer), **self.values}

    def _take(self, trainer: Any, module: Any) -> None:
        step, found = trainer.global_step, _read_metrics(trainer)
        self.values |= found
        if broken := [f"{n} {found[n]}" for n in self.run.hooks.metrics if not math.isfinite(found.get(n, 0.0))]:
            raise Stop("diverged", f"{join_words(broken)} at step {step}")
        if not all(torch.isfinite(weight).all() for weight in module.parameters()):
            raise Stop("diverged", f"a weight that is not finite at step {step}")
        if not self.run.report(step, {name: value for name, value in found.items() if math.isfinite(value)}):
            raise Stop("pruned", f"pruned at step {step}")
        self._save(trainer)

    def _save(self, trainer: Any) -> None:
        """Write the checkpoint; a process that is killed meanwhile leaves the one before."""
        file = self.run.folder / CHECKPOINT
        trainer.save_checkpoint(new := file.with_suffix(".new"))
        os.replace(new, file)


def _read_metrics(trainer: Any) -> dict[str, float]:
    """Return what self.log gave last, by name."""
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


# ------------------------------------------------------------------ what the file names


def load_object(name: str) -> Any:
    """Return the class or function PACKAGE.MODULE.NAME. Raises LookupError."""
    home, _, last = name.rpartition(".")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # last: no file there takes the place of an installed package
    try:
        module = import_module(home)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{home}.".startswith(f"{error.name}."):
            raise LookupError(f"there is no module {error.name}, neither in {here} nor installed") from None
        raise LookupError(f"importing {home} fails: {describe_error(error)}") from None
    if not callable(found := getattr(module, last, None)):
        raise LookupError(f"{home} has no class or function {last}.{did_you_mean(last, vars(module))}")
    return found


def build(value: Any) -> Any:
    """Return a value of the file with its objects built."""
    if isinstance(value, list):
        return [build(one) for one in value]
    if not isinstance(value, Mapping):
        return value
    if "class_path" not in value:
        return {name: build(one) for name, one in value.items()}
    make, arguments = load_object(value["class_path"]), build(value.get("init_args") or {})
    return functools.partial(make, **arguments) if _is_partial(value, make) else make(**arguments)


def _is_partial(value: Mapping[str, Any], make: Any) -> bool:
    """Return whether a function that makes the object is meant: optimizers and schedules get what they act on later."""
    return bool(value.get("partial", isinstance(make, type) and issubclass(make, (Optimizer, LRScheduler))))


def _share_settings(experiment: LightningExperiment) -> tuple[dict[str, dict[str, Any]], list[Problem]]:
    """Return part, module or data -> its arguments; and the problems. Raises LookupError if one cannot be imported."""
    known = {
        part: _list_parameters(load_object(name))
        for part, name in (("module", experiment.module), ("data", experiment.data))
        if name
    }
    given: dict[str, dict[str, Any]] = {"module": {}, "data": {}}
    problems = []
    for name, value in sorted(experiment.settings.items(), key=lambda item: item[0] in OWN):  # those of one alone win
        takers = [part for part, parameters in known.items() if name in parameters]
        takers = takers or [part for part, parameters in known.items() if ANY in parameters]
        if name in OWN:
            given[OWN[name]] |= value
        elif takers:
            for part in takers:
                given[part][name] = value
        else:
            every = [one for parameters in known.values() for one in parameters if one]
            fields = [one for one in type(experiment).model_fields if one != "settings"]
            where = join_words([str(getattr(experiment, part)) for part in known], "or")
            text = f"is no argument of {where}. Accepted: {', '.join(dict.fromkeys(every))}."
            problems.append(Problem(name, text + did_you_mean(name, [*every, *fields]), value))
    return given, problems


def _check_arguments(experiment: LightningExperiment) -> Iterator[Problem]:
    """Yield the problems of module, data and their arguments."""
    problems, loaded = [], dict[str, Any]()
    for part in ("module", "data"):
        if name := getattr(experiment, part):
            try:
                loaded[part] = load_object(name)
            except LookupError as error:
                problems.append(Problem(part, str(error.args[0]), name))
    if problems:
        yield from problems
        return
    if isinstance(loaded["module"], type) and _find_package(loaded["module"]) is None:
        yield Problem("module", "is no LightningModule of lightning or pytorch_lightning", experiment.module)
    given, unknown = _share_settings(experiment)
    yield from unknown
    for part, arguments in given.items():
        prefix = f"for_{part}"
        own = experiment.settings.get(prefix, {})
        places = {name: f"{prefix}.{name}" for name in own}
        if part in loaded:
            yield from _check_call(loaded[part], arguments, places)
        elif own:
            yield Problem(prefix, f"needs {part}, which the file does not name", own)


def _check_call(
    make: Callable[..., Any], arguments: Mapping[str, Any], places: Mapping[str, str], partial: bool = False
) -> Iterator[Problem]:
    """Yield the problems of calling `make` with these `arguments`, and of the objects in them. `places`: argument ->
    its path, where that is not its name."""
    name, known = getattr(make, "__name__", str(make)), _list_parameters(make)
    for one, value in arguments.items():
        if one not in known and ANY not in known:
            text = f"is no argument of {name}. Accepted: {', '.join(filter(None, known)) or 'none'}."
            yield Problem(places.get(one, one), text + did_you_mean(one, filter(None, known)), value)
        yield from _check_values(value, places.get(one, one))
    for one, is_required in known.items():
        if one and is_required and one not in arguments and not partial:
            yield Problem(places.get(one, one), f"is an argument that {name} needs: give it a value")


def _check_values(value: Any, path: str) -> Iterator[Problem]:
    """Yield the problems of the objects in a value of the file."""
    if isinstance(value, list):
        for number, one in enumerate(value):
            yield from _check_values(one, f"{path}.{number}")
    elif isinstance(value, Mapping) and "class_path" not in value:
        for name, one in value.items():
            hint = "" if name != "_target_" else ": an object is {class_path: ..., init_args: {...}, partial: true}"
            if hint or name == "init_args":
                yield Problem(f"{path}.{name}", f"has no class_path beside it{hint}", one)
            yield from _check_values(one, f"{path}.{name}")
    elif isinstance(value, Mapping):
        for name in value.keys() - {*KEYS}:
            text = f"is not accepted beside class_path: arguments stand below init_args.{did_you_mean(name, KEYS)}"
            yield Problem(f"{path}.{name}", text, value[name])
        if not isinstance(arguments := value.get("init_args") or {}, Mapping):
            yield Problem(f"{path}.init_args", "must be a mapping from names of arguments to values", arguments)
            return
        try:
            make = load_object(str(value["class_path"]))
        except LookupError as error:
            yield Problem(f"{path}.class_path", str(error.args[0]), value["class_path"])
            return
        places = {one: f"{path}.init_args.{one}" for one in {*arguments, *_list_parameters(make)}}
        yield from _check_call(make, arguments, places, _is_partial(value, make))


def _list_parameters(make: Callable[..., Any]) -> dict[str, bool]:
    """Return argument -> whether it has no default; ANY stands for all names."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except ValueError:  # written in C, without a signature
        return {ANY: False}
    named = {one.name: one.default is one.empty for one in parameters if one.kind in (1, 3)}
    return {**named, **({ANY: False} if any(one.kind is one.VAR_KEYWORD for one in parameters) else {})}


def _find_package(made: type) -> str | None:
    """Return the package whose Trainer trains a class; None for one that is no LightningModule."""
    roots = (base.__module__.partition(".")[0] for base in made.__mro__ if base.__name__ == "LightningModule")
    return next((PACKAGES[root] for root in roots if root in PACKAGES), None)


def _list_names(value: Any) -> Iterator[str]:
    """Yield the class paths in a value of the file."""
    if isinstance(value, list):
        for one in value:
            yield from _list_names(one)
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield from [str(one)] if name == "class_path" else _list_names(one)


def _find_sources(name: str) -> dict[str, list[Path]]:
    """Return the package or file in which PACKAGE.MODULE.NAME is -> its Python files, without importing it; {} for what
    is installed. Raises ChangedInputsError if it is not there."""
    root = name.partition(".")[0]
    if (found := PathFinder.find_spec(root, [*sys.path, str(Path.cwd())])) is None:
        raise ChangedInputsError(
            f"{root} of {name} is neither in {Path.cwd()} nor installed: start workers in the folder of the project."
        )
    folders = {Path(folder).resolve() for folder in found.submodule_search_locations or ()}  # without __init__.py more
    files = sorted(file for folder in folders for file in folder.rglob("*.py"))
    files += [Path(found.origin)] if found.origin and not folders else []
    installed = {sysconfig.get_path(key) for key in ("purelib", "platlib", "stdlib")}
    if not files or any(str(file).startswith(f"{folder}{os.sep}") for folder in installed for file in files[:1]):
        return {}
    return {f"package {root}" if folders else f"file {files[0].name}": files}
