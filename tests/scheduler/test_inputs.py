"""What a sweep reads besides its file: a change of it between two commands, and while it runs."""

import json

import optuna
import pytest
from run_table import by_arm
from scheduler.small import run_here, stop_when

from ablate.config.errors import ChangedInputsError, SweepError
from ablate.optim.optimizers import optimizers
from ablate.reports.fairness import describe_surroundings
from ablate.scheduler import dry_run
from ablate.scheduler.preparation import open_sweep
from ablate.scheduler.queue import Queue
from ablate.scheduler.storage import read_sweep, storage_url
from ablate.sweeps.records import SETTING
from ablate.training.runs import fingerprint_inputs, list_changed_inputs
from ablate.training.trained import open_trained

CHANGED = r"small was started with another sweep file, plugin, data or[\s\S]*{}[\s\S]*: SHA-256 \w{{64}} -> \w{{64}}"

NOISY = """
from typing import ClassVar, Literal

import numpy as np

from ablate.data import UserDataset, data_kinds

RANDOM = np.random.default_rng()


class Items:
    classes = ("a", "b")

    def __len__(self):
        return 20

    def __getitem__(self, index):
        import torch

        return torch.from_numpy(RANDOM.normal(size=(1, 8, 8)).astype("float32")), index % 2


@data_kinds.register
class Noisy(UserDataset):
    \"\"\"Noise of a generator of its own.\"\"\"

    kind: Literal["noisy"] = "noisy"
    task: ClassVar[str] = "image_classification"

    @property
    def input_shape(self):
        return (1, 8, 8)

    def build(self):
        return Items(), None
"""


@pytest.fixture
def on_files(spec, tiny_settings, corpus):
    """on_files(part=...) -> a sweep of one trial of each arm on the corpus."""
    data = {
        "kind": "text", "files": str(corpus / "train.txt"), "val_files": str(corpus / "val.txt"), "seq_len": 8,
        "tokenizer": str(corpus / "tokenizer.json"),
    }  # fmt: skip
    return lambda **more: spec(experiment={**tiny_settings, "data": data}, budget={"trials": 1}, **more)


def change_tokenizer(file):
    content = json.loads(file.read_text())
    content["model"]["vocab"] |= {"a": 1, "b": 0}
    file.write_text(json.dumps(content))


CHANGES = {
    "data text": lambda folder: (folder / "train.txt").write_text("a c b a c " * 301),
    "val_files": lambda folder: (folder / "val.txt").write_text("c a b " * 101),
    "tokenizer": lambda folder: change_tokenizer(folder / "tokenizer.json"),
}


@pytest.mark.parametrize("changed", CHANGES)
def test_a_sweep_whose_data_has_changed_is_refused_and_fresh_starts_anew(changed, store, on_files, corpus):
    open_sweep(on_files(), storage_url(), False, None)
    open_sweep(on_files(), storage_url(), False, None)
    CHANGES[changed](corpus)
    for start in (
        lambda: open_sweep(on_files(), storage_url(), False, None),
        lambda: dry_run.plan(on_files(), 1, None),
    ):
        with pytest.raises(SweepError, match=CHANGED.format(changed)):
            start()
    assert open_sweep(on_files(), storage_url(), True, None)[0].full_name == "small@2"
    assert open_sweep(on_files(), storage_url(), False, None)[0].full_name == "small@2"
    assert list_changed_inputs(read_sweep("small@1").inputs, read_sweep("small").inputs)


def test_a_sweep_is_not_continued_with_other_defaults(store, spec, monkeypatch):
    open_sweep(spec(), storage_url(), False, None)
    adamw, eps = optimizers["adamw"], optimizers["adamw"].model_fields["eps"]
    try:
        with monkeypatch.context() as patched:
            patched.setattr(eps, "default", 2 * eps.default)
            adamw.model_rebuild(force=True)
            with pytest.raises(SweepError, match=CHANGED.format(r"setting optimizer\.eps")):
                open_sweep(spec(), storage_url(), False, None)
    finally:
        adamw.model_rebuild(force=True)
    assert open_sweep(spec(), storage_url(), False, None)[0].full_name == "small@1"


def test_data_that_changes_while_a_sweep_runs_is_seen_before_the_next_trial(store, on_files, corpus, monkeypatch):
    take = Queue.take

    def change_at_the_second(self):
        task = take(self)
        if task.arm == "mix":
            CHANGES["data text"](corpus)
        return task

    monkeypatch.setattr(Queue, "take", change_at_the_second)
    with pytest.raises(SweepError, match=r"was changed while small runs:\n  data text .* -> \w{64}\nRestore it"):
        run_here(on_files())
    record = read_sweep("small")
    assert [record.search(arm).count_statuses()["completed"] for arm in ("pre", "mix")] == [1, 0]
    assert record.search("mix").count_statuses()["failed"] == 0  # it is free, and no run of it was begun
    assert record.search("mix")[0].run_id is None


@pytest.mark.parametrize("is_known", [True, False])
def test_a_trial_that_was_stopped_is_not_continued_on_other_data(store, on_files, corpus, monkeypatch, is_known):
    """By what the sweep has noted or, where its note says nothing, by what the run has."""
    seen = []
    with monkeypatch.context() as patched:
        stop_when(patched, lambda task: len(seen) == 3 or seen.append(0))
        with pytest.raises(KeyboardInterrupt):
            run_here(on_files())
    CHANGES["data text"](corpus)
    if not is_known:
        for place in ("worker", "preparation"):
            monkeypatch.setattr(f"ablate.scheduler.{place}.list_changed_inputs", lambda *_: [])
    with pytest.raises(
        SweepError if is_known else ChangedInputsError, match=r"What changed:\n  data text .* -> \w{64}"
    ):
        run_here(on_files())
    assert read_sweep("small").search("pre").count_statuses()["failed"] == 0


def test_a_sweep_of_data_that_is_another_each_time_goes_on(store, spec, tiny_settings, registries, tmp_path):
    plugin = tmp_path / "noisy.py"
    plugin.write_text(NOISY)
    settings = {"model": {"kind": "vit", "hidden": 8, "layers": 1, "heads": 1, "patch_size": 4}}
    settings |= {"data": {"kind": "noisy"}, "trainer": {**tiny_settings["trainer"], "max_steps": 2}}
    sweep = spec(experiment=settings, plugins=str(plugin), arms={}, budget={"trials": 1})
    run_here(sweep)
    record = run_here(spec(experiment=settings, plugins=str(plugin), arms={}, budget={"trials": 2}))
    assert [trial.status for trials in by_arm(record).values() for trial in trials] == ["completed"] * 2
    assert all(name.startswith(SETTING) for name in record.inputs)
    assert "All 2 runs used the same hardware, " in " ".join(describe_surroundings(record))


def test_the_data_of_each_searched_value_is_known(store, spec, tiny_settings, corpus):
    other = corpus / "other.txt"
    other.write_text("b b a c " * 300)
    settings = {**tiny_settings, "data": {"kind": "text", "files": str(corpus / "train.txt"), "seq_len": 8}}
    search = {"data.files": [str(corpus / "train.txt"), str(other)]}
    sweep = spec(experiment=settings, arms={}, search=search, sampler="grid")
    open_sweep(sweep, storage_url(), False, None)
    other.write_text("c c a b " * 300)
    with pytest.raises(SweepError, match=CHANGED.format("other")):
        open_sweep(sweep, storage_url(), False, None)


@pytest.mark.addons
def test_a_source_run_whose_weights_have_changed_is_refused(trained, spec, monkeypatch):
    source = trained("llama").run_id
    own = open_trained(source).experiment
    tree = {"model": own.model.model_dump(), "data": own.data.model_dump(), "norm": "pre"}
    sweep = spec(experiment={**tree, "warm_start": {"from": source, "copy": "all"}}, arms={}, budget={"trials": 1})
    open_sweep(sweep, storage_url(), False, None)
    monkeypatch.setattr("ablate.addons.post_training.warm_start.hash_weights", lambda state: "f" * 64)
    with pytest.raises(SweepError, match=CHANGED.format(f"warm_start.from {source}")):
        open_sweep(sweep, storage_url(), False, None)


def test_questions_of_downstream_tasks_are_inputs(store, on_files, tmp_path):
    folder = tmp_path / "questions"
    folder.mkdir()
    (folder / "boolq.jsonl").write_text("{}")
    base = on_files().base("pre")
    evaluated = base.model_copy(
        update={"evaluation": base.evaluation.model_copy(update={"tasks": ("boolq",), "task_data": str(folder)})}
    )
    data = base.data.load(store)
    before = fingerprint_inputs(evaluated, data)
    (folder / "boolq.jsonl").write_text("{ }")
    assert list_changed_inputs(before, fingerprint_inputs(evaluated, data))[0].startswith("evaluation.task_data")


def test_optuna_keeps_what_was_read_with_the_study(store, on_files):
    queue, _ = open_sweep(on_files(), storage_url(), False, None)
    attributes = optuna.load_study(study_name=f"{queue.full_name}/pre", storage=queue.storage).user_attrs
    assert {key.split()[0] for key in attributes["inputs"]} == {"setting", "data", "tokenizer"}
