"""The scaling ladder: the arms of a sweep file at several sizes, each tuned there, and their difference against size.

Each rung is a sweep of its own, so a ladder can be stopped and continued. Sizes are the weights in the matrices of the
layers, without embedding, head and norms: that is what placements act on, and no tokenizer changes it (as in
Kaplan et al. 2020, arXiv 2001.08361). Tokens per parameter count the same parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.config.errors import ConfigError, Problem, SweepError, did_you_mean
from ablate.experiment.tree import Experiment
from ablate.models import models
from ablate.scaling.fits import Fit, Resampler, Trend
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.spec.scale import change_length, resize
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.spec.trees import apply_overrides, load_trees

METRIC = "val/loss"


@dataclass(frozen=True)
class Rung:
    """One size of a ladder."""

    size: str
    parameters: int
    """Weights in the matrices of the layers."""
    items: int
    """Tokens or images of one trial."""
    spec: Sweep

    @classmethod
    def of(cls, size: str, spec: Sweep) -> Rung:
        """Return the rung of `spec`."""
        base = spec.base(next(iter(spec.all_arms)))
        return cls(size, base.model.layer_parameters(), base.items, spec)


@dataclass(frozen=True)
class Ladder:
    """The losses of the arms at each size, and what is fitted to them."""

    name: str
    rungs: list[Rung]
    """The smallest first."""
    losses: dict[str, list[dict[int, float]]]
    """Arm -> for each rung: fresh seed -> validation loss in nats."""
    curves: dict[str, Fit]
    """Arm -> loss against size; none of an arm that was trained to the end at fewer than two sizes."""
    trends: dict[str, Trend]
    """Arm -> its difference to the baseline against size."""
    baseline: str
    target: tuple[str, int] | None
    """The size that is extrapolated to, and its parameters."""


def build_rungs(
    file: str | Path,
    sizes: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
    tokens_per_parameter: float | None = None,
) -> list[Rung]:
    """Return the rungs of a sweep file, the smallest first.

    Args:
        file: the sweep file.
        sizes: names of sizes of the file, or of models (9m for llama-9m); by default all sizes of the file.
        overrides: dotted paths, over every rung.
        tokens_per_parameter: the length of every rung. By default a size of the file has its own, and a model has as
            many tokens for each parameter as the smallest size of the file.

    A model is trained with the settings of the file's smallest size, warm-up and validations at the same shares of the
    run. Raises ConfigError for fewer than two sizes, unknown ones, two of one size, and without fresh seeds.
    """
    source = str(file)
    held = load_trees(file, overrides, None)
    if held.word == "stage":
        raise ConfigError([Problem("stages", "a ladder compares sizes, and this file has stages")], source)
    trees = held.trees
    own = {
        name: Rung.of(
            name, Sweep.from_tree(apply_overrides(Sweep, tree, overrides or {}, source), held.source(file, name))
        )
        for name, tree in trees.items()
    }
    smallest = min(own.values(), key=lambda rung: rung.parameters)
    ratio = tokens_per_parameter or smallest.items / smallest.parameters
    wanted = list(dict.fromkeys(sizes)) or [name for name in own if name]
    stem = str(Sweep.from_tree(trees[smallest.size]).name).removesuffix(f"-{smallest.size}" if smallest.size else "")
    chosen, problems = [], []
    for size in wanted:
        rung = own.get(size) or _build_model_rung(size, smallest, stem, ratio)
        if rung is None:
            problems.append(_unknown_size(size, [name for name in own if name], smallest))
        elif tokens_per_parameter and size in own:
            chosen.append(_lengthen(rung, ratio, f"{rung.spec.name}-{ratio:g}per"))
        else:
            chosen.append(rung)
    problems += _validate(chosen) if not problems else []
    if problems:
        raise ConfigError(problems, source)
    return sorted(chosen, key=lambda rung: rung.parameters)


def count_parameters(size: str, known: Sequence[Rung]) -> int:
    """Return the parameters of a size: one of `known`, or a model of their family. Raises ConfigError for another."""
    for rung in known:
        if rung.size == size:
            return rung.parameters
    base = known[0].spec.base(next(iter(known[0].spec.all_arms)))
    if (preset := _find_preset(size, base.model.kind)) is None:
        raise ConfigError(
            [_unknown_size(size, [rung.size for rung in known], known[0], "--extrapolate")], "the command line"
        )
    return models.parse(preset).layer_parameters()


def fit_ladder(
    name: str, known: Sequence[Rung], records: Sequence[SweepRecord], extrapolate: str | None = None
) -> Ladder:
    """Return what is fitted to the confirmed arms of `records`, one for each rung. Raises SweepError where no arm but
    the baseline has been trained to the end on fresh seeds at two sizes."""
    baseline = known[0].spec.compared_with
    losses = {arm: [_losses_by_seed(record, arm) for record in records] for arm in known[0].spec.all_arms}
    seeds = [sorted({s for by_rung in losses.values() for s in by_rung[k]}) for k in range(len(known))]
    kept = [k for k, there in enumerate(seeds) if there]
    losses = {arm: [by_rung[k] for k in kept] for arm, by_rung in losses.items()}
    measured = [known[k] for k in kept]
    resampler = Resampler([rung.parameters for rung in measured], [seeds[k] for k in kept])
    enough = [arm for arm, by_rung in losses.items() if sum(map(bool, by_rung)) > 1]
    base = losses[baseline]
    paired = {
        arm: sum(bool(a.keys() & b.keys()) for a, b in zip(losses[arm], base, strict=True))
        for arm in enough
        if arm != baseline
    }
    if not any(count > 1 for count in paired.values()):
        raise SweepError(
            f"The ladder {name} needs {baseline} and another arm trained to the end on the same fresh seeds at two "
            f"sizes. See what each size came to, such as: ablate report {known[0].spec.name}"
        )
    return Ladder(
        name,
        measured,
        losses,
        {arm: resampler.fit_curve(losses[arm]) for arm in enough},
        {arm: resampler.fit_trend(losses[arm], base) for arm, count in paired.items() if count > 1},
        baseline,
        (extrapolate, count_parameters(extrapolate, known)) if extrapolate else None,
    )


def _losses_by_seed(record: SweepRecord, arm: str) -> dict[int, float]:
    trials = (t for t in record.confirmed.get(arm, ()) if t.status == "completed" and METRIC in t.metrics)
    return {int(t.params["seed"]): t.metrics[METRIC] for t in trials}


def _find_preset(size: str, family: str) -> str | None:
    """Return the named model of a size: 9m, or llama-9m."""
    known = [name for name, fields in models.presets.items() if fields["kind"] == family]
    return next((name for name in (size, f"{family}-{size}") if name in known), None)


def _build_model_rung(size: str, smallest: Rung, stem: str, ratio: float) -> Rung | None:
    """Return the rung of a named model; None where there is none of the family."""
    base = smallest.spec.base(next(iter(smallest.spec.all_arms)))
    preset = _find_preset(size, base.model.kind)
    if preset is None:
        return None
    fields = {f"model.{field}": value for field, value in models.presets[preset].items() if field != "kind"}
    tree = {**resize(smallest.spec, lambda full: fields), "name": f"{stem}-{size}-{ratio:.4g}per", "published": []}
    return _lengthen(Rung.of(size, Sweep.from_tree(tree)), ratio, tree["name"])


def _lengthen(rung: Rung, ratio: float, name: str) -> Rung:
    """Return the rung trained on `ratio` tokens for each parameter."""

    def changes(full: Experiment) -> dict[str, Any]:
        trainer = full.trainer
        return change_length(full, ratio * rung.parameters / full.items * trainer.max_steps)

    return Rung.of(rung.size, Sweep.from_tree({**resize(rung.spec, changes), "name": name}))


def _unknown_size(size: str, own: Sequence[str], smallest: Rung, path: str = "--sizes") -> Problem:
    family = smallest.spec.base(next(iter(smallest.spec.all_arms))).model.kind
    named = [n.removeprefix(f"{family}-") for n, fields in models.presets.items() if fields["kind"] == family]
    known = list(dict.fromkeys([*own, *named]))
    return Problem(path, f"no such size. Accepted: {', '.join(known)}.{did_you_mean(size, known)}", size)


def _validate(rungs: Sequence[Rung]) -> list[Problem]:
    problems = []
    if len(rungs) < 2:
        problems.append(
            Problem("--sizes", "a ladder needs two sizes or more, as --sizes 9m,20m,35m", [rung.size for rung in rungs])
        )
    by_parameters: dict[int, str] = {}
    for rung in rungs:
        if (other := by_parameters.setdefault(rung.parameters, rung.size)) != rung.size:
            problems.append(Problem("--sizes", f"{other} and {rung.size} have the same number of parameters"))
        if not rung.spec.confirm.seeds:
            problems.append(Problem("confirm.seeds", f"fresh seeds are what {rung.size} is told by: give 3 or more"))
        if len(rung.spec.all_arms) < 2 or list(rung.spec.all_arms) != list(rungs[0].spec.all_arms):
            arms = ", ".join(rung.spec.all_arms)
            problems.append(Problem("arms", f"every size needs the same two arms or more; {rung.size} has {arms}"))
    return problems
