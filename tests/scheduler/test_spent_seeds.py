"""Seeds are spent once: over generations, under other names, and where two sweeps begin at the same moment."""

import json
import sqlite3
import threading

import optuna
import pytest

from ablate.addons.bundles.publish import publish
from ablate.cli import main
from ablate.config.errors import StoreError, SweepError
from ablate.reports.report import report
from ablate.scheduler import dry_run, preparation
from ablate.scheduler.preparation import open_queue, open_sweep
from ablate.scheduler.storage import list_spent, open_storage, read_sweep, storage_url
from ablate.scheduler.studies import SPENT
from ablate.sweeps.spec.sweep import Sweep
from benchmarks.simulation.losses import Valley
from benchmarks.simulation.sweeps import simulate

ARMS = {"pre": {"norm": "pre"}, "post": {"norm": "post"}, "lns": {"norm": "lns"}}
LOSSES = Valley(dict.fromkeys(ARMS, 2.0))


@pytest.fixture
def build(tiny_settings):
    def build(name="small", arms=("pre", "post", "lns"), **more):
        rates = {"optimizer.lr": [1e-3, 3e-3]}
        tree = {"name": name, "experiment": tiny_settings, "search": rates, "sampler": "grid", "confirm": {"seeds": 3}}
        return Sweep.from_tree({**tree, "arms": {arm: ARMS[arm] for arm in arms}, **more})

    return build


def find_seeds(record, stage):
    return sorted({run.seed for run in record.runs.select(stage=stage)})


def test_no_seed_is_spent_twice_by_generations_and_copies(build):
    storage = optuna.storages.InMemoryStorage()
    records = [
        simulate(build(), LOSSES, storage),
        simulate(build(arms=("pre", "lns")), LOSSES, storage, fresh=True),
        simulate(build("winner", arms=("pre", "lns")), LOSSES, storage),
    ]
    assert [record.full_name for record in records] == ["small@1", "small@2", "winner@1"]
    assert [find_seeds(r, "confirmation") for r in records] == [[1, 2, 3], [2001, 2002, 2003], [4001, 4002, 4003]]
    assert [find_seeds(r, "selection") for r in records] == [[1001, 1002], [3001, 3002], [5001, 5002]]
    assert "small@1, trains" in records[1].spec.spent.describe()


def test_the_list_of_sweeps_says_what_the_store_has_spent(store, build, capsys):
    storage = open_storage(storage_url())
    simulate(build(arms=("pre",)), LOSSES, storage)
    simulate(build(arms=("pre",)), LOSSES, storage, 0, fresh=True)
    assert main(["list", "sweeps", "--json"]) == 0
    rows = {row["sweep"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["small"]["seeds spent"] == {"tuned": [0], "chosen": [1001, 1002], "tested": [1, 2, 3]}
    assert rows["small@2"]["seeds spent"] == {"tuned": [0], "chosen": [], "tested": []}
    assert rows["small@2"]["started"] == "yes"
    assert rows["demo"]["seeds spent"] == {}
    assert main(["list", "sweeps"]) == 0
    assert "tuned 0; chosen 1001, 1002; tested 1 to 3" in " ".join(capsys.readouterr().out.split())


def test_plan_report_bundle_and_workers_have_the_seeds_of_the_sweep(store, build, tmp_path, monkeypatch):
    monkeypatch.setattr(dry_run, "_measure_trial", lambda *words: None)
    told = "An earlier sweep of this storage, small@1, trains the same model on the same data."
    storage, first = open_storage(storage_url()), build(arms=("pre",))
    simulate(first, LOSSES, storage, 0)
    later = build("winner", arms=("pre",), search={"optimizer.lr": [3e-3]})
    for spec, fresh in ((later, False), (first, True)):  # before it begins
        plan = dry_run.plan(spec, 1, None, fresh)
        assert told in plan
        assert "on the fresh seeds 2001, 2002, 2003" in plan
    assert told not in dry_run.plan(first, 1, None)  # which goes on
    open_sweep(later, storage_url(), False, None)
    assert open_queue("winner", storage_url())[0].spec.fresh_seeds() == [2001, 2002, 2003]
    assert find_seeds(simulate(later, LOSSES, storage), "confirmation") == [2001, 2002, 2003]
    assert "fresh seeds 2001, 2002, 2003" in dry_run.plan(later, 1, None)
    assert told in report("winner", write=False).verdict
    published = publish(["winner"], tmp_path / "bundle").bundle.sweeps[0]
    assert Sweep.model_validate(published.spec).first_seed == 2001
    assert told in published.verdict.text


def test_a_sweep_goes_on_with_its_seeds_though_a_later_one_has_begun(build):
    storage = optuna.storages.InMemoryStorage()
    simulate(build(), LOSSES, storage)
    simulate(build("other"), LOSSES, storage, 0)
    more = build(confirm={"seeds": 5})
    assert find_seeds(simulate(more, LOSSES, storage), "confirmation") == [1, 2, 3, 4, 5]
    assert simulate(build("third"), LOSSES, storage, 0).spec.first_seed == 4001


def test_arms_are_not_taken_out_of_a_sweep_that_goes_on(build):
    storage = optuna.storages.InMemoryStorage()
    simulate(build(), LOSSES, storage, 0)
    with pytest.raises(SweepError, match=r"(?s)arms\.lns\.norm: lns -> \(not set\).*Restore it to go on"):
        simulate(build(arms=("pre", "post")), LOSSES, storage, 0)


def test_sizes_that_are_taken_out_of_a_file_stay_in_the_family(build):
    storage = optuna.storages.InMemoryStorage()
    assert [
        simulate(build(**family), LOSSES, storage, 0).spec.family for family in ({"family": 4}, {}, {"family": 6})
    ] == [4, 4, 6]


def test_of_two_that_begin_at_the_same_moment_each_has_seeds_of_its_own(store, build, monkeypatch):
    lock, queues = preparation.do_locked, []

    def lock_after_the_other(storage, step):
        monkeypatch.setattr(preparation, "do_locked", lock)
        queues.append(open_sweep(build("other"), storage_url(), False, None)[0])
        return lock(storage, step)

    monkeypatch.setattr(preparation, "do_locked", lock_after_the_other)
    queues.append(open_sweep(build(), storage_url(), False, None)[0])
    assert [queue.spec.first_seed for queue in queues] == [1, 2001]
    assert [read_sweep(name).spec.first_seed for name in ("other", "small")] == [1, 2001]


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_many_that_begin_at_once_in_threads_share_no_seed(kind, tmp_path, build):
    url = {"sqlite": f"sqlite:///{tmp_path / 'o.db'}", "journal": f"journal://{tmp_path / 'journal'}"}[kind]
    open_storage(url)
    names, start = [f"s{i}" for i in range(4)], threading.Barrier(4)

    def begin(name):
        spec, storage = build(name), open_storage(url)
        start.wait()
        simulate(spec, LOSSES, storage, 0)

    threads = [threading.Thread(target=begin, args=[name]) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(read_sweep(name, url).spec.first_seed for name in names) == [1, 2001, 4001, 6001]


def test_a_sweep_whose_process_was_killed_while_its_studies_were_made_keeps_its_seeds(store, build):
    """Also those of arms that it had no study of yet."""
    spec = build()
    study = optuna.create_study(storage=storage_url(), study_name="small@1/pre")
    study.set_user_attr(SPENT, {"tuned": []})  # without the file it has not begun
    simulate(build("other"), LOSSES, open_storage(storage_url()), 0)
    simulate(spec, LOSSES, open_storage(storage_url()), 0)
    for arm in ("post", "lns"):
        optuna.delete_study(study_name=f"small@1/{arm}", storage=storage_url())
    third = simulate(build("third", arms=("post", "lns")), LOSSES, open_storage(storage_url()), 0)
    assert [read_sweep(name).spec.first_seed for name in ("other", "small", "third")] == [1, 2001, 4001]
    assert third.spec.first_seed == 4001


@pytest.mark.parametrize(
    ("value", "told"),
    [(None, "is missing"), ('{"first": 1}', "is damaged"), ('"no table"', "is damaged"), ("{", "is damaged")],
)
def test_a_store_without_its_table_of_seeds_is_told_in_a_sentence(value, told, store, build, capsys, write_sweep):
    simulate(build(), LOSSES, open_storage(storage_url()), 0)
    with sqlite3.connect(store / "optuna.db") as database:
        where = "WHERE key = 'seeds' AND study_id = 1"
        if value is None:
            database.execute(f"DELETE FROM study_user_attributes {where}")
        else:
            database.execute(f"UPDATE study_user_attributes SET value_json = ? {where}", [value])
    tree = build("winner").to_tree()
    for words in (["sweep", str(write_sweep(tree))], ["list", "sweeps"]):
        assert main(words) == 2
        error = " ".join(capsys.readouterr().err.split())
        assert told in error
        if value != "{":  # which Optuna itself cannot read
            assert "The attribute 'seeds' of the study small@1/pre" in error
            assert "begin in another store (ABLATE_STORE)" in error
    if value == "{":
        return
    with pytest.raises(StoreError, match=told):
        list_spent(storage_url())
    simulate(build(), LOSSES, open_storage(storage_url()), 0)  # which goes on, and writes them down
    assert list_spent(storage_url())["small@1"] == {"tuned": [0], "chosen": [], "tested": []}
    assert simulate(build("winner"), LOSSES, open_storage(storage_url()), 0).spec.first_seed == 2001
