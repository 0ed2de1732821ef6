"""Before a sweep runs: what would fail every trial is found, and the studies of its arms are opened or taken up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ablate import provenance, tracking
from ablate.errors import ConfigError, Problem, SweepError
from ablate.sweeping.spec import Sweep
from ablate.sweeping.study import generations, spec_of, study_name, title_of
from ablate.sweeping.trials import ArmTrials

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage

_CHANGEABLE = ("budget",)  # parts of a sweep file that may change while its studies go on


def check(spec: Sweep) -> None:
    """Finds before the first trial what would make all of them fail: data, and the name of the objective."""
    from ablate.tasks import tasks

    loaded = set()
    for arm in spec.all_arms:
        base = spec.base(arm)
        known = tasks[base.data.task].reports
        if spec.objective.metric not in known:
            message = f"unknown metric. Accepted: {', '.join(known)}"
            raise ConfigError([Problem("objective.metric", message, spec.objective.metric)], spec.name)
        if base.data not in loaded:
            base.data.load(tracking.cache_folder())
            loaded.add(base.data)


def generation_of(spec: Sweep, storage: BaseStorage, fresh: bool) -> int:
    """The generation to go on with. Raises SweepError where its sweep file was another one."""
    import optuna

    known = generations(storage).get(spec.name, [])
    if not known:
        return 1
    if fresh:
        return known[-1] + 1
    prefix = f"{spec.name}@{known[-1]}/"
    name = next(n for n in optuna.get_all_study_names(storage) if n.startswith(prefix))
    before = spec_of(optuna.load_study(study_name=name, storage=storage))
    if changes := differences(before, spec):
        raise SweepError(
            f"{spec.name} was started with another sweep file. What changed:\n"
            + "\n".join(f"  {change}" for change in changes)
            + "\nPut it back, give the sweep another name, or start anew with --fresh (the old trials are kept as "
            f"{title_of(spec.name, known[-1])}, a report can still be made of them)."
        )
    return known[-1]


def differences(before: Sweep, now: Sweep) -> list[str]:
    """'path: old -> new' for each setting in which two sweeps differ, the budget left out."""

    def flat(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
        if isinstance(tree, dict) and tree:
            for key, value in tree.items():
                yield from flat(value, f"{path}.{key}" if path else key)
        else:
            yield path, tree

    old, new = (
        dict(flat({key: value for key, value in spec.to_tree().items() if key not in _CHANGEABLE}))
        for spec in (before, now)
    )
    absent = "(not set)"
    return [
        f"{path}: {old.get(path, absent)} -> {new.get(path, absent)}"
        for path in dict.fromkeys([*old, *new])
        if old.get(path, absent) != new.get(path, absent)
    ]


def open_arms(spec: Sweep, storage: BaseStorage, generation: int) -> list[ArmTrials]:
    """The studies of the arms, created where they are missing, each with its run in MLflow."""
    import optuna

    arms = []
    for arm in spec.all_arms:
        study = optuna.create_study(
            storage=storage,
            study_name=study_name(spec.name, generation, arm),
            direction=spec.objective.direction,
            load_if_exists=True,
        )
        study.set_user_attr("spec", spec.to_tree())
        arms.append(ArmTrials(study, spec, arm, _parent_run(study, spec, title_of(spec.name, generation), arm)))
    return arms


def _parent_run(study: Study, spec: Sweep, title: str, arm: str) -> str:
    """The arm's run in MLflow, made if this store has none."""
    known = study.user_attrs.get("parent")
    if known and study.user_attrs.get("tracking_uri") == tracking.tracking_uri():
        return str(known)
    tags = {"ablate.role": "arm", "ablate.sweep": title, "ablate.arm": arm, **provenance.environment()}
    tracker = tracking.Tracker.start(title, arm, tags)
    tracker.params(spec.base(arm).flat())
    tracker.text(spec.to_yaml(), "sweep.yaml")
    study.set_user_attr("parent", tracker.run_id)
    study.set_user_attr("tracking_uri", tracking.tracking_uri())
    return tracker.run_id
