"""Records of sweeps with chosen outcomes, by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from run_table import by_arm, join, put

from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import CHALLENGE, FRESH, SEARCH, SELECTION, Run
from ablate.sweeps.spec.sweep import Sweep
from ablate.verdict.looks import Looks

TRIVIAL = 3.3
STUCK = 3.29
LR = "optimizer.lr"
SEED, SELECTING = 7, 1008
"""The seed of the search, and the first one of the selection."""
Values = Sequence["float | str | None"]


def run(arm: str, number: int, params: Mapping[str, Any], value: float | str | None) -> Run:
    """A training that ended at `value`; None: it diverged; a word: its status."""
    status = "diverged" if value is None else value if isinstance(value, str) else "completed"
    reached = value if isinstance(value, float) else None
    metrics = {"val/loss": reached} if reached is not None else {}
    return Run(
        arm, number, status, dict(params), reached, metrics, {100: reached} if reached is not None else {}, 100, 60.0,
        f"run-{arm}-{number}", "out of memory" if status == "failed" else "", 1024, seed=SEED,
    )  # fmt: skip


def on_seeds(arm: str, values: Values, params: Mapping[str, Any], first: int = 8, number: int = 0) -> list[Run]:
    """Trainings at the settings `number` on seeds from `first` on."""
    runs = [run(arm, i, params, value) for i, value in enumerate(values)]
    return [replace(one, number=number, seed=first + i) for i, one in enumerate(runs)]


def build_record(
    fresh: Mapping[str, Values],
    *,
    rates: Mapping[str, float] | None = None,
    promised: Mapping[str, float | None] | None = None,
    confirm: Mapping[str, Any] | None = None,
    looks: Looks | str | None = "one",
    trivial_loss: float | None = TRIVIAL,
    tried: int = 1,
    selected: Mapping[str, Mapping[int, Values]] | None = None,
    tries: Mapping[str, Mapping[float, Values]] | None = None,
    promised_all: float = 2.0,
    **more: Any,
) -> SweepRecord:
    """A sweep of one trial per arm, and of what came after it.

    Args:
        fresh: arm -> its values on fresh seeds, the first arm the baseline's.
        rates: arm -> its chosen learning rate; 1e-3 for what is not given.
        promised: arm -> its value in the search; None: it diverged. 2.0 for what is not given.
        confirm: the section of the sweep file; as many seeds as the first arm has if not given.
        looks: of every arm; "one": at the number of seeds.
        trivial_loss: of the data.
        tried: trials of each search, of which the first is the best.
        selected: arm -> number of a candidate -> its values on selection seeds; the first is the chosen one.
        promised_all: what candidates came to in the search, the first of them.
        tries: arm -> a further learning rate that it was challenged at -> its values there, on the seed of the search
            and then on the selection seeds.
        more: of the sweep file.
    """
    seeds = max(len(values) for values in fresh.values())
    spec = Sweep.from_tree(
        {
            "name": "judged",
            "experiment": {"model": "llama", "data": "topics", "seed": 7},
            "arms": {arm: {"norm.kind": kind} for arm, kind in zip(fresh, ("pre", "post", "mix"), strict=False)},
            "search": {LR: {"low": 1e-4, "high": 1e-1, "log": True, "num": 7}},
            "budget": {"trials": tried},
            "confirm": confirm or {"seeds": seeds},
            **more,
        }
    )
    rates, promised, selected, tries = rates or {}, promised or {}, selected or {}, tries or {}
    trials = {
        arm: [
            run(arm, 0, {LR: rates.get(arm, 1e-3)}, promised.get(arm, 2.0)),
            *(run(arm, n, {LR: 2e-3 + n * 1e-3}, 2.5) for n in range(1, tried)),
        ]
        for arm in fresh
    }
    candidates = {arm: {n: {LR: rates.get(arm, 1e-3) + n * 1e-3} for n in own} for arm, own in selected.items()}
    for arm, own in candidates.items():  # in the search as they were compared
        searched = [run(arm, n, params, promised_all + n / 10) for n, params in own.items()]
        trials[arm] = [*searched, *(one for one in trials[arm] if one.number not in own)]
    moved = {arm: rates.get(arm, 1e-3) for arm in fresh}
    given = Looks((seeds,), seeds) if looks == "one" else looks
    challenged: dict[str, list[Run]] = {}
    for arm, own in tries.items():
        for number, (rate, values) in enumerate(own.items(), 1 + max(one.number for one in trials[arm])):
            runs = on_seeds(arm, values, {LR: rate}, SELECTING - 1, number)
            challenged.setdefault(arm, []).extend([replace(runs[0], seed=SEED), *runs[1:]])
    stages = {
        SEARCH: trials,
        SELECTION: {
            arm: [one for n, values in own.items() for one in on_seeds(arm, values, candidates[arm][n], SELECTING, n)]
            for arm, own in selected.items()
        },
        FRESH: {arm: on_seeds(arm, values, {LR: moved[arm]}) for arm, values in fresh.items() if values},
        CHALLENGE: challenged,
    }
    return SweepRecord(
        "judged",
        1,
        spec,
        join(stages, trivial_loss),
        chosen={arm: next(iter(own)) for arm, own in candidates.items()},
        looks={} if given is None or isinstance(given, str) else dict.fromkeys(fresh, given),
    )


def add_curves(record):
    """The record with two validations of each confirmed seed: one above its last loss, and that."""
    confirmed = {
        arm: [replace(run, curve={50: (run.value or 9.0) + 1, 100: run.value or 9.0}) for run in runs]
        for arm, runs in by_arm(record, FRESH).items()
    }
    return put(record, confirmed=confirmed)
