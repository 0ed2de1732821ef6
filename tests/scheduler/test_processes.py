"""Many processes on one storage: every trial is run once, whoever asks, and whoever dies."""

import multiprocessing
import os
import signal
import time
from collections import Counter

import optuna
import pytest
import yaml
from forked import Forked
from optuna.storages import RDBStorage
from run_table import by_arm
from sqlalchemy import text
from sqlalchemy.orm import Session

from ablate.config.errors import StoreError
from ablate.scheduler import leases
from ablate.scheduler.storage import do_locked, open_storage, read_sweep, storage_url, translate_storage_errors
from ablate.sweeps.comparison import compare_record
from ablate.sweeps.runs import CHALLENGE, CHOOSING, EXTENSION, FRESH
from ablate.sweeps.spec.sweep import Sweep
from ablate.tracking import databases
from benchmarks.simulation.losses import Valley
from benchmarks.simulation.sweeps import simulate

FORK = multiprocessing.get_context("fork")  # what is imported here need not be imported eight times


class Noted:
    """An objective that writes down, one line each, what it was asked. After `after` of those on seeds from `first` on
    the process kills itself."""

    def __init__(self, file, after=None, first=0):
        self.file, self.after, self.first, self.valley = file, after, first, Valley({"a": 2.0, "b": 2.1})

    def __call__(self, arm, params, seed):
        with open(self.file, "a") as file:  # short appends are whole
            file.write(f"{arm} {params['optimizer.lr']!r} {params.get('seed')}\n")
        if self.after is not None and (seed or 0) >= self.first:
            self.after -= 1
            if self.after < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.valley(arm, params, seed)


def spec_of(trials, **more):
    return Sweep.from_tree(
        {
            "name": "many",
            "arms": {"a": {"norm": "pre"}, "b": {"norm": "post"}},
            "search": {"optimizer.lr": {"low": 1e-4, "high": 1e-1, "log": True}},
            "sampler": "random",
            "budget": {"trials": trials},
            "confirm": {"seeds": 4},
            **more,
        }
    )


def work(spec, url, file, barrier, after=None, first=0):
    """The life of one process: it begins with all the others. That several die in one trial is not the trial's
    fault."""
    leases.DEATHS = leases.LOSSES = 100
    storage = open_storage(url)
    barrier.wait()
    simulate(spec, Noted(file, after, first), storage)


def together(spec, url, folder, processes, killed=0, dying=(2, 0), meanwhile=None, deaths=None):
    """Runs `spec` in so many processes, of which the first `killed` die, by default in their third trial; what each was
    asked. Where the others may leave them nothing to die in, `deaths` is given: it gets those who died, one at least.
    Meanwhile `meanwhile(files, started)` is called. The storage is not opened here: no connection to SQLite
    may be carried across a fork."""
    barrier = FORK.Barrier(processes)
    files = [folder / f"{len(list(folder.glob('asked-*')))}{i}.txt" for i in range(processes)]
    files = [file.with_name(f"asked-{file.name}") for file in files]
    started = []
    for i, file in enumerate(files):
        process = FORK.Process(target=work, args=(spec, url, file, barrier, *(dying if i < killed else ())))
        process.start()
        started.append(process)
    if meanwhile:
        meanwhile(files, started)
    for process in started:
        process.join(120)
    ends = [process.exitcode for process in started]
    died = [i for i, end in enumerate(ends) if end == -signal.SIGKILL]
    assert died == list(range(killed)) if deaths is None else died and max(died) < killed
    assert [end for i, end in enumerate(ends) if i not in died] == [0] * (processes - len(died))
    if deaths is not None:
        deaths += died
    return [file.read_text().splitlines() if file.exists() else [] for file in files]


def check(spec, url, asked, lost=0):
    """Nothing lost, nothing doubled: of each arm the trials 0 to n - 1, as many steps beyond the range as of the other,
    its candidates on the selection seeds, the chosen ones on the fresh seeds, and what it was challenged with, each
    finished once; in all as many as the processes say that they ran, but for the `lost` that were cut off."""
    storage = open_storage(url)
    record = read_sweep("many", url)
    again, studies = 0, optuna.get_all_study_names(storage)
    for name in studies:
        trials = optuna.load_study(study_name=name, storage=storage).get_trials()
        assert [t for t in trials if t.state.name != "COMPLETE"] == []
        again += sum(t.user_attrs["owner"]["claim"] - 1 for t in trials)
    finished = []

    def add(arm, runs, params, seeds):
        assert sorted(run.seed for run in runs) == seeds
        finished.extend(f"{arm} {params['optimizer.lr']!r} {seed}" for seed in seeds)

    for arm in spec.all_arms:
        assert sorted(t.number for t in record.search(arm)) == list(range(spec.trials(arm)))
        finished += [f"{arm} {t.params['optimizer.lr']!r} None" for t in record.search(arm)]
        candidates = record.list_candidates(arm)
        assert [run.value for run, _ in candidates] == sorted(t.value for t in record.tuned(arm))[:3]
        counts = sorted(len(selected) for _, selected in candidates)
        assert counts[0] >= spec.confirm.selection_seeds
        assert counts[-2] == counts[-1] <= spec.confirm.most_selection_seeds  # at least two raced
        for run, selected in candidates:
            add(arm, selected, run.params, spec.selection_seeds(len(selected)))
        assert record.settled(arm).number in {run.number for run in record.runs.select(arm, CHOOSING)}
        for number in dict.fromkeys(
            run.number for run in record.runs.select(arm, FRESH)
        ):  # a challenge may choose anew
            tested = record.runs.select(arm, FRESH, number=number)
            add(arm, tested, tested[0].params, spec.fresh_seeds())
        assert record.looks[arm].sizes == (len(spec.fresh_seeds()),)
        for run in record.runs.select(arm, EXTENSION):
            add(arm, [run], run.params, [spec.base(arm).seed])
        challenges = record.runs.select(arm, CHALLENGE)
        for number in {run.number for run in challenges}:  # that goes on until the claim is sure
            tries = challenges.select(number=number)
            assert {run.seed for run in tries} <= {*spec.choosing_seeds(arm)}
            add(arm, tries, tries[0].params, sorted(run.seed for run in tries))
    assert len({len(record.runs.select(arm, EXTENSION)) for arm in spec.all_arms}) == 1
    assert len(studies) == 2 * (1 + 1)
    told = Counter(line for lines in asked for line in lines)
    assert again == lost
    assert sum(told.values()) == len(finished) + lost
    assert set(told) == set(finished)
    assert len(set(finished)) == len(finished)


@pytest.fixture
def on_postgres(postgres):
    return postgres.database()


@pytest.fixture
def on_sqlite(tmp_path):
    return f"sqlite:///{tmp_path / 'optuna.db'}"


@pytest.mark.parametrize(
    ("kind", "trials", "processes"),
    [pytest.param("on_postgres", 16, 8, marks=pytest.mark.chaos), ("on_sqlite", 8, 4)],
)
def test_processes_that_share_a_storage_run_every_trial_once(kind, trials, processes, tmp_path, request):
    """On PostgreSQL 8 processes run 32 trials and as many runs after them."""
    url, spec = request.getfixturevalue(kind), spec_of(trials)
    asked = together(spec, url, tmp_path, processes)
    check(spec, url, asked)
    assert sum(bool(lines) for lines in asked) > processes // 2  # they did work side by side


@pytest.mark.parametrize(
    ("kind", "points"), [pytest.param("on_postgres", 12, marks=pytest.mark.chaos), ("on_sqlite", 6)]
)
def test_a_grid_shared_by_processes_runs_each_cell_once(kind, points, tmp_path, request):
    url, rates = request.getfixturevalue(kind), [1e-4 * 1.2**i for i in range(points)]
    spec = spec_of(99, sampler="grid", search={"optimizer.lr": rates}, confirm={"seeds": 3})
    check(spec, url, together(spec, url, tmp_path, 4))
    for arm, trials in by_arm(read_sweep("many", url)).items():
        assert sorted(t.params["optimizer.lr"] for t in trials) == rates, arm


@pytest.mark.parametrize(
    ("kind", "trials"), [("on_postgres", 8), pytest.param("on_sqlite", 8, marks=pytest.mark.chaos)]
)
def test_what_killed_processes_ran_is_finished_by_the_others(kind, trials, tmp_path, request):
    """Up to three of six are killed with -9 in the middle of a trial each."""
    url, spec = request.getfixturevalue(kind), spec_of(trials)
    deaths = []
    asked = together(spec, url, tmp_path, 6, killed=3, deaths=deaths)
    check(spec, url, asked, lost=len(deaths))


def test_a_database_that_is_restarted_ends_no_process(postgres, tmp_path):
    """Whatever the processes are at: they wait, take their locks again, and none runs a trial that another runs."""
    url, spec = postgres.database(), spec_of(6, confirm={"seeds": 2})
    counts = []

    def restart(files, started):
        for wanted in (3, 12):
            while sum(len(file.read_text().splitlines()) for file in files if file.exists()) < wanted:
                assert any(process.is_alive() for process in started)
                time.sleep(0.02)
            postgres.control("restart")
            counts.append(wanted)

    asked = together(spec, url, tmp_path, 3, killed=1, meanwhile=restart)
    assert len(counts) == 2
    record = read_sweep("many", url)
    for arm in spec.all_arms:
        assert sorted(t.number for t in record.search(arm)) == list(range(6))
        assert {t.status for t in record.search(arm)} == {"completed"}
        assert sorted(run.seed for run in record.fresh(arm)) == spec.fresh_seeds()
    told = Counter(line for lines in asked for line in lines)
    assert sum(told.values()) - len(told) <= 1  # what was cut off in its middle alone was run again


def test_a_database_that_stays_away_is_told_in_a_sentence(postgres, tmp_path, monkeypatch, caplog):
    """The lock is held when the server goes away, and nothing of SQLAlchemy's is said."""
    monkeypatch.setattr(databases, "AWAY", 0.5)
    monkeypatch.setattr(databases, "AGAIN", 0.1)
    url, spec = postgres.database(), spec_of(2)
    storage = open_storage(url)

    def stop(*_):
        postgres.control("stop")
        return 1.0

    try:
        with pytest.raises(StoreError) as caught, translate_storage_errors(url):
            simulate(spec, stop, storage)
    finally:
        postgres.control("start")
    assert "Connection refused" in str(caught.value)
    assert "run the same command again" in str(caught.value)
    assert "invalid transaction" not in str(caught.value) + caplog.text
    assert "Waiting for it" in caplog.text


def test_a_lock_that_is_lost_in_the_middle_is_taken_again(postgres):
    """The step begins anew, and what it had written is not written twice."""
    url = postgres.database()
    storage = open_storage(url)
    study = optuna.create_study(storage=storage, study_name="s")
    tries = []

    def step():
        tries.append(len(study.get_trials()))
        if len(tries) == 1:
            postgres.control("restart")
        study.enqueue_trial({"x": 1}, user_attrs={"number": 0})
        return "done"

    assert do_locked(storage, step) == "done"
    assert tries == [0, 0]
    assert len(study.get_trials()) == 1


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_trial_that_is_cut_off_while_it_is_written_is_written_once(moment, postgres, monkeypatch):
    """Before its commit or after it, and while another process takes the lock and writes it, too: Optuna would write it
    again by itself two seconds later."""
    url = postgres.database()
    storage, other = open_storage(url), open_storage(url)
    study = optuna.create_study(storage=storage, study_name="s")
    others = optuna.load_study(study_name="s", storage=other)
    commit, prepare, prepared, cut = Session.commit, RDBStorage._get_prepared_new_trial, [], []

    def write(study):
        if not study.get_trials():
            study.enqueue_trial({"x": 1}, user_attrs={"number": 0})

    def note(self, *args):
        prepared.append(args)
        return prepare(self, *args)

    def cut_off(session):
        if cut or not prepared:
            return commit(session)
        cut.append(session)
        if moment == "after":
            commit(session)
        postgres.control("restart")
        do_locked(other, lambda: write(others))
        session.execute(text("SELECT 1"))  # as a commit whose answer does not come
        return None

    monkeypatch.setattr(RDBStorage, "_get_prepared_new_trial", note)
    monkeypatch.setattr(Session, "commit", cut_off)
    do_locked(storage, lambda: write(study))
    assert len(cut) == 1
    assert len(study.get_trials()) == 1


@pytest.mark.chaos
def test_processes_that_are_killed_in_the_selection_lose_nothing(on_sqlite, tmp_path):
    """Up to three of five, each in its first run of a candidate."""
    spec = spec_of(6)
    deaths = []
    asked = together(spec, on_sqlite, tmp_path, 5, killed=3, dying=(0, 1001), deaths=deaths)
    check(spec, on_sqlite, asked, lost=len(deaths))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A sweep with a challenge, the storage in which it went to its end, and what it was asked."""
    folder = tmp_path_factory.mktemp("undisturbed")
    other = {"optimizer.lr": {"low": 1e-3, "high": 1e-1, "log": True}}  # so that the arms end at different rates
    spec = spec_of(3, arms={"a": {"norm": "pre"}, "b": {"norm": "post", "search": other}}, confounds="optimizer.lr")
    url = f"sqlite:///{folder}/optuna.db"
    return spec, url, together(spec, url, folder, 1)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(3, id="search", marks=pytest.mark.chaos),
        pytest.param(10, id="selection"),
        pytest.param(25, id="confirmation", marks=pytest.mark.chaos),
        pytest.param(31, id="challenge", marks=pytest.mark.chaos),
    ],
)
def test_a_sweep_killed_in_any_part_goes_on_as_if_it_had_not_been(run, undisturbed, tmp_path):
    """The 6 trials, 16 runs of candidates, 8 on fresh seeds and the challenge are those of an undisturbed sweep."""
    spec, plain, asked = undisturbed
    check(spec, plain, asked)
    url = f"sqlite:///{tmp_path}/killed.db"
    first = together(spec, url, tmp_path, 1, killed=1, dying=(run - 1, 0))
    assert [len(lines) for lines in first] == [run]
    check(spec, url, [*first, *together(spec, url, tmp_path, 1)], lost=1)
    assert read_sweep("many", url).runs.select(stage=CHALLENGE)
    for part in ("runs", "chosen", "looks"):
        assert plain_of(getattr(read_sweep("many", url), part)) == plain_of(getattr(read_sweep("many", plain), part))


def plain_of(part):
    """Without the order in which processes wrote."""
    return repr(part)


def test_seeds_that_are_added_until_all_is_decided_are_agreed_on(on_sqlite, tmp_path):
    spec = spec_of(4, confirm={"seeds": {"min": 3, "max": 8}, "effect": 0.03})
    together(spec, on_sqlite, tmp_path, 4, killed=4, dying=(1, 1))  # each finds a second run: there are more than seven
    together(spec, on_sqlite, tmp_path, 4)
    record = read_sweep("many", on_sqlite)
    sizes = record.looks["b"].sizes
    assert sizes == tuple(range(3, sizes[-1] + 1))
    assert record.looks["b"].planned == 8
    for arm in "ab":
        assert sorted(t.seed for t in record.fresh(arm)) == spec.fresh_seeds(sizes[-1])
    assert compare_record(record)["b"].decided


@pytest.mark.chaos
def test_a_second_start_finishes_what_all_were_killed_in(on_postgres, tmp_path):
    spec = spec_of(8)
    first = together(spec, on_postgres, tmp_path, 3, killed=3)
    assert [len(lines) for lines in first] == [3, 3, 3]
    second = together(spec, on_postgres, tmp_path, 2)
    check(spec, on_postgres, [*first, *second], lost=3)


def every_study():
    return optuna.get_all_study_names(open_storage(storage_url()))


def test_two_commands_at_once_share_one_sweep(store, tiny_settings, tmp_path):
    """Real training on one SQLite storage: both end well, both have the report, and each trial was trained once."""
    tree = {
        "name": "shared",
        "experiment": tiny_settings,
        "arms": {"pre": {"norm": "pre"}, "mix": {"norm": "mix"}},
        "search": {"optimizer.lr": {"low": 1e-3, "high": 1e-2, "log": True}},
        "budget": {"trials": 2},
        "confirm": {"seeds": 2, "selection_seeds": 1},
        "challenge": {"extend": 1},
    }
    file = tmp_path / "shared.yaml"
    file.write_text(yaml.safe_dump(tree))
    cores = sorted(os.sched_getaffinity(0))
    both = [  # a core each, as on two machines: with all threads on all cores they would wait for each other
        Forked("-m", "ablate", "sweep", file, cwd=tmp_path, cores={cores[i % len(cores)]}) for i in range(2)
    ]
    told = [process.communicate(timeout=240) for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    record = read_sweep("shared")
    for arm in ("pre", "mix"):
        assert [(t.number, t.status) for t in record.search(arm)] == [(i, "completed") for i in range(2)]
        assert sorted(t.seed for t in record.fresh(arm)) == [1, 2]
        candidates = record.list_candidates(arm)
        assert len(candidates) == len(record.tuned(arm)) in (2, 3)  # perhaps with one beyond the range
        for _, selected in candidates:
            assert sorted(run.seed for run in selected) == record.spec.selection_seeds(len(selected))
    studies = [optuna.load_study(study_name=name, storage=open_storage(storage_url())) for name in every_study()]
    owners = [trial.user_attrs["owner"] for study in studies for trial in study.trials]
    assert {owner["claim"] for owner in owners} == {1}
    assert len({owner["pid"] for owner in owners}) == 2  # the worker of each
    for out, _ in told:
        assert "Results on fresh seeds, each arm at its chosen settings" in out
