"""Checks of a sweep: its experiments, the sweeps that it refers to, and the differences between its arms."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from ablate.config.bounds import MOST_SEED
from ablate.config.errors import ConfigError, Problem, did_you_mean
from ablate.config.formatting import format_setting, format_settings, is_number, join_words
from ablate.config.merging import iterate_leaves
from ablate.experiment.metrics import list_parts
from ablate.experiment.tree import REWARD, build_experiment, find_class
from ablate.sweeps.search.axes import Axis
from ablate.sweeps.search.space import Choice, Range, Space, contains, format_entry
from ablate.sweeps.spec import audit
from ablate.sweeps.spec.design import FACTORIALS, check_components, list_grid
from ablate.sweeps.spec.fields import MOST_LETTERS, SweepFields
from ablate.sweeps.spec.metrics_validation import check_published, check_readings, validate_objective
from ablate.sweeps.spec.references import find_own_donor, parse_reference
from ablate.sweeps.spec.speed_validation import check_speed

COMBINATIONS = 256  # of the ends of a search space that are checked together; larger spaces are checked path by path
UNSCALED = ("align/reward", "align/start_reward")  # metrics in the unit of a reward model


def validate(sweep: SweepFields) -> list[Problem]:
    """Return the problems of the arms' experiments and of their confirmation; if there are none, those of their
    references and their differences."""
    plain = sweep.without_grid()
    if unlike := [*_check_kinds(sweep)]:
        return unlike
    if designing := validate_design(sweep):  # so there are no arms
        base = [p.within("experiment") for p in validate_experiment(*plain.layers(next(iter(sweep.own_arms))))]
        return [*designing, *validate_objective(sweep), *_check_seeds(sweep), *([] if sweep.arms else base)]
    problems = [
        *validate_objective(sweep),
        *_check_seeds(sweep),
        *_check_confirmation(plain),
        *_check_challenge(sweep),
        *_check_experiments(plain),
        *_check_settings_from(sweep),
        *check_speed(sweep),
    ]
    problems += check_published(plain)
    problems += [*_check_grid(sweep), *_check_what_is_left_out(sweep)] if sweep.at_grid else []
    return (merge_alike(problems, sweep.own_arms) if sweep.designed else problems) or [
        *_check_references(plain),
        *_check_pruner(plain),
        *check_readings(plain),
        *audit.validate(plain),
    ]


def _check_kinds(sweep: SweepFields) -> Iterator[Problem]:
    """Yield the problem of an unknown kind of experiment, and of arms with a kind of their own."""
    try:
        find_class(sweep.experiment)
    except ConfigError as error:
        yield from error.problems
    text = "is set once, in experiment: the runs of all arms are of one kind. Remove it"
    yield from (
        Problem(f"arms.{name}.kind", text, arm.settings["kind"])
        for name, arm in sweep.own_arms.items()
        if "kind" in arm.settings
    )


def validate_rest(cls: type[SweepFields], tree: Mapping[str, Any], problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems of the experiments of `tree` in addition to the `problems` of the file itself: of each
    experiment, and of each searched setting on its own, once the entries with `problems` are left out."""
    rest: dict[str, Any] = {"name": "unnamed", **tree}
    for problem in problems:
        rest = _leave_out(rest, problem.path)
    with contextlib.suppress(ValidationError):
        sweep = cls.model_validate(rest).without_grid()
        if not any(validate_design(sweep)):
            bases = {arm: validate_experiment(*sweep.layers(arm), sweep.start(arm)) for arm in sweep.all_arms}
            more = [problem for arm, base in bases.items() for problem in _check_alone(sweep, arm, base)]
            return merge_alike(more, sweep.own_arms) if sweep.designed else more
    return []


def _leave_out(tree: Any, path: str) -> Any:
    """Return `tree` without the entry at a dotted `path`, whose keys may have dots themselves, or without the last part
    of the path that exists."""
    if not isinstance(tree, Mapping):
        return tree
    key = max((key for key in tree if path == key or path.startswith(f"{key}.")), key=len, default=None)
    if key is None:
        return tree
    rest = path.removeprefix(key).removeprefix(".")
    inner = _leave_out(tree[key], rest) if rest else tree[key]
    changed = {other: value for other, value in tree.items() if other != key}
    return {**changed, key: inner} if inner != tree[key] else changed


def validate_experiment(*mappings: Mapping[str, Any]) -> tuple[Problem, ...]:
    """Return the problems of an experiment of `mappings`; empty if there are none."""
    try:
        build_experiment(*mappings)
    except ConfigError as error:
        return error.problems
    return ()


def _check_seeds(sweep: SweepFields) -> Iterator[Problem]:
    """Yield a problem wherever seeds are searched."""
    text = (
        "a seed is not a setting, and the best of several seeds is chance. Remove it; experiment.seed is the seed of "
        "the search, confirm.seeds sets the seeds for testing the arms"
    )
    searches = {"search": sweep.search, **{f"arms.{name}.search": arm.search for name, arm in sweep.arms.items()}}
    yield from (Problem(f"{place}.seed", text) for place, searched in searches.items() if "seed" in searched)
    yield from (Problem(f"fixed.{i}.seed", text) for i, point in enumerate(sweep.fixed) if "seed" in point)


def _check_settings_from(sweep: SweepFields) -> Iterator[Problem]:
    """Yield the problems that keep a sweep from taking over settings that another chose."""
    if not sweep.settings_from or sweep.taken_over:
        return
    if sweep.components:
        yield Problem("settings_from", "goes with arms, and this file has components: write its arms out")
    if sweep.at_grid:
        text = "settings_from leaves nothing to search, so there is no grid. Accepted: at: best"
        yield Problem("confirm.at", text, sweep.confirm.at)
    if not sweep.confirm.most_seeds:
        yield Problem("confirm.seeds", "is required with settings_from: the arms are tested on fresh seeds alone")


def _check_confirmation(sweep: SweepFields) -> Iterator[Problem]:
    """Yield the problems of the confirmation."""
    confirm = sweep.confirm
    if confirm.is_sequential and confirm.effect is None:
        text = (
            "is required if seeds are added until every comparison is decided: the smallest difference of "
            f"{sweep.objective.title} that matters, within which arms are called equivalent"
        )
        yield Problem("confirm.effect", text)
    if confirm.is_sequential and len(sweep.all_arms) == 1:
        yield Problem(
            "confirm.seeds", "there is only one arm, so there is no comparison: set a number of seeds, not a range"
        )
    yield from _check_last_seed(sweep)
    counts = [sweep.trials(arm) for arm in sweep.all_arms if not _has_bad_grid(sweep, arm)]
    most = None if None in counts else max((count for count in counts if count), default=None)
    if most is not None and confirm.candidates > max(most, type(confirm)().candidates):
        text = f"cannot be more than the {most} trials of a search"
        yield Problem("confirm.candidates", text, confirm.candidates)


def _check_last_seed(sweep: SweepFields) -> Iterator[Problem]:
    """Yield a problem if the seeds above those of the search exceed the range of seeds."""
    try:
        last = max(*sweep.fresh_seeds(), *sweep.selection_seeds(), 0) if sweep.confirm.most_seeds else 0
    except ConfigError:  # an invalid experiment, which is reported separately
        return
    if last > MOST_SEED:
        tuned = {arm: sweep.base(arm).seed for arm in sweep.all_arms}
        highest = max(tuned, key=lambda arm: tuned[arm])
        text = f"is too large: the seeds of confirm would go up to {last}. Accepted: at most {MOST_SEED}, with these"
        yield Problem(locate(sweep, highest, "seed"), text, tuned[highest])


def _check_challenge(sweep: SweepFields) -> Iterator[Problem]:
    """Yield the problems of the challenge, where the file sets it."""
    plain, challenge = sweep.without_grid(), sweep.challenge
    if challenge == type(challenge)():
        return
    spaces = {arm: plain.space(arm) for arm in plain.own_arms}
    if sweep.at_grid:
        yield Problem("challenge", "cannot be combined with confirm.at: grid, where every point is tested")
    elif not sweep.confirm.most_seeds:
        text = "needs confirm.seeds: without fresh seeds no arm is told that it lost. Set confirm.seeds, or remove it"
        yield Problem("challenge", text)
    if not any(spaces.values()) and not sweep.settings_from:
        yield Problem("challenge", "nothing is searched, so no arm has other settings to try. Remove it")
    for path, (low, high) in challenge.bound.items():
        yield from _check_bound(path, low, high, {arm: own[path] for arm, own in spaces.items() if path in own}, spaces)


def _check_bound(
    path: str,
    low: float | None,
    high: float | None,
    entries: Mapping[str, Range | Sequence[Choice]],
    spaces: Mapping[str, Space],
) -> Iterator[Problem]:
    """Yield the problems of a bound. `entries`: what the arms that search its parameter search."""
    place, given = f"challenge.bound.{path}", [low, high]
    if not entries:
        searched = list(dict.fromkeys(one for space in spaces.values() for one in space))
        text = f"is searched by no arm. Accepted: {', '.join(searched) or 'nothing'}.{did_you_mean(path, searched)}"
        yield Problem(place, text)
    elif low is not None and high is not None and low >= high:
        yield Problem(place, "its lowest value must be below its highest", given)
    for arm, entry in entries.items():
        if Axis.of(entry, 0) is None:
            text = (
                f"only numbers have a bound, at least two of them, and {arm} searches {format_entry(entry)}. Remove it"
            )
            yield Problem(place, text)
            return
    if low is None or high is None or low < high:
        values = dict.fromkeys(
            value
            for entry in entries.values()
            for value in (entry.ends() if isinstance(entry, Range) else entry)
            if is_number(value) and ((low is not None and value < low) or (high is not None and value > high))
        )
        if values:
            told = join_words(map(format_setting, values))
            text = f"leaves out {told}, which the arms search. Search other values, or move the bound"
            yield Problem(place, text, given)


def _has_bad_grid(sweep: SweepFields, arm: str) -> bool:
    """Return whether the sampler itself reports a problem with the space of `arm`."""
    return bool(sweep.sampler.validate(sweep.space(arm)))


def _check_experiments(sweep: SweepFields) -> Iterator[Problem]:
    """Yield the problems of the experiments of each arm, at the ends of everything that is searched, and their
    conflicts with the sampler, the pruner and the method."""
    yield from check_method(sweep)
    for arm in sweep.all_arms:
        where = f"arms.{arm}." if sweep.arms or sweep.designed else ""
        settings = sweep.all_arms[arm].settings
        base = validate_experiment(*sweep.layers(arm), sweep.start(arm))
        alone = list(_check_alone(sweep, arm, base))
        yield from alone
        if base:
            continue
        for path in sweep.space(arm):
            if any(path == key for key, _ in iterate_leaves(settings)):
                yield Problem(f"arms.{arm}.{path}", "is set here and also searched; remove one of them")
        if not alone:
            yield from _check_combinations(sweep, arm, where)
        yield from (Problem(f"{where}{p.path}", p.message) for p in sweep.sampler.validate(sweep.space(arm)))
        yield from _check_starts(sweep, arm)
        searches = sweep.sampler.kind != "grid" and not sweep.settings_from
        if searches and not sweep.space(arm) and sweep.trials(arm) != 1:
            trials = f"all {count} trials" if (count := sweep.trials(arm)) else "all trials"
            yield Problem(f"{where}search", f"nothing is searched, so {trials} would be identical")
        if not alone and not _has_bad_grid(sweep, arm):
            yield from check_method_in_arm(sweep, arm)


def _check_alone(sweep: SweepFields, arm: str, base: tuple[Problem, ...]) -> Iterator[Problem]:
    """Yield the problems of the experiment of an arm (`base`) with their places, and those that each searched path
    adds."""
    yield from (Problem(locate(sweep, arm, p.path), p.message, p.given) for p in base)
    yield from _check_each_path(sweep, arm, base)


def _check_starts(sweep: SweepFields, arm: str) -> Iterator[Problem]:
    """Yield a problem for each fixed point that cannot be tried, or is there twice."""
    space = sweep.space(arm)
    for i, point in enumerate(sweep.fixed):
        place = f"fixed.{i}"
        if sweep.sampler.kind == "grid":
            yield Problem(place, "a grid tries every cell anyway; remove the fixed points, or use sampler tpe")
            return
        if point in sweep.fixed[:i] and point.keys() >= space.keys():
            yield Problem(place, f"is there twice for {arm}, and the same run would be trained twice. Remove one")
        for path, value in point.items():
            if path == "seed":
                continue  # reported above
            if path not in space:
                text = f"is not searched for {arm}. Accepted: {', '.join(space) or 'nothing'}."
                yield Problem(f"{place}.{path}", text + did_you_mean(path, space), value)
            elif not contains(space[path], value):
                yield Problem(f"{place}.{path}", f"is not in the search space ({format_entry(space[path])})", value)


def _check_each_path(sweep: SweepFields, arm: str, base: tuple[Problem, ...]) -> Iterator[Problem]:
    """Yield the problems of each searched path on its own, without those that the experiment has anyway (`base`)."""
    where = f"arms.{arm}." if sweep.arms or sweep.designed else ""
    for path, values in sweep.corners(arm).items():
        place = f"{where}search.{path}" if path in sweep.all_arms[arm].search else f"search.{path}"
        texts = set()
        for value in values:
            for p in validate_experiment(*sweep.layers(arm), sweep.start(arm), {path: value}):
                if p in base:
                    continue
                text = p.message if p.path == path else f"{p.path}: {p.message}"
                if text not in texts:
                    texts.add(text)
                    yield Problem(place, text, value if p.given is None else p.given)


def _check_combinations(sweep: SweepFields, arm: str, where: str) -> Iterator[Problem]:
    """Yield the first combination of searched values, each valid on its own, that is not a valid experiment."""
    corners = sweep.corners(arm)
    if len(corners) < 2:  # each value was checked on its own
        return
    if math.prod(len(values) for values in corners.values()) > COMBINATIONS:
        corners = {path: list(dict.fromkeys([values[0], values[-1]])) for path, values in corners.items()}
    for values in itertools.islice(itertools.product(*corners.values()), COMBINATIONS):
        point = dict(zip(corners, values, strict=True))
        if problems := validate_experiment(*sweep.layers(arm), point):
            at = ", ".join(f"{path}={value}" for path, value in point.items())
            hint = "Parameters of only one kind belong into a separate arm."
            yield Problem(f"{where}search", f"at {at}: {problems[0]} {hint}")
            return


def _check_references(sweep: SweepFields) -> Iterator[Problem]:
    """Yield problems of references: to missing arms of the same sweep, to arms that wait for each other, to reward
    models of the same sweep, and to different reward models, whose rewards cannot be compared."""
    judges = {sweep.base(arm).list_references().get(REWARD) for arm in sweep.all_arms}
    if len(judges) > 1 and not {*list_parts(sweep.objective.metric)}.isdisjoint(UNSCALED):
        text = (
            "the rewards of different reward models have no common scale: set one align.reward for all arms, or "
            "compare the "
        )
        yield Problem("objective.metric", f"{text}align/win_rate against each arm's own start", sweep.objective.metric)
    for arm in sweep.all_arms:
        judge = parse_reference(sweep.base(arm).list_references().get(REWARD))
        if judge and judge[0] in ("", sweep.name):
            text = "a reward model must come from an earlier sweep: arms of one sweep are compared by the same metric"
            yield Problem(f"arms.{arm}.{REWARD}", text)
    own = {arm: donor for arm in sweep.all_arms if (donor := find_own_donor(sweep, arm)) is not None}
    for arm, donor in own.items():
        place = f"arms.{arm}.warm_start.from"
        if donor not in sweep.all_arms:
            accepted = ", ".join(other for other in sweep.all_arms if other != arm)
            text = f"the sweep has no arm {donor}. Accepted: {accepted}.{did_you_mean(donor, sweep.all_arms)}"
            yield Problem(place, text)
            continue
        before, seen = donor, {arm}
        while before in own and before not in seen:
            seen.add(before)
            before = own[before]
        if before in seen:
            yield Problem(place, f"the arms {', '.join(sorted(seen))} would wait for each other")


def validate_design(sweep: SweepFields) -> list[Problem]:
    """Return the problems of the components of a sweep, and of fields that need them."""
    if sweep.components is None:
        given = {"design": sweep.design, "within": sweep.within}
        text = "needs components, whose levels it combines"
        return [Problem(field, text, value) for field, value in given.items() if value is not None]
    return [
        *check_components(sweep.components, sweep.design, sweep.within),
        *_check_beside(sweep),
        *_check_names(sweep),
    ]


def _check_beside(sweep: SweepFields) -> Iterator[Problem]:
    """Yield the fields that cannot be combined with components."""
    if sweep.arms:
        yield Problem("arms", "cannot be combined with components, which make the arms: remove one of the two")
    if sweep.baseline is not None:
        text = (
            "cannot be combined with components: the baseline is the arm of all first levels (leave-one-out: of "
            "all last ones)"
        )
        yield Problem("baseline", text, sweep.baseline)
    if sweep.factor:
        yield Problem(
            "factor",
            "cannot be combined with components: the settings of their levels are the factor",
            list(sweep.factor),
        )
    if sweep.design not in FACTORIALS and sweep.within is not None:
        yield Problem("within", "needs design: factorial", sweep.within)
    if sweep.design in FACTORIALS and sweep.at_grid and sweep.search:
        text = (
            "grid cannot be combined with a search of a factorial design. Make the searched setting a component, with "
            "its values as levels"
        )
        yield Problem("confirm.at", text, "grid")


def _check_names(sweep: SweepFields) -> Iterator[Problem]:
    """Yield a problem where the longest name of an arm does not fit."""
    longest = max(sweep.designed.arms, key=len) if sweep.designed else ""
    if len(longest) > MOST_LETTERS:
        text = f"the name of an arm has at most {MOST_LETTERS} letters, and {longest[:60]}... has {len(longest)}"
        yield Problem("components", f"{text}: give levels: {{NAME: value}} with shorter names")


def merge_alike(problems: Iterable[Problem], arms: Iterable[str]) -> list[Problem]:
    """Return `problems`, each that several arms share once, with the names of these arms."""
    every = list(arms)
    merged: dict[tuple[str, str, str], list[str]] = {}
    first: dict[tuple[str, str, str], Problem] = {}
    for problem in problems:
        arm = max((a for a in every if problem.path.startswith(f"arms.{a}.")), key=len, default="")
        path = problem.path.removeprefix(f"arms.{arm}.") if arm else problem.path
        key = path, problem.message, repr(problem.given)
        first.setdefault(key, problem)
        merged.setdefault(key, []).append(arm)
    return [
        first[key]
        if len(own) == 1 or not all(own)
        else Problem(
            key[0],
            f"{key[1]} (in {'every arm' if len(own) == len(every) else f'the arms {join_words(own)}'})",
            first[key].given,
        )
        for key, own in merged.items()
    ]


MOST_LETTERS_OF_CELL = 400
"""Maximum letters of the name of an arm at a point, a part of the names of studies, which have room for 512."""


def _check_grid(sweep: SweepFields) -> Iterator[Problem]:
    """Yield the reasons that there is no grid, or none on which the arms can be compared."""
    if sweep.sampler.kind != "grid":
        yield Problem("confirm.at", "grid needs sampler: grid, whose points are tested", sweep.sampler.kind)
        return
    plain = sweep.without_grid()
    if not any(plain.space(arm) for arm in plain.own_arms):
        return  # every arm is tested as it stands
    if any(sweep.sampler.validate(plain.space(arm)) for arm in plain.own_arms):
        return  # reported separately
    baseline = sweep.compared_with
    if own := list(sweep.own_arms[baseline].search):
        text = (
            f"arms are compared with {baseline} at the same point, so the baseline has no search of its own: search "
            f"{join_words(own)} for all arms, or choose another baseline"
        )
        yield Problem(f"arms.{baseline}.search", text)
        return
    cells = list_grid(sweep.own_arms, sweep.search, baseline)
    for cell in cells.values():
        if not cell.baseline:
            text = f"{baseline} has no point {format_settings(dict(cell.shared), {})}, with which it could be compared"
            yield Problem(f"arms.{cell.arm}.search", text)
            return
    longest = max(cells, key=len)
    if len(longest) > MOST_LETTERS_OF_CELL:
        text = (
            f"the name of an arm at a point has at most {MOST_LETTERS_OF_CELL} letters, and {longest[:60]}... has more"
        )
        yield Problem("search", text)


def _check_what_is_left_out(sweep: SweepFields) -> Iterator[Problem]:
    """Yield the settings that have no meaning without a search or a choice."""
    confirm, usual = sweep.confirm, type(sweep.confirm)()
    if not confirm.most_seeds:
        yield Problem("confirm.seeds", "is required with at: grid, whose points are only trained on fresh seeds")
    for field in ("candidates", "selection_seeds"):
        if getattr(confirm, field) != getattr(usual, field):
            text = "cannot be combined with at: grid, where every point is tested and none is chosen"
            yield Problem(f"confirm.{field}", text, getattr(confirm, field))
    if sweep.budget != type(sweep.budget)():
        text = (
            "cannot be combined with confirm.at: grid, where every arm is trained at every point on confirm.seeds seeds"
        )
        yield Problem("budget", text)
    if sweep.pruner.kind != "none":
        yield Problem(
            "pruner", "cannot be combined with confirm.at: grid, where every run is an outcome", sweep.pruner.kind
        )
    plain = sweep.without_grid()
    if sweep.published and any(plain.space(arm) for arm in plain.own_arms):
        text = "cannot be combined with confirm.at: grid and a search: published figures are for the settings of an arm"
        yield Problem("published", text)
    for arm in plain.own_arms:
        try:
            donor = find_own_donor(plain, arm)
        except ConfigError:  # an invalid experiment, which is reported separately
            continue
        if donor is not None:
            text = f"{donor} is tested at every point of its grid, so it has no best trial"
            yield Problem(f"arms.{arm}.warm_start.from", text)


OF_LENGTH = ("trainer.max_steps", "trainer.max_tokens", "schedule")
"""Settings that say how long a run is and when it decays."""


def check_method(sweep: SweepFields) -> Iterator[Problem]:
    """Yield the conflicts of rungs with the sampler, the pruner, the budget and the number of settings."""
    kind = sweep.method.kind
    if not sweep.method.staged:
        return
    if sweep.sampler.learns:
        text = f"learns from trials that have ended, and {kind} choose all settings before. Accepted: grid, random"
        yield Problem("sampler", text, sweep.sampler.kind)
    if sweep.pruner.stops_trials:
        yield Problem("pruner", f"{kind} stop trials themselves: remove the pruner or search.method", sweep.pruner.kind)
    if any(sweep.sampler.validate(sweep.space(arm)) for arm in sweep.all_arms):
        return
    counts = {arm: sweep.trials(arm) or 0 for arm in sweep.all_arms}
    if len({*counts.values()}) > 1:
        numbers = join_words(f"{arm} has {count}" for arm, count in counts.items())
        text = (
            f"the arms train equally much at every rung, so each needs as many settings: {numbers}. Set budget.trials "
            "to a number that all have, with sampler random for ranges"
        )
        yield Problem("search", text)


def _check_pruner(sweep: SweepFields) -> Iterator[Problem]:
    """Yield the problem of a pruner where the length of a run, a third of which it waits for, is not known."""
    if sweep.pruner.stops_trials and any(sweep.base(arm).length is None for arm in sweep.all_arms):
        text = "stops no run in its first third, and the length of a run is not known. Set experiment.steps"
        yield Problem("pruner", text, sweep.pruner.kind)


def check_method_in_arm(sweep: SweepFields, arm: str) -> Iterator[Problem]:
    """Yield the problems that keep the settings of `arm`, whose experiments are valid, from being compared."""
    method = sweep.method
    if not method.staged:
        return
    if (procedure := sweep.base(arm).procedure) != "training":
        text = f"{method.kind} go on from checkpoints, which runs of kind {procedure} do not have: remove it"
        yield Problem("search.method", text, method.kind)
        return
    base = sweep.own_base(arm)
    by_tokens = () if base.trainer.max_tokens is None else ("trainer.batch_size", "data.seq_len")
    for path in sweep.space(arm):
        if path in (*OF_LENGTH, *by_tokens) or path.startswith(tuple(f"{part}." for part in OF_LENGTH)):
            text = f"cannot be searched with {method.kind}: the runs of a rung are equally long and decay together"
            yield Problem(f"search.{path}", text)
            return
    for problem in method.validate_arm(sweep.trials(arm) or 0, base):
        own = problem.path.removeprefix("experiment.")
        yield problem if own == problem.path else replace(problem, path=locate(sweep, arm, own))


def locate(sweep: SweepFields, arm: str, path: str) -> str:
    """Return the path in the file at which a path of an arm's experiment is set."""
    if path in sweep.start(arm):
        return f"arms.{arm}.search.{path}" if path in sweep.all_arms[arm].search else f"search.{path}"
    if _is_set(sweep.all_arms[arm].settings, path):
        return f"arms.{arm}.{path}"
    inside = sweep.experiment.get("settings")
    below = "settings." if isinstance(inside, Mapping) and _is_set(inside, path) else ""
    return f"experiment.{below}{path}"


def _is_set(settings: Iterable[str], path: str) -> bool:
    return any(path == key or path.startswith(f"{key}.") or key.startswith(f"{path}.") for key in settings)
