"""A synthetic sweep, written to an Optuna storage as the runner writes one."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState, create_trial
from run_table import by_arm, put

from ablate import tracking
from ablate.reports.report import Report, assemble, report
from ablate.scheduler.samplers import to_distributions
from ablate.scheduler.storage import open_storage, read_sweep, storage_url
from ablate.scheduler.studies import name_study
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import FINISHED, Run
from ablate.sweeps.spec.parts import Confirm, Published
from ablate.sweeps.spec.sweep import Sweep
from ablate.verdict.looks import Looks

SPEC: dict[str, Any] = {
    "name": "demo",
    "experiment": {"model": "llama", "data": "topics", "seed": 7},
    "arms": {
        "pre": {"norm.kind": "pre"},
        "post": {"norm.kind": "post"},
        "mix": {"norm.kind": "mix", "search": {"norm.alpha": {"low": 0.0, "high": 1.0}}},
    },
    "search": {"optimizer.lr": {"low": 1.0e-4, "high": 1.0e-2, "log": True}},
    "budget": {"trials": 8},
}
FLOOR = {"pre": 1.735, "post": 1.82, "mix": 1.712}
STEEP = {"pre": 0.35, "post": 0.9, "mix": 0.45}
RATES = [1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3, 3.2e-3, 6.4e-3, 1e-2]
FRESH = {  # arm -> seed -> value
    "pre": {8: 2.10, 9: 2.14, 10: 2.11, 11: 2.16, 12: 2.12},
    "post": {8: 2.40, 9: 2.00, 11: 2.10},
    "mix": {8: 2.05, 9: 2.10, 10: 2.06, 11: 2.12, 12: 2.07},
}
ALPHAS = [0.1, 0.6, 0.3, 0.25, 0.05, 0.8, 0.4, 0.9]

Add = Callable[..., None]


def loss(arm: str, lr: float, alpha: float | None = None) -> float:
    """What a trial of `arm` ends at: a valley in the learning rate and, for mix, in alpha."""
    valley = STEEP[arm] * math.log10(lr / (8e-4 if arm != "post" else 4e-4)) ** 2
    return round(FLOOR[arm] + valley + (0.0 if alpha is None else 0.5 * (alpha - 0.25) ** 2), 4)


def course(end: float, steps: int = 200, until: int = 200) -> dict[int, float]:
    """Validations every 20 updates, falling from 3.2 to `end`."""
    return {s: end + (3.2 - end) * math.exp(-5 * s / steps) * (1 - s / steps) for s in range(20, until + 1, 20)}


class Writer:
    """Writes studies into the storage of the test."""

    def __init__(self, spec: dict[str, Any], generation: int = 1) -> None:
        self.sweep = Sweep.from_tree(spec)
        storage = open_storage(storage_url())
        self.studies = {
            arm: optuna.create_study(
                study_name=name_study(self.sweep.name, generation, arm),
                storage=storage,
                direction=self.sweep.objective.direction,
            )
            for arm in self.sweep.all_arms
        }
        for arm, study in self.studies.items():
            study.set_user_attr("spec", self.sweep.to_tree())
            study.set_user_attr("parent", f"parent-of-{arm}")

    def add(
        self, arm: str, params: dict[str, Any], value: float | None = None, status: str = "completed", **notes: Any
    ) -> None:
        """One trial of `arm`, stored as the runner stores it."""
        bad = math.inf if self.sweep.objective.direction == "minimize" else -math.inf
        states = {"pruned": TrialState.PRUNED, "failed": TrialState.FAIL, "interrupted": TrialState.WAITING}
        space = to_distributions(self.sweep.space(arm))
        state = states.get(status, TrialState.COMPLETE)
        waiting = state == TrialState.WAITING
        curve = notes.pop("curve", None)
        self.studies[arm].add_trial(
            create_trial(
                state=state,
                params={} if waiting else params,
                distributions={} if waiting else {path: space[path] for path in params},
                value=(bad if status == "diverged" else value) if state == TrialState.COMPLETE else None,
                intermediate_values=course(value) if curve is None and value is not None else curve or {},
                system_attrs={"fixed_params": params} if waiting else {},
                user_attrs={"ending": {"status": status}, **notes},
            )
        )


def fill(spec: dict[str, Any]) -> Writer:
    """Three arms of 8 trials: pre all completed; post with three diverged; mix with a pruned, a diverged, a failed, an
    interrupted and a terrible one."""
    sweep = Writer(spec)
    for i, (lr, alpha) in enumerate(zip(RATES, ALPHAS, strict=True)):
        for arm in ("pre", "post", "mix"):
            params = {"optimizer.lr": lr, **({"norm.alpha": alpha} if arm == "mix" else {})}
            value = loss(arm, lr, alpha if arm == "mix" else None)
            notes: dict[str, Any] = {"step": 200, "seconds": 61.5 + i, "run_id": f"run-{arm}-{i}"}
            if (arm == "post" and lr > 2e-3) or (arm == "mix" and alpha == 0.9):
                curve = {**course(2.9, until=80), 100: math.nan}
                notes.update(step=100, reason=f"validation loss nan at update {100}", metrics={"val/loss": math.nan})
                sweep.add(arm, params, status="diverged", curve=curve, **notes)
            elif arm == "mix" and i == 5:
                sweep.add(arm, params, status="pruned", curve=course(value, until=80), **{**notes, "step": 80})
            else:
                value = 4.21 if arm == "mix" and i == 6 else value
                metrics = {"val/loss": value, "val/perplexity": math.exp(value), "val/bits_per_byte": value / 2.9}
                sweep.add(arm, params, value, metrics=metrics, **notes)
    lost = {"optimizer.lr": 5e-4, "norm.alpha": 0.5}
    sweep.add("mix", lost, status="failed", reason="RuntimeError: CUDA out of memory", step=3, seconds=2.0)
    sweep.add("mix", lost, status="failed", reason="the process ended", step=120, curve=course(1.9, until=120))
    sweep.add("mix", lost, status="interrupted", continues=9)
    return sweep


def at(store: Path, patch: pytest.MonkeyPatch) -> None:
    """Makes `store` the place of all results."""
    for name in ("MLFLOW_TRACKING_URI", "ABLATE_STORAGE"):
        patch.delenv(name, raising=False)
    patch.setenv("ABLATE_STORE", str(store))


def copy(database: Path, to: Path) -> None:
    """Copies a database into another store: making its tables takes longer than most tests."""
    to.mkdir(exist_ok=True)
    with closing(sqlite3.connect(database)) as old, closing(sqlite3.connect(to / database.name)) as new:
        old.backup(new)  # also what is still in the write-ahead log


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with an Optuna database that holds nothing."""
    store = tmp_path_factory.mktemp("empty")
    with pytest.MonkeyPatch.context() as patch:
        at(store, patch)
        open_storage(storage_url())
    return store


@pytest.fixture(scope="session")
def demo_store(tmp_path_factory: pytest.TempPathFactory, _empty_database: Path) -> Path:
    """A store with the sweep `demo`."""
    store = tmp_path_factory.mktemp("demo")
    copy(_empty_database, store)
    with pytest.MonkeyPatch.context() as patch:
        at(store, patch)
        fill(SPEC)
    return store


@pytest.fixture(scope="session")
def record(demo_store: Path) -> SweepRecord:
    """The sweep `demo`, to look at."""
    return read_sweep("demo", f"sqlite:///{demo_store / 'optuna.db'}")


@pytest.fixture(scope="session")
def made(demo_store: Path) -> Report:
    """The report of `demo`, to look at; it is not logged to MLflow."""
    with pytest.MonkeyPatch.context() as patch:
        at(demo_store, patch)
        return report("demo", log=False)


@pytest.fixture(scope="session")
def made_of_full(full: SweepRecord, demo_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The report of `full`, to look at."""
    with pytest.MonkeyPatch.context() as patch:
        at(demo_store, patch)
        return assemble(full, tmp_path_factory.mktemp("full"))


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports draw no figures, of records like which others are drawn: drawing takes most of the time of a report."""
    monkeypatch.setattr("ablate.reports.report_data.draw_figures", lambda record: [])


@pytest.fixture(autouse=True)
def own_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_store: Path, _empty_database: Path
) -> Iterator[Path]:
    """Every test has a store of its own."""
    at(tmp_path / "store", monkeypatch)
    copy(empty_store / "optuna.db", tmp_path / "store")
    copy(_empty_database, tmp_path / "store")
    tracking.client.cache_clear()
    yield tmp_path / "store"
    tracking.client.cache_clear()


@pytest.fixture(scope="session")
def confirmed(record: SweepRecord) -> SweepRecord:
    """`demo` with fresh seeds, of which two of Post-LN's diverged."""

    def again(arm: str) -> list[Run]:
        first, values = record.search(arm)[0], FRESH[arm]
        return [
            replace(
                first,
                params=dict(first.params),
                seed=seed,
                value=values.get(seed),
                metrics={"val/loss": values[seed], "val/perplexity": math.exp(values[seed])} if seed in values else {},
                status="completed" if seed in values else "diverged",
            )
            for seed in FRESH["pre"]
        ]

    spec = record.spec.model_copy(update={"confirm": Confirm(seeds=5)})
    return put(
        record, spec=spec, confirmed={arm: again(arm) for arm in FRESH}, looks=dict.fromkeys(FRESH, Looks((5,), 5))
    )


@pytest.fixture(scope="session")
def full(confirmed: SweepRecord) -> SweepRecord:
    """The same as today's sweeps are recorded: 1,024 tokens an update, with surroundings, of which some of mix differ,
    and with published figures."""

    def noted(t: Run) -> Run:
        facts = {"ablate.hardware": "two" if t.arm == "mix" and t.number > 3 else "one", "version.torch": "2.9"}
        return replace(t, items_per_update=1024 if t.status in FINISHED else 1, facts=facts)

    quoted = Published(source="Table 2 of a paper", metric="val/perplexity", values={"pre": 8.5, "mix": 8.0})
    loss = Published(source="Table 3 of a paper", metric="val/loss", values={"pre": 2.15, "post": 9.0})
    return put(
        confirmed,
        spec=confirmed.spec.model_copy(update={"published": [quoted, loss]}),
        trials={arm: [noted(t) for t in trials] for arm, trials in by_arm(confirmed).items()},
        confirmed={arm: [noted(t) for t in trials] for arm, trials in by_arm(confirmed, "confirmation").items()},
        initial_loss=3.2,
    )


@pytest.fixture
def writer() -> Callable[..., Writer]:
    """`writer(spec)` opens studies to add trials to."""
    return Writer


@pytest.fixture
def spec() -> dict[str, Any]:
    """The sweep of `demo`, as a tree that may be changed."""
    return {**SPEC, "arms": dict(SPEC["arms"]), "search": dict(SPEC["search"])}


@pytest.fixture
def expected_loss() -> Callable[..., float]:
    """The value of a completed trial."""
    return loss


@pytest.fixture
def demo(demo_store: Path, own_store: Path) -> None:
    """`demo` in the test's own store, to change."""
    copy(demo_store / "optuna.db", own_store)
