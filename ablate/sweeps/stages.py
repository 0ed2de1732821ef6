"""Sweeps in stages: arms that start from the best trial of another arm, of this sweep or of an earlier one, or are
aligned by the reward model of one.

`warm_start.from: sweep:NAME/ARM` names an arm of the sweep NAME; `sweep:/ARM` one of the same sweep, whatever it is
called; `align.reward` an arm of an earlier sweep. What is named is found when the arm's first trial begins, and noted
in the arm's study with the SHA-256 of its weights: all trials of an arm start from the same, and are judged by the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ablate.config.errors import Problem, SweepError, did_you_mean

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage

    from ablate.experiment.tree import Experiment
    from ablate.sweeps.spec.sweep import Sweep

PREFIX = "sweep:"
WEIGHTS, REWARD = "warm_start.from", "align.reward"  # where models are named
UNSCALED = ("align/reward", "align/start_reward")  # metrics in the unit of a reward model
_NOTE = "donors"  # of a study: what was named -> run and SHA-256, as fields of the part that names it


def parsed(given: str | None) -> tuple[str, str] | None:
    """(sweep, arm) of `sweep:NAME/ARM`; None of anything else."""
    if given is None or not given.startswith(PREFIX):
        return None
    title, _, arm = given.removeprefix(PREFIX).partition("/")
    return title, arm


def named(experiment: Experiment) -> dict[str, str]:
    """Dotted path -> the model that is named there: what `experiment` starts from, and what judges it."""
    start, align = experiment.warm_start, experiment.align
    found = {WEIGHTS: start.donor if start else None, REWARD: align.reward if align else None}
    return {path: given for path, given in found.items() if given is not None}


def donor_of(spec: Sweep, arm: str) -> tuple[str, str] | None:
    """(sweep, arm) that the trials of `arm` start from; the sweep is "" where it is `spec` itself."""
    start = spec.base(arm).warm_start
    found = parsed(start.donor) if start else None
    return ("", found[1]) if found and found[0] == spec.name else found


def own_donor(spec: Sweep, arm: str) -> str | None:
    """The arm of the same sweep that the trials of `arm` start from."""
    title, donor = donor_of(spec, arm) or (None, None)
    return donor if title == "" else None


def earlier(spec: Sweep) -> list[str]:
    """The names of the sweeps that arms of `spec` start from or are judged by, each once; a generation is left as it
    is."""
    given = [given for arm in spec.all_arms for given in named(spec.base(arm)).values()]
    titles = [found[0] for one in given if (found := parsed(one)) and found[0] not in ("", spec.name)]
    return [title for title in dict.fromkeys(titles) if "@" not in title]


def problems(spec: Sweep) -> Iterator[Problem]:
    """Arms of the same sweep that there are not, that wait for each other, or that judge; and judges of each arm's own,
    by whose rewards arms cannot be compared."""
    judges = {named(spec.base(arm)).get(REWARD) for arm in spec.all_arms}
    if len(judges) > 1 and spec.objective.metric in UNSCALED:
        text = "rewards of two reward models have no common scale: give all arms one align.reward, or compare the "
        yield Problem("objective.metric", f"{text}align/win_rate against each one's own start", spec.objective.metric)
    for arm in spec.all_arms:
        found = parsed(named(spec.base(arm)).get(REWARD))
        if found and found[0] in ("", spec.name):
            text = "a reward model comes from an earlier sweep: arms of one sweep are compared by the same metric"
            yield Problem(f"arms.{arm}.{REWARD}", text)
    own = {arm: donor for arm in spec.all_arms if (donor := own_donor(spec, arm)) is not None}
    for arm, donor in own.items():
        place = f"arms.{arm}.warm_start.from"
        if donor not in spec.all_arms:
            accepted = ", ".join(other for other in spec.all_arms if other != arm)
            text = f"the sweep has no arm {donor}. Accepted: {accepted}.{did_you_mean(donor, spec.all_arms)}"
            yield Problem(place, text)
            continue
        before, seen = donor, {arm}
        while before in own and before not in seen:
            seen.add(before)
            before = own[before]
        if before in seen:
            yield Problem(place, f"the arms {', '.join(sorted(seen))} would wait for each other")


def renamed(given: str | None, spec: Sweep, suffix: str) -> str | None:
    """What `sweep:NAME/ARM` becomes where every sweep is called NAME and `suffix`; None of what stays."""
    found = parsed(given)
    if found is None or not found[0] or "@" in found[0]:
        return None
    return f"{PREFIX}/{found[1]}" if found[0] == spec.name else f"{PREFIX}{found[0]}{suffix}/{found[1]}"


def started(experiment: Experiment, study: Study) -> Experiment:
    """`experiment` with the runs that it starts from and is judged by, in the place of `sweep:NAME/ARM`, and the hashes
    of their weights: what is noted in the arm's `study`, or from now on is noted there. Their checkpoints are kept.

    Raises SweepError where nothing can be started from yet.
    """
    from ablate.experiment.tree import Experiment

    changes: dict[str, Any] = {}
    for path, given in named(experiment).items():
        if (found := parsed(given)) is None:
            continue
        noted: dict[str, Any] = dict(study.user_attrs.get(_NOTE, {}))
        key = given if path == WEIGHTS else f"{path} {given}"
        if key not in noted:
            title = study.study_name.partition("/")[0]  # the sweep with its generation
            ours = found[0] in ("", title.rpartition("@")[0])
            noted[key] = _look_up(path, title if ours else found[0], found[1], study._storage)
            study.set_user_attr(_NOTE, noted)
        part = path.partition(".")[0]
        changes |= {f"{part}.{field}": value for field, value in noted[key].items()}
    return Experiment.from_mapping(experiment.to_tree(), changes) if changes else experiment


def _look_up(path: str, title: str, arm: str, storage: BaseStorage) -> dict[str, Any]:
    """The best trial of an arm, as what is written at `path` and beside it."""
    from ablate.sweeps.references import best_run
    from ablate.sweeps.storage import read_from
    from ablate.training.runs import keep_checkpoint
    from ablate.verdict.outcomes import FINISHED

    given = f"{PREFIX}{title}/{arm}"
    try:
        sweep = read_from(storage, title)
        run = best_run(given, sweep, arm)
    except SweepError as error:
        raise SweepError(f"Trials start from {given}, which is not there yet. {error}") from None
    counts = sweep.counts(arm)
    missing = sweep.target(arm) - sum(counts[status] for status in (*FINISHED, "failed"))
    if missing > 0 or counts["running"]:
        raise SweepError(f"Trials start from {given}, whose search is not done: run that sweep first.")
    keep_checkpoint(run)
    return {path.partition(".")[2]: run, **_FACTS[path](run)}


def _weights(run: str) -> dict[str, Any]:
    from ablate.post_training.warm_start import facts_of
    from ablate.training.trained import find

    return facts_of(find(run))


def _reward(run: str) -> dict[str, Any]:
    from ablate.post_training.alignment.reward import sha256_of

    return {"reward_sha256": sha256_of(run)}


_FACTS: dict[str, Callable[[str], dict[str, Any]]] = {WEIGHTS: _weights, REWARD: _reward}
"""Where a model is named -> what is written down of it."""


def inherit(study: Study, arm: Study) -> None:
    """The confirmation `study` of an arm starts from what the arm's trials started from, and has their judge."""
    if noted := arm.user_attrs.get(_NOTE):
        study.set_user_attr(_NOTE, noted)
