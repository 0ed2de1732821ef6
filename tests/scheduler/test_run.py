"""Sweeps with real worker processes: what is run, in which order, and what is written down."""

import io
import os
from statistics import mean

import optuna
import pytest
from rich.console import Console
from run_table import by_arm, counts
from scheduler.queues import open_queue, read
from scheduler.small import run_here, run_sweep, stop_when, table
from stored_facts import read_facts

from ablate import tracking
from ablate.config.errors import ConfigError, DataError, StoreError, SweepError
from ablate.scheduler import devices, run
from ablate.scheduler.status import read_statuses
from ablate.scheduler.storage import open_storage, read_sweep, storage_url
from ablate.scheduler.studies import name_study
from ablate.sweeps.runs import CHALLENGE, EXTENSION, FRESH, SELECTION
from ablate.sweeps.stages import Wanted

BROKEN = """
from typing import Literal
from ablate.norms import NormLayer, norm_layers

@norm_layers.register
class Broken(NormLayer):
    kind: Literal["broken"] = "broken"

    def build(self, dim):
        raise RuntimeError("it breaks")
"""


def test_a_sweep_runs_its_budget_and_is_tracked_with_a_parent_for_each_arm(store, spec):
    record = run_sweep(spec())
    client = tracking.client()
    experiment = client.get_experiment_by_name("small")
    runs = client.search_runs([experiment.experiment_id])
    parents = {r.info.run_id: r for r in runs if r.data.tags["ablate.role"] == "arm"}
    children = [r for r in runs if r.data.tags["ablate.role"] == "trial"]
    assert counts(record)["completed"] == record.target() == len(children) == 4
    assert set(record.parents.values()) == set(parents)
    for trial in [t for trials in by_arm(record).values() for t in trials]:
        child = client.get_run(trial.run_id)
        assert child.data.tags["mlflow.parentRunId"] == record.parents[trial.arm]
        stuck = trial.value >= 0.98 * record.trivial_loss
        assert child.data.tags["ablate.outcome"] == ("stuck" if stuck else "trained")
        assert child.data.metrics["val/loss"] == pytest.approx(trial.value, rel=1e-12)
        assert float(child.data.params["optimizer.lr"]) == trial.params["optimizer.lr"]
        assert child.info.status == "FINISHED"
    best = record.best("mix")
    parent = client.get_run(record.parents["mix"])
    assert [parent.data.params.get(key) for key in ("LR", "alpha", "arm", "norm")] == [
        "searched",
        "searched",
        "mix",
        "mix",
    ]
    assert "norm.alpha" not in client.get_run(record.parents["pre"]).data.params
    assert parent.data.metrics == {}  # what the search reached is no result of the arm
    assert parent.data.tags["ablate.best.run_id"] == best.run_id
    assert [os.path.basename(folder) for folder in sorted(os.listdir(store / "runs"))] == sorted(
        record.best(arm).run_id for arm in by_arm(record)
    )


def test_the_same_command_again_runs_nothing_and_a_larger_budget_continues(store, spec):
    first = run_sweep(spec())
    assert run_sweep(spec()) == first
    more = run_sweep(spec(budget={"trials": 3}))
    assert [len(trials) for trials in by_arm(more).values()] == [3, 3]
    assert table(more)["pre"][:2] == table(first)["pre"]


def test_threads_that_the_user_asks_for(monkeypatch):
    monkeypatch.setattr(devices, "count_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [devices.share_cores(n) for n in (1, 3, 9)] == [8, 2, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert devices.share_cores(2) == 3


def test_a_sweep_keeps_its_threads_whatever_the_workers(store, spec, monkeypatch):
    """Sums over another number of threads are rounded elsewhere."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("ablate.scheduler.devices.count_cores", lambda: 4)
    shown = Console(file=io.StringIO(), width=200)
    for trials, workers in ((1, 4), (2, 1)):
        record = run.sweep(spec(arms={}, budget={"trials": trials}), workers=workers, console=shown)
    facts = [read_facts(t.run_id) for t in record.search("all")]
    assert [one["ablate.threads"] for one in facts] == ["1", "1"]
    assert shown.file.getvalue().count("Each trial computes on 1 thread, as the earlier trials did.") == 1


def test_a_sweep_that_another_number_of_ranks_trained_says_so(store, spec):
    """Each adds up the losses in an order of its own."""
    run_sweep(spec(arms={}, budget={"trials": 1}))
    study = optuna.load_study(study_name=name_study("small", 1, "all"), storage=open_storage(storage_url()))
    study.set_user_attr("ranks", 4)
    for expected in (1, 0):
        shown = Console(file=io.StringIO(), width=200)
        run.sweep(spec(arms={}, budget={"trials": 1}), console=shown)
        assert shown.file.getvalue().count("trained by 1 rank, earlier ones by 4") == expected


def test_the_best_of_each_arm_is_trained_again_on_fresh_seeds(store, spec):
    """After all arms are tuned, at the best settings, on the same seeds for every arm, none of them tuned on."""
    searched = run_here(spec())
    assert by_arm(searched, FRESH) == {}
    alone = {"candidates": 1}
    record = run_here(spec(confirm={"seeds": 2, **alone}))  # the target may be raised
    assert by_arm(record) == by_arm(searched)
    for arm, trials in by_arm(record, FRESH).items():
        assert sorted(t.seed for t in trials) == [1, 2]
        assert len({t.value for t in trials}) == 2
        for trial in trials:
            found = tracking.client().get_run(trial.run_id).data
            assert found.tags["ablate.role"] == "confirmation"
            assert found.tags["mlflow.parentRunId"] == record.parents[arm]
            assert found.params["seed"] == str(trial.seed)
            best = record.best(arm).params
            assert {path: float(found.params[path]) for path in best} == pytest.approx(best)
    assert run_here(spec(confirm={"seeds": 2, **alone})) == record
    more = run_here(spec(confirm={"seeds": 3, **alone}))
    assert [len(trials) for trials in by_arm(more, FRESH).values()] == [3, 3]
    assert all(more.fresh(arm)[:2] == record.fresh(arm).rows for arm in record.arms)


@pytest.mark.parametrize("keep", ["best", pytest.param("all", marks=pytest.mark.chaos), "none"])
def test_the_checkpoints_that_are_kept_are_those_that_were_asked_for(store, spec, monkeypatch, keep):
    """And of a trial that was interrupted always; `ablate status` says what they take."""
    settings = {"arms": {}, "checkpoints": keep, "confirm": {"seeds": 2}, "challenge": {"extend": 0}}
    with monkeypatch.context() as patch:
        stop_when(patch, lambda task: task.number == 1 and len(task.read().intermediate_values) > 0)
        with pytest.raises(KeyboardInterrupt):
            run_here(spec(**settings))
    found = optuna.load_study(study_name="small@1/all", storage=open_storage(storage_url())).trials
    assert [trial.state.name for trial in found] == ["COMPLETE", "RUNNING"]
    interrupted = read_sweep("small").search("all")[1]
    assert interrupted.status == "interrupted"
    assert (store / "runs" / interrupted.run_id / "last.ckpt").exists()
    record = run_sweep(spec(**settings), workers=1)
    searched, confirmed = record.search("all"), record.fresh("all")
    best = [record.settled("all"), min(confirmed, key=lambda t: t.value)]
    selected = record.runs.select("all", SELECTION)
    assert len(selected) in (4, 6, 8)  # two or, while they are within their noise, up to four of each
    kept = {"best": best, "all": [*searched, *selected, *confirmed], "none": []}[keep]
    files = list(store.glob("runs/*/*.ckpt"))
    assert sorted(file.parent.name for file in files) == sorted(t.run_id for t in kept)
    assert read_statuses("small")[0]["checkpoint_bytes"] == sum(file.stat().st_size for file in files)


def test_candidates_are_compared_on_seeds_of_their_own_before_one_is_tested(store, spec):
    """Every arm's on the same; the tags of its runs tell them apart."""
    shown = Console(file=io.StringIO(), width=200)
    more = {"confirm": {"seeds": 1, "selection_seeds": 1}, "challenge": {"extend": 0}}
    record = run.sweep(spec(**more), console=shown)
    assert f"[{len(record.runs)}/{len(record.runs)}]" in shown.file.getvalue()
    assert "[1/10]" in shown.file.getvalue()
    for arm in record.arms:
        candidates = record.list_candidates(arm)
        assert [run for run, _ in candidates] == sorted(record.search(arm), key=lambda t: t.value)
        means = [mean([one.value, *(each.value for each in runs)]) for one, runs in candidates]
        assert record.settled(arm) == candidates[means.index(min(means))][0]
        for candidate, (trial, *others) in candidates:
            assert (trial.params, trial.seed, trial.status) == (candidate.params, 1001, "completed")
            assert [other.seed for other in others] in ([], [1002])  # while the two are within their noise
            found = tracking.client().get_run(trial.run_id)
            tags = found.data.tags
            assert (tags["ablate.role"], tags["ablate.candidate"]) == ("selection", str(candidate.number))
            assert found.info.run_name == f"{arm} #{candidate.number} seed 1001"
            assert float(found.data.params["optimizer.lr"]) == candidate.params["optimizer.lr"]
    again = run_sweep(spec(**more, budget={"trials": 3}))
    assert again.chosen == record.chosen  # a choice stays, as its settings were looked at on fresh seeds
    assert by_arm(again, FRESH) == by_arm(record, FRESH)
    assert again.list_candidates(arm) == record.list_candidates(arm)


@pytest.mark.parametrize(("stage", "seed", "label"), [(CHALLENGE, 1001, "mix #2 seed 1001"), (EXTENSION, 0, "mix #2")])
def test_further_settings_of_an_arm_are_run_as_they_are_wanted(stage, seed, label, store, spec):
    queue = open_queue(open_storage(storage_url()), spec(confirm={"seeds": 3}))
    settings = {"optimizer.lr": 2e-3, "norm.alpha": 0.5}
    wanted = Wanted("mix", stage, 2, settings, seed)
    task = queue._begin(wanted)
    experiment = task.build_experiment()
    assert (experiment.norm.alpha, experiment.optimizer.lr, experiment.seed) == (0.5, 2e-3, seed)
    assert task.label == label
    tags = {"ablate.role": stage, "ablate.arm": "mix", "ablate.trial": "2", "ablate.seed": str(seed)}
    tags["mlflow.runColor"] = "#D55E00"  # the second of the palette
    assert task.tags == tags
    task.record_failure("it crashed")
    (run,) = read(queue).runs.select("mix", stage)
    assert (run.status, run.number, run.seed, run.params) == ("failed", 2, seed, settings)
    queue.begin_session()
    assert read(queue).runs.select("mix", stage)[0].status == "interrupted"  # for this session
    assert queue._begin(wanted).read().user_attrs["continues"] == 0


def test_fresh_seeds_lie_above_all_that_were_tuned_on(spec):
    assert spec(confirm={"seeds": 2}).fresh_seeds() == [1, 2]
    arms = {"pre": {"norm": "pre"}, "mix": {"norm": "mix", "seed": 7}}
    assert spec(confirm={"seeds": 2}, arms=arms, confounds=["seed"]).fresh_seeds() == [8, 9]
    with pytest.raises(ConfigError, match=r"baseline is not an arm, given 'none'\. Accepted: pre, mix"):
        spec(baseline="none")


def test_a_failing_trial_is_recorded_and_the_others_go_on(store, spec, registries):
    (store / "broken.py").write_text(BROKEN)
    failing = {
        "arms": {},
        "sampler": "grid",
        "plugins": [str(store / "broken.py")],
        "search": {"norm.layer.kind": ["rmsnorm", "broken"]},
    }
    record = run_here(spec(**failing))
    good, bad = record.search("all")
    assert (good.status, bad.status) == ("completed", "failed")
    assert bad.reason == "RuntimeError: it breaks"
    assert (store / "failures" / "small-all-1.txt").read_text().startswith("Traceback")
    again = run_here(spec(**failing))
    assert [t.status for t in again.search("all")] == ["completed", "failed"]
    study = optuna.load_study(study_name=name_study("small", 1, "all"), storage=open_storage(storage_url()))
    assert len(study.trials) == 3  # it was tried again
    assert again.search("all")[1].number == bad.number


def test_searched_data_is_looked_at_before_the_first_trial(store, spec):
    with pytest.raises(DataError, match="of the topics are for training"):
        run_sweep(spec(search={"data.seq_len": [32, 10_000_000]}))
    assert not (store / "optuna.db").exists()


def test_a_worker_trains_several_trials_as_workers_of_their_own_would(store, spec):
    """Nothing of one trial is left in the next: neither drawn numbers nor models nor settings of threads."""
    arms = {"pre": {"norm": "pre"}}
    together = run_here(spec(name="together", arms=arms))
    for trials in (1, 2):
        apart = run_sweep(spec(name="apart", arms=arms, budget={"trials": trials}), workers=1)
    pids = {find_pid(study, number) for study in ("together@1/pre", "apart@1/pre") for number in (0, 1)}
    assert len(pids) == 3
    assert table(together) == table(apart)


def find_pid(study, number):
    trial = optuna.load_study(study_name=study, storage=open_storage(storage_url())).trials[number]
    return trial.user_attrs["owner"]["pid"]


def test_a_trial_says_with_what_it_was_made(store, spec):
    (trial,) = run_here(spec(arms={}, budget={"trials": 1})).search("all")
    facts = read_facts(trial.run_id)
    assert {"ablate.corpus", "ablate.hardware", "ablate.precision", "version.torch"} <= set(trial.facts)
    assert trial.facts == {key: facts[key] for key in trial.facts}


def test_a_changed_sweep_file_is_refused_with_the_difference_and_fresh_starts_anew(store, spec, tiny_settings):
    first = run_sweep(spec(arms={}))
    changed = spec(arms={}, experiment={**tiny_settings, "seed": 5})
    with pytest.raises(SweepError, match=r"experiment\.seed: \(not set\) -> 5(.|\n)*--fresh"):
        run_sweep(changed)
    fresh = run_sweep(changed, fresh=True)
    assert (fresh.title, fresh.spec.experiment["seed"]) == ("small@2", 5)
    assert by_arm(read_sweep("small@1")) == by_arm(first)
    assert read_sweep("small").title == "small@2"


def test_a_bad_trial_is_pruned_within_its_arm(store, spec):
    record = run_here(
        spec(
            arms={},
            sampler="grid",
            search={"optimizer.lr": [1e-2, 8e-3, 6e-3, 5e-3, 1e-7]},
            budget={"trials": 5},
            pruner={"kind": "median"},
        )
    )
    assert [t.status for t in record.search("all")] == ["completed"] * 4 + ["pruned"]
    pruned = record.search("all")[4]
    assert pruned.step == 4  # the first validation at a third of the updates or later
    assert tracking.client().get_run(pruned.run_id).data.tags["ablate.status"] == "pruned"


def test_a_diverged_trial_is_a_result_and_not_tried_again(store, spec, tiny_settings):
    wild = {**tiny_settings, "schedule": {"warmup_steps": 0}, "trainer": {**tiny_settings["trainer"], "max_steps": 40}}
    tree = {"arms": {}, "experiment": wild, "sampler": "grid", "search": {"optimizer.lr": [1e-2, 1e4]}}
    record = run_here(spec(**tree))
    assert [t.status for t in record.search("all")] == ["completed", "diverged"]
    assert record.best("all").params == {"optimizer.lr": 1e-2}
    assert "at update" in record.search("all")[1].reason
    told = [tracking.client().get_run(trial.run_id).data.tags["ablate.outcome"] for trial in record.search("all")]
    assert told[1] == "diverged"
    assert run_here(spec(**tree)) == record


def test_what_would_fail_every_trial_is_said_before_the_first(store, spec, tiny_settings, tmp_path):
    with pytest.raises(ConfigError, match=r"objective\.metric: unknown metric\. Accepted: val/loss"):
        run_sweep(spec(objective={"metric": "val/accuracy"}))
    missing = {**tiny_settings, "data": {"kind": "text", "files": str(tmp_path / "none.txt")}}
    with pytest.raises(DataError, match=r"none\.txt"):
        run_sweep(spec(experiment=missing))
    with pytest.raises(StoreError, match="cannot be made: there is no folder"):
        run_sweep(spec(), storage=f"sqlite:///{store / 'mlflow.db'}/all.db")
