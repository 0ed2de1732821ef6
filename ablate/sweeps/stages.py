"""The stages of a sweep in turn: the search of each arm, steps beyond its ranges, the choice among its best settings,
fresh seeds, and further tries of those that lost. A stage says from the table of runs alone what it still wants, so
that any number of processes, the plan, the progress and the status agree on it. Nothing here accesses a storage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from ablate.config.errors import SweepError
from ablate.config.formatting import count_noun, join_words
from ablate.sweeps.challenges import MOST_CHOICES, choose_again, list_extensions
from ablate.sweeps.comparison import (
    collect_outcomes,
    find_due_looks,
    list_candidates,
    list_claims,
    plan_record,
)
from ablate.sweeps.records import SweepRecord, compute_once, count_remaining
from ablate.sweeps.runs import CHALLENGE, EXTENSION, FINISHED, FRESH, SEARCH, SELECTION, Run, Runs
from ablate.sweeps.search.rungs import decide, read_standings
from ablate.sweeps.search.space import Range, list_cells
from ablate.sweeps.spec.references import find_own_donor
from ablate.sweeps.spec.sweep import Sweep
from ablate.verdict.outcomes import race
from ablate.verdict.sequential import LEAST

CHOICE, LOOKS, STOP = "choice", "looks", "stop"  # kinds of conclusions


@dataclass(frozen=True)
class Wanted:
    """A run that is to be started, or to go on."""

    arm: str
    stage: str
    number: int
    """The number of its settings among those of the arm's search."""
    params: dict[str, Any] = field(default_factory=dict)
    """Its settings, but for those that a sampler chooses."""
    seed: int | None = None
    """Its seed; None: that of the arm."""
    updates: int | None = None
    """The length of its rung; None: to its end."""


@dataclass(frozen=True)
class Lane:
    """Runs that take turns with those of others: the search of an arm, or its runs with the same settings."""

    arm: str
    started: int
    """Its runs that have ended or are running."""
    running: int
    open: int
    """Its runs that are still to be started or continued in this session."""
    wanted: tuple[Wanted, ...]
    """Those of them that can be started or continued now."""

    @property
    def is_done(self) -> bool:
        """Whether none of its runs is running or can be started."""
        return not self.wanted and not self.running


@dataclass(frozen=True)
class Decision:
    """A conclusion from runs that have ended, which is written down since later runs must not change it."""

    arm: str
    kind: str
    """CHOICE: the settings that are tested; LOOKS: a look at a verdict; STOP: a run ends at its rung."""
    content: dict[str, Any]


class Stage:
    """Runs of one kind: it wants what its lanes want, and is done when they are. Its methods see the runs of all arms,
    and those of the stages before it have ended. A further stage is one class here, a word in `runs.StageName`, and a
    place in `STEPS`."""

    name: ClassVar[str]
    """One of STAGES."""
    noun: ClassVar[str]
    """The noun for one of its runs."""
    purpose: ClassVar[str]
    """The purpose of its runs, in a table of what was used."""
    is_assigned: ClassVar[bool] = True
    """Whether the arms of its runs are known beforehand."""

    def describe(self, spec: Sweep) -> Iterator[str]:
        """Yield lines of a plan on its runs; nothing where it has none, or the arms have lines of their own."""
        yield from ()

    def count_unassigned(self, spec: Sweep) -> int:
        """Return the maximum number of its runs, if only results decide on their arms."""
        return 0

    def lanes(self, record: SweepRecord) -> list[Lane]:
        """Return its runs, including those that are wanted."""
        raise NotImplementedError

    def settle(self, record: SweepRecord) -> list[Decision]:
        """Return the conclusions from runs that have ended while others of it go on."""
        return []

    def decide(self, record: SweepRecord) -> list[Decision]:
        """Return the conclusions from its runs once it is done."""
        return []

    def plan(self, record: SweepRecord, arm: str) -> tuple[int, int]:
        """Return how many runs of `arm` are left for certain, and how many more there may be: none where only results
        decide on the arms."""
        return 0, 0

    def expect(self, record: SweepRecord, arm: str) -> int:
        """Return how many runs of `arm` will have ended when it is done, as planned for the results so far."""
        raise NotImplementedError


class Search(Stage):
    """The search of each arm: trials that a sampler proposes, cells of a grid, or settings that climb rungs."""

    name, noun, purpose = SEARCH, "trial", "to tune"

    def lanes(self, record: SweepRecord) -> list[Lane]:
        lanes = {arm: self._build(record, arm) for arm in record.arms}
        for arm, lane in lanes.items():
            donor = find_own_donor(record.spec, arm)
            if donor is not None and not (lanes[donor].is_done and record.best(donor)):
                lanes[arm] = Lane(arm, lane.started, lane.running, lane.open, ())
        return list(lanes.values())

    def _build(self, record: SweepRecord, arm: str) -> Lane:
        spec, runs = record.spec, record.search(arm)
        under_way = len(runs.select(status="running"))
        lost = len(runs.select(status="failed"))  # the next session tries them again
        left = max(0, count_remaining(spec, arm, runs) - lost)
        begun = runs.select(status=("interrupted", "waiting"))
        wanted = list(self._list_begun(record, arm, begun)) if left else []
        wanted += self._list_new(spec, arm, runs, left - len(begun))
        return Lane(arm, runs.finished + under_way, under_way, left, tuple(wanted))

    def _list_begun(self, record: SweepRecord, arm: str, begun: Sequence[Run]) -> Iterator[Wanted]:
        rungs = record.spec.plan_rungs(arm)
        climb = _climb(record, arm) if rungs else None
        for run in begun:
            rung = len(run.rungs)
            if climb is None or run.number == climb.late or rung <= climb.due.get(run.number, -1):
                updates = rungs[rung].updates if rung < len(rungs) - 1 else None
                yield Wanted(arm, SEARCH, run.number, run.params, updates=updates)

    def _list_new(self, spec: Sweep, arm: str, runs: Runs, count: int) -> Iterator[Wanted]:
        """Yield `count` new settings of `arm`; those of a grid are known, others are up to the sampler."""
        rungs = spec.plan_rungs(arm)
        points: Iterator[dict[str, Any]] = iter(())
        if count > 0 and spec.sampler.kind == "grid":
            taken = [run.params for run in runs]  # failed ones too: the next session tries those
            points = (cell for cell in list_cells(spec.space(arm)) if cell not in taken)
        for number in range(len(runs), len(runs) + count):
            fixed = spec.fixed[number] if number < len(spec.fixed) else {}
            updates = rungs[0].updates if len(rungs) > 1 else None
            yield Wanted(arm, SEARCH, number, next(points, dict(fixed)), updates=updates)

    def settle(self, record: SweepRecord) -> list[Decision]:
        """Return the settings that wait at a rung and do not go on."""
        stops = []
        for arm in record.arms if record.spec.method.staged else ():
            climb, rungs = _climb(record, arm), record.spec.plan_rungs(arm)
            kept = climb.near if arm not in record.chosen and record.is_tested else {climb.late}
            for run in record.search(arm).select(status="waiting"):
                if run.number in climb.over - kept:
                    last, went = rungs[len(run.rungs) - 1], rungs[len(run.rungs)].settings
                    went_on = f"from which {count_noun(went, 'setting')} went on"
                    text = f"pruned at the rung of {last.updates} updates, {went_on}"
                    stops.append(Decision(arm, STOP, {"number": run.number, "reason": text}))
        return stops

    def decide(self, record: SweepRecord) -> list[Decision]:
        """Raise SweepError for an arm that waits for one that has ended without a completed trial."""
        for arm in record.arms:
            donor = find_own_donor(record.spec, arm)
            if donor is not None and record.best(donor) is None:
                raise SweepError(
                    f"{arm} starts from the best trial of {donor}, and no trial of that arm is completed. The same "
                    "command retries failed trials; a larger budget.trials allows further ones."
                )
        return []

    def plan(self, record: SweepRecord, arm: str) -> tuple[int, int]:
        known = record.search(arm).select(status=FINISHED)  # others run again
        return count_remaining(record.spec, arm, known), 0

    def expect(self, record: SweepRecord, arm: str) -> int:
        return record.target(arm)


@dataclass(frozen=True)
class _Climb:
    """The settings of an arm that are to train, to stop or to be chosen, by their numbers."""

    due: Mapping[int, int]
    """Settings that are to train -> to which rung, from 0."""
    over: set[int]
    """Settings that have ended a rung and do not go on."""
    near: set[int]
    """Those of them that came to the last rung but one, and may still be chosen."""
    late: int | None
    """The one of those that was chosen, and goes on to its end."""


def _climb(record: SweepRecord, arm: str) -> _Climb:
    rungs = record.spec.plan_rungs(arm)
    standings = read_standings(rungs, record.search(arm))
    decisions = decide(standings, [rung.settings for rung in rungs], record.spec.objective.direction == "maximize")
    near = {number for number in decisions.stop if len(standings[number].ended) == len(rungs) - 1}
    chosen = record.chosen.get(arm)
    due = {number: len(standings[number].ended) for number in decisions.train}
    return _Climb(due, {*decisions.stop}, near, chosen if chosen in near else None)


class Extension(Stage):
    """Settings beyond the ends of the searched ranges: while some arm is best at an end, all arms that search the
    parameter are run one step further, on the seed of the search."""

    name, noun, purpose = EXTENSION, "extension run", "to tune beyond the ranges"
    is_assigned = False

    def describe(self, spec: Sweep) -> Iterator[str]:
        if count := self.count_unassigned(spec):
            steps = count_noun(spec.challenge.extend, "step")
            yield (
                f"where an arm is best at an end of a range: up to {steps} beyond it, for all arms that search it, at "
                f"most {count} more"
            )

    def count_unassigned(self, spec: Sweep) -> int:
        """Return the maximum number of its runs, if all ranges are extended at both ends."""
        if not spec.confirm.most_seeds or spec.cells:
            return 0
        axes = [axis for arm in spec.all_arms for axis in spec.axes(arm).values() if not axis.is_pair]
        return sum(axis.before + axis.beyond for axis in axes)

    def lanes(self, record: SweepRecord) -> list[Lane]:
        if not record.is_tested or record.spec.cells:
            return []
        free = [arm for arm in record.arms if arm not in record.chosen]
        provisional = {arm: best for arm in free if (best := self._find(record, arm))}
        # a selection that was begun is ended first: a step may replace its candidates
        selects = any(record.runs.select(arm, SELECTION) for arm in free)
        may_step = not selects or all(_race(record, arm)[1] is not None for arm in provisional)
        return [
            _build_lane(record, Wanted(arm, EXTENSION, number, params), [record.spec.base(arm).seed])
            for arm, (number, params) in list_extensions(record, provisional, may_step).items()
        ]

    def _find(self, record: SweepRecord, arm: str) -> dict[str, Any]:
        """Return the settings of `arm` that are its best so far."""
        number = _race(record, arm)[1]
        best = record.tuned(arm).select(number=number)[0] if number is not None else record.best(arm)
        return best.params if best else {}

    def expect(self, record: SweepRecord, arm: str) -> int:
        left = sum(lane.running + lane.open for lane in _list_extending(record) if lane.arm == arm)
        return record.runs.select(arm, EXTENSION).finished + left


@compute_once
def _list_extending(record: SweepRecord) -> list[Lane]:
    """Return the lanes of the extension, once the search is done."""
    return Extension().lanes(record) if all(lane.is_done for lane in Search().lanes(record)) else []


def _race(record: SweepRecord, arm: str) -> tuple[dict[int, list[int]], int | None]:
    """Return candidate -> its selection seeds, and the one that is chosen; None while some of the runs are missing."""
    spec, ranked = record.spec, list_candidates(record.spec, record.tuned(arm))
    if len(ranked) < 2:
        return {}, ranked[0][0].number if ranked else None
    seeds = spec.selection_seeds(spec.confirm.most_selection_seeds)
    selected = record.runs.select(arm, SELECTION)
    outcomes = [selected.select(number=run.number).outcomes() for run, _ in ranked]
    maximize = spec.objective.direction == "maximize"
    values, least = [run.value for run, _ in ranked], spec.confirm.selection_seeds
    counts, best = race(values, outcomes, seeds, least, maximize, spec.confirm.effect)
    needed = {run.number: seeds[:count] for (run, _), count in zip(ranked, counts, strict=True)}
    return needed, None if best is None else ranked[best][0].number


class Selection(Stage):
    """The best settings of each arm on selection seeds, of which one is chosen."""

    name, noun, purpose = SELECTION, "selection run", "to choose among its candidates"

    def describe(self, spec: Sweep) -> Iterator[str]:
        counts = {spec.count_candidates(arm) for arm in spec.all_arms}
        if any(counts):
            seeds, most = _format_seeds(spec.selection_seeds()), max(counts)
            told = f"{most}" if len(counts) == 1 else f"{most} or fewer"
            further = spec.confirm.most_selection_seeds - spec.confirm.selection_seeds
            more = f", and up to {further} more while two are within their noise" if further else ""
            yield f"then the best {told} settings of each arm on the selection {seeds}{more}"

    def lanes(self, record: SweepRecord) -> list[Lane]:
        if not record.is_tested or not all(lane.is_done for lane in Extension().lanes(record)):
            return []
        return [
            _build_lane(
                record, Wanted(arm, SELECTION, number, record.tuned(arm).select(number=number)[0].params), seeds
            )
            for arm in record.arms
            if arm not in record.chosen
            for number, seeds in _race(record, arm)[0].items()
        ]

    def decide(self, record: SweepRecord) -> list[Decision]:
        if not record.is_tested:
            return []
        best = {arm: _race(record, arm)[1] for arm in record.arms if arm not in record.chosen}
        return [Decision(arm, CHOICE, {"trial": number}) for arm, number in best.items() if number is not None]

    def plan(self, record: SweepRecord, arm: str) -> tuple[int, int]:
        spec, count = record.spec, record.spec.count_candidates(arm)
        if arm in record.chosen:
            return 0, 0
        done = record.runs.select(arm, SELECTION).finished
        least, most = (count * seeds for seeds in (spec.confirm.selection_seeds, spec.confirm.most_selection_seeds))
        return max(0, least - done), max(0, most - max(done, least))

    def expect(self, record: SweepRecord, arm: str) -> int:
        done = record.runs.select(arm, SELECTION).finished
        planned = record.spec.count_candidates(arm) * record.spec.confirm.selection_seeds
        return done if arm in record.chosen else max(done, planned)


class Fresh(Stage):
    """The chosen settings of each arm on fresh seeds, as many as the verdict needs so far."""

    name, noun, purpose = FRESH, "fresh seed", "on fresh seeds"

    def describe(self, spec: Sweep) -> Iterator[str]:
        confirm, is_factorial = spec.confirm, any(one.levels for one in spec.comparisons)
        if not confirm.most_seeds:
            return
        first = _format_seeds(spec.fresh_seeds(confirm.first_seeds))
        text = f"then the best of each arm on the fresh {first}"
        if spec.cells:
            text = f"each arm {spec.tested} on the fresh {first}: nothing is searched or chosen"
        elif is_factorial:
            text = f"then the best of each cell on the fresh {first}, the same for all"
        if confirm.is_sequential and confirm.most_seeds > confirm.first_seeds:
            end = f"each arm is better, worse or within {confirm.effect:g} of the baseline"
            end += ", at each point" if spec.cells else ""
            end = f"each effect is shown, or within {confirm.effect:g} of none" if is_factorial else end
            text += f", and one more at a time, at most {confirm.most_seeds}, until {end}"
        yield text

    def lanes(self, record: SweepRecord) -> list[Lane]:
        return [
            _build_lane(
                record,
                Wanted(arm, FRESH, record.chosen[arm], record.find_settings(arm)),
                record.spec.fresh_seeds(count),
            )
            for arm, count in plan_record(record).seeds.items()
        ]

    def decide(self, record: SweepRecord) -> list[Decision]:
        """Return the looks that are due. With the first look at an arm the difference that matters is noted, and with
        each the arm that it is compared with: both could be changed with knowledge of the outcome."""
        spec, wanted = record.spec, plan_record(record)
        due, decisions = find_due_looks(spec, collect_outcomes(record), wanted), []
        for arm in wanted.seeds:
            if (looks := due.get(arm) or record.looks.get(arm)) is None:
                continue
            against, baseline = list(record.against.get(arm, ())), spec.baselines[arm]
            if baseline not in (arm, *against):
                against.append(baseline)
            if arm in due or against != list(record.against.get(arm, ())):
                effect = record.first_effects.get(arm, spec.confirm.effect)
                content = {"sizes": list(looks.sizes), "planned": looks.planned, "effect": effect, "against": against}
                decisions.append(Decision(arm, LOOKS, content))
        return decisions

    def plan(self, record: SweepRecord, arm: str) -> tuple[int, int]:
        confirm, done = record.spec.confirm, record.fresh(arm).finished
        return max(0, confirm.first_seeds - done), max(0, confirm.most_seeds - max(done, confirm.first_seeds))

    def expect(self, record: SweepRecord, arm: str) -> int:
        planned = plan_record(record).seeds.get(arm, record.spec.confirm.first_seeds)
        done, in_all = record.fresh(arm).finished, record.runs.select(arm, FRESH).finished
        return in_all - done + max(done, planned)  # with the settings that were chosen before


class Challenge(Stage):
    """Further settings of an arm before it is told that it lost: those of the winner, then wherever it may still win.
    If it finds better ones, they are tested in the place of its choice."""

    name, noun, purpose = CHALLENGE, "challenge run", "to challenge a loss"
    is_assigned = False

    def describe(self, spec: Sweep) -> Iterator[str]:
        if count := self.count_unassigned(spec):
            trials = count_noun(spec.challenge.trials, "further setting")
            yield (
                f"before an arm is told that it lost: up to {trials}, at the winner's and around its best, and fresh "
                f"seeds again for a better one, at most {count} more"
            )
        if not spec.challenge.trials or spec.cells:
            return
        entries = [(arm, path, entry) for arm in spec.all_arms for path, entry in spec.space(arm).items()]
        alone = dict.fromkeys(p for _, p, entry in entries if not isinstance(entry, Range) and len(entry) == 1)
        if alone:
            yield f"{join_words(alone)}: one value, so it is not tuned"
        fixed = dict.fromkeys(path for arm, path, _ in entries if path not in spec.axes(arm) and path not in alone)
        if fixed:
            yield f"{join_words(fixed)}: the values have no order, so they are tried in the search alone"

    def count_unassigned(self, spec: Sweep) -> int:
        """Return the maximum number of its runs, if every arm is challenged to the last (both of an equivalence, or one
        after the other), and of the fresh seeds of new choices."""
        if spec.confirm.most_seeds < LEAST or not spec.challenge.trials or spec.cells or not spec.comparisons:
            return 0
        spaces = {arm: spec.space(arm).values() for arm in spec.all_arms}
        arms = [arm for arm, space in spaces.items() if any(isinstance(e, Range) or len(e) > 1 for e in space)]
        each = spec.challenge.trials * len(spec.choosing_seeds(arms[0])) if arms else 0
        return len(arms) * (each + MOST_CHOICES * spec.confirm.most_seeds)

    def lanes(self, record: SweepRecord) -> list[Lane]:
        return [
            _build_lane(record, Wanted(arm, CHALLENGE, number, params), record.spec.choosing_seeds(arm))
            for arm, (number, params) in plan_record(record).tries.items()
        ]

    def settle(self, record: SweepRecord) -> list[Decision]:
        """Return the new choices of arms that were challenged."""
        if not record.is_tested:
            return []
        return [
            Decision(arm, CHOICE, {"trial": number})
            for arm, number in choose_again(record, list_claims(record).values()).items()
        ]

    def expect(self, record: SweepRecord, arm: str) -> int:
        runs, tries = record.runs.select(arm, CHALLENGE), plan_record(record).tries
        if arm not in tries:
            return runs.finished
        number, _ = tries[arm]
        return runs.finished - runs.select(number=number).finished + len(record.spec.choosing_seeds(arm))


def _build_lane(record: SweepRecord, wanted: Wanted, seeds: Sequence[int]) -> Lane:
    """Return the runs of certain settings on `seeds`."""
    known = record.runs.select(wanted.arm, wanted.stage, number=wanted.number)
    running = len(known.select(status="running"))
    tried = {run.seed for run in known.select(status=(*FINISHED, "running", "failed"))}
    left = [seed for seed in seeds if seed not in tried]
    return Lane(
        wanted.arm, known.finished + running, running, len(left), tuple(replace(wanted, seed=seed) for seed in left)
    )


STEPS: tuple[tuple[Stage, ...], ...] = ((Search(),), (Extension(), Selection()), (Fresh(), Challenge()))
"""The stages in their order; those of one step go on side by side."""
ALL: tuple[Stage, ...] = tuple(stage for stages in STEPS for stage in stages)


def _format_seeds(seeds: list[int]) -> str:
    """Return 'seed 1', 'seeds 1, 2' or, of many, 'seeds 1 to 12'."""
    many = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 8 else ", ".join(map(str, seeds))
    return f"seed{'s' if len(seeds) > 1 else ''} {many}"


@dataclass(frozen=True)
class Step:
    """Where a sweep stands."""

    lanes: list[Lane] = field(default_factory=list)
    """The runs of the stages that go on; none: nothing is left to do."""
    decisions: list[Decision] = field(default_factory=list)
    """The conclusions that have to be written down first."""

    @property
    def is_running(self) -> bool:
        """Whether runs are going on."""
        return any(lane.running for lane in self.lanes)

    def pick(self) -> Wanted | None:
        """Return the next run of the lane that is furthest behind, in the arm that is furthest behind, so that a sweep
        that is stopped has compared the arms evenly."""
        started, total = Counter[str](), Counter[str]()
        for lane in self.lanes:
            started[lane.arm] += lane.started
            total[lane.arm] += lane.started + lane.open
        ready = [lane for lane in self.lanes if lane.wanted]
        ready.sort(key=lambda p: (started[p.arm] / total[p.arm], p.started / (p.started + p.open)))
        return ready[0].wanted[0] if ready else None


def find_step(record: SweepRecord) -> Step:
    """Return where a sweep stands: the first stages that are not done, or what follows from those that are."""
    for stages in STEPS:
        if due := [one for stage in stages for one in stage.settle(record)]:
            return Step(decisions=due)
        lanes = [lane for stage in stages for lane in stage.lanes(record)]
        if not all(lane.is_done for lane in lanes):
            return Step(lanes)
        if decisions := [one for stage in stages for one in stage.decide(record)]:
            return Step(lanes, decisions)
    return Step()


def count_runs(record: SweepRecord) -> tuple[int, int]:
    """Return the number of runs of a sweep that have ended, of all stages, and the number that will have: as planned
    for the results so far, failed ones included."""
    done, total = record.runs.finished, 0
    for stage in ALL:
        total += sum(stage.expect(record, arm) for arm in record.arms)
    return done, max(done, total)


def find_kept(record: SweepRecord, arm: str) -> set[str]:
    """Return the runs of `arm` in MLflow whose checkpoints are kept if those of the best are: until settings are
    chosen, all that may be chosen; then the run that represents the arm, and the best on a fresh seed, with those of
    a challenge that goes on."""
    kept: list[Run | None]
    if record.is_tested and arm not in record.chosen:
        kept = [run for run, _ in list_candidates(record.spec, record.tuned(arm))]
    else:
        kept = [record.settled(arm), record.fresh(arm).find_best(record.spec.objective.direction)]
        tries = record.runs.select(arm, CHALLENGE)
        if tries and (arm in plan_record(record).tries or arm in choose_again(record, list_claims(record).values())):
            kept += tries
    return {run.run_id for run in kept if run is not None and run.run_id}


@dataclass(frozen=True)
class Left:
    """The remaining runs of an arm."""

    runs: dict[str, int]
    """Stage -> the number of certain runs; of those on fresh seeds up to the first look."""
    more: dict[str, int]
    """Stage -> further runs that it may need."""
    share: float = 1.0
    """The average share of a whole run that a trial of the search takes."""

    @property
    def sure(self) -> int:
        """Number of certain runs."""
        return sum(self.runs.values())

    @property
    def at_most(self) -> int:
        """Number of all runs that it may need."""
        return self.sure + sum(self.more.values())

    @property
    def whole(self) -> float:
        """The cost of the certain runs, in whole runs."""
        return sum(count * (self.share if stage == SEARCH else 1) for stage, count in self.runs.items())


def count_left(spec: Sweep, record: SweepRecord | None = None) -> dict[str, Left]:
    """Return the remaining runs of each arm, of a new sweep without a `record`."""
    known = replace(record, spec=spec) if record else SweepRecord(spec.name, 1, spec, Runs())
    left = {}
    for arm in spec.all_arms:
        counts = {stage.name: stage.plan(known, arm) for stage in ALL}
        sure, more = ({name: both[i] for name, both in counts.items()} for i in (0, 1))
        left[arm] = Left(sure, more, spec.find_share(arm))
    return left


def count_unassigned(spec: Sweep) -> dict[str, int]:
    """Return stage -> the maximum number of its runs, for stages whose arms are not known beforehand."""
    return {stage.name: stage.count_unassigned(spec) for stage in ALL if not stage.is_assigned}


def describe_stages(spec: Sweep) -> list[str]:
    """Return lines of a plan on the runs after the search; none if no seeds are requested."""
    return [line for stage in ALL for line in stage.describe(spec)] if spec.confirm.most_seeds else []
