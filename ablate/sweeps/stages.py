"""The stages of a sweep in turn: the search of each arm, the choice among its best settings, fresh seeds, and the
losers at the winners' settings. A stage says from the table of runs alone what it still wants, so that any number of
processes, the plan, the progress and the status agree on it. Nothing here accesses a storage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from ablate.config.errors import SweepError
from ablate.config.formatting import count_noun
from ablate.sweeps.comparison import collect_outcomes, cross_params, find_due_looks, list_candidates, plan_record
from ablate.sweeps.records import SweepRecord, count_remaining
from ablate.sweeps.runs import CROSSED, FINISHED, FRESH, SEARCH, SELECTION, Run, Runs
from ablate.sweeps.search.rungs import decide, read_standings
from ablate.sweeps.search.space import list_cells
from ablate.sweeps.spec.references import find_own_donor
from ablate.sweeps.spec.sweep import Sweep
from ablate.verdict.outcomes import choose_candidate
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
    at: str = ""
    """For a crossed run, the arm whose settings it has."""
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
        """Return how many runs of `arm` are left for certain, and how many more there may be."""
        raise NotImplementedError

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


class Selection(Stage):
    """The best settings of each arm on selection seeds, of which one is chosen. A choice is final."""

    name, noun, purpose = SELECTION, "selection run", "to choose among its candidates"

    def describe(self, spec: Sweep) -> Iterator[str]:
        counts = {spec.count_selection_runs(arm) // spec.confirm.selection_seeds for arm in spec.all_arms}
        if any(counts):
            seeds, most = _format_seeds(spec.selection_seeds()), max(counts)
            told = f"{most}" if len(counts) == 1 else f"{most} or fewer"
            yield f"then the best {told} settings of each arm on the selection {seeds}"

    def lanes(self, record: SweepRecord) -> list[Lane]:
        seeds = record.spec.selection_seeds()
        return [
            _build_lane(record, Wanted(arm, SELECTION, run.number, run.params), seeds)
            for arm in record.arms
            if record.is_tested and arm not in record.chosen and len(ranked := self._rank(record, arm)) > 1
            for run, _ in ranked
        ]

    def _rank(self, record: SweepRecord, arm: str) -> list[tuple[Run, float]]:
        return list_candidates(record.spec, record.search(arm))

    def decide(self, record: SweepRecord) -> list[Decision]:
        choices = []
        for arm in record.arms if record.is_tested else ():
            if arm not in record.chosen and (best := self._choose(record, arm)) is not None:
                choices.append(Decision(arm, CHOICE, {"trial": best}))
        return choices

    def _choose(self, record: SweepRecord, arm: str) -> int | None:
        """Return the settings to be tested; None while some of the candidates' runs are missing."""
        ranked, seeds = self._rank(record, arm), record.spec.selection_seeds()
        if len(ranked) < 2:
            return ranked[0][0].number if ranked else None
        selected = record.runs.select(arm, SELECTION)
        ended = [selected.select(number=run.number).outcomes() for run, _ in ranked]
        outcomes = [{seed: own[seed] for seed in seeds if seed in own} for own in ended]
        if any(len(own) < len(seeds) for own in outcomes):
            return None
        maximize = record.spec.objective.direction == "maximize"
        return ranked[choose_candidate([reached for _, reached in ranked], outcomes, maximize)][0].number

    def plan(self, record: SweepRecord, arm: str) -> tuple[int, int]:
        if arm in record.chosen:
            return 0, 0
        return max(0, record.spec.count_selection_runs(arm) - record.runs.select(arm, SELECTION).finished), 0

    def expect(self, record: SweepRecord, arm: str) -> int:
        done = record.runs.select(arm, SELECTION).finished
        return done if arm in record.chosen else record.spec.count_selection_runs(arm)


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

    def plan(self, record: SweepRecord, arm: str) -> tuple[int, int]:
        confirm, done = record.spec.confirm, record.fresh(arm).finished
        return max(0, confirm.first_seeds - done), max(0, confirm.most_seeds - max(done, confirm.first_seeds))

    def expect(self, record: SweepRecord, arm: str) -> int:
        planned = plan_record(record).seeds.get(arm, record.spec.confirm.first_seeds)
        return max(record.fresh(arm).finished, planned)


class Crossed(Stage):
    """The losers of comparisons at the winners' settings, on the seeds that were looked at."""

    name, noun, purpose = CROSSED, "crossed run", "at the settings of another arm"
    is_assigned = False

    def describe(self, spec: Sweep) -> Iterator[str]:
        if count := self.count_unassigned(spec):
            who = "the loser of a comparison at the winner's"
            if any(one.levels for one in spec.comparisons):
                who = "cells that are behind in an effect at their partners'"
            paths = ", ".join(spec.search)
            yield f"at each other's settings: at most {count} more, {who} {paths}, where these differ"

    def count_unassigned(self, spec: Sweep) -> int:
        """Return the maximum number of its runs: in each pair the loser's, on every fresh seed. Two cells of a
        factorial may be behind each other in different effects."""
        if spec.confirm.most_seeds < LEAST or not spec.search or spec.cells:
            return 0
        pairs = {pair for one in spec.comparisons for pair in one.list_pairs()}
        both = any(one.kind == "interaction" for one in spec.comparisons)
        return len(pairs) // (1 if both else 2) * spec.confirm.most_seeds

    def lanes(self, record: SweepRecord) -> list[Lane]:
        lanes = []
        for (loser, winner), count in plan_record(record).crossed.items():
            params = cross_params(record.spec, record.find_settings(loser), record.find_settings(winner))
            wanted = Wanted(loser, CROSSED, record.chosen[loser], params, at=winner)
            lanes.append(_build_lane(record, wanted, record.spec.fresh_seeds(count)))
        return lanes

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
        return 0, 0  # which arm loses is not known

    def expect(self, record: SweepRecord, arm: str) -> int:
        planned = sum(count for (loser, _), count in plan_record(record).crossed.items() if loser == arm)
        return max(record.runs.select(arm, CROSSED).finished, planned)


def _build_lane(record: SweepRecord, wanted: Wanted, seeds: Sequence[int]) -> Lane:
    """Return the runs of certain settings on `seeds`."""
    known = record.runs.select(wanted.arm, wanted.stage, number=wanted.number, at=wanted.at)
    running = len(known.select(status="running"))
    tried = {run.seed for run in known.select(status=(*FINISHED, "running", "failed"))}
    left = [seed for seed in seeds if seed not in tried]
    return Lane(
        wanted.arm, known.finished + running, running, len(left), tuple(replace(wanted, seed=seed) for seed in left)
    )


STEPS: tuple[tuple[Stage, ...], ...] = ((Search(),), (Selection(),), (Fresh(), Crossed()))
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
    chosen, all that may be chosen; then the run that represents the arm, and the best on a fresh seed."""
    kept: list[Run | None]
    if record.is_tested and arm not in record.chosen:
        kept = [run for run, _ in list_candidates(record.spec, record.search(arm))]
    else:
        kept = [record.settled(arm), record.fresh(arm).find_best(record.spec.objective.direction)]
    return {run.run_id for run in kept if run is not None and run.run_id}


@dataclass(frozen=True)
class Left:
    """The remaining runs of an arm."""

    runs: dict[str, int]
    """Stage -> the number of certain runs; of those on fresh seeds up to the first look."""
    more: int
    """Further runs that it may need."""
    share: float = 1.0
    """The average share of a whole run that a trial of the search takes."""

    @property
    def sure(self) -> int:
        """Number of certain runs."""
        return sum(self.runs.values())

    @property
    def whole(self) -> float:
        """Their cost, in whole runs."""
        return sum(count * (self.share if stage == SEARCH else 1) for stage, count in self.runs.items())


def count_left(spec: Sweep, record: SweepRecord | None = None) -> dict[str, Left]:
    """Return the remaining runs of each arm, of a new sweep without a `record`."""
    known = replace(record, spec=spec) if record else SweepRecord(spec.name, 1, spec, Runs())
    left = {}
    for arm in spec.all_arms:
        counts = {stage.name: stage.plan(known, arm) for stage in ALL}
        sure, more = ({name: both[i] for name, both in counts.items()} for i in (0, 1))
        left[arm] = Left(sure, sum(more.values()), spec.find_share(arm))
    return left


def count_unassigned(spec: Sweep) -> dict[str, int]:
    """Return stage -> the maximum number of its runs, for stages whose arms are not known beforehand."""
    return {stage.name: stage.count_unassigned(spec) for stage in ALL if not stage.is_assigned}


def describe_stages(spec: Sweep) -> list[str]:
    """Return lines of a plan on the runs after the search; none if no seeds are requested."""
    return [line for stage in ALL for line in stage.describe(spec)] if spec.confirm.most_seeds else []
