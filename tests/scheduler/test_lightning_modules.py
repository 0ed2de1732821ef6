"""Sweeps over somebody else's LightningModule."""

import sys

import pytest
from scheduler.small import run_here, stop_when, table

import ablate
from ablate.config.errors import ConfigError, SweepError
from ablate.reports.findings import list_cautions
from ablate.scheduler.preparation import begin_session
from ablate.scheduler.storage import storage_url
from ablate.scheduler.worker import Worker
from ablate.sweeps.comparison import compare_record
from ablate.sweeps.runs import FRESH
from ablate.sweeps.spec.sweep import Sweep
from ablate.training.lightning_modules import Watch


def lines(name="lines", experiment=(), **more):
    """A sweep whose values are known: a step brings the weight nearer to 1 by the factor 1 - lr, from 0 or from 0.5."""
    tree = {
        "name": name,
        "experiment": {
            "kind": "lightning",
            "module": "lit_project.models.Line",
            "data": "lit_project.data.Numbers",
            "settings": {"noise": 0.01},
            "steps": 4,
            **dict(experiment),
        },
        "arms": {"far": {"start": 0.0}, "near": {"start": 0.5}},
        "search": {"lr": [0.1, 0.8, 1.5]},
        "sampler": "grid",
        "objective": {"metric": "distance", "direction": "minimize"},
        "confirm": {"seeds": 4, "candidates": 1},
        "challenge": {"trials": 0, "extend": 0},
    }
    return Sweep.from_tree({**tree, **more})


def test_a_sweep_has_the_verdict_of_its_values(store):
    record = run_here(lines())
    for arm, start in (("far", 0.0), ("near", 0.5)):
        assert record.settled(arm).params == {"lr": 0.8}
        for outcome in record.runs.outcomes(arm, FRESH).values():
            assert outcome.value == pytest.approx((1 - start) * 0.2**4, abs=1e-4)
    assert compare_record(record)["near"].kind == "better"
    run = record.search("near")[0]
    assert [*run.curve] == [3, 4]
    text = str(ablate.report(record).document)
    assert "How the runs were made" in text
    assert "not bit for bit" in text
    assert "trains for 4 steps by a Lightning Trainer" in text


def test_a_module_that_ignores_its_seed_is_told_in_its_own_words(store):
    spec = lines("deaf", {"settings": {"noise": 0.0}}, search={"lr": [0.5]}, confirm={"seeds": 2})
    (told,) = list_cautions(run_here(spec))
    assert told.startswith("The value is the same to the last digit on all seeds of far (3 seeds) and near (3 seeds)")
    assert told.endswith("look for weights that are loaded, and for seeds and generators that the code makes.")
    assert "command" not in told


def test_a_stopped_sweep_goes_on_to_the_same_table(store, monkeypatch):
    spec = lines("stopped", search={"lr": [0.5]}, confirm={"seeds": 1})
    with monkeypatch.context() as patch:
        stop_when(patch, lambda task: task.run.stage == FRESH)
        with pytest.raises(KeyboardInterrupt):
            run_here(spec)
    starts = []
    monkeypatch.setattr(Watch, "on_train_start", lambda self, trainer, module: starts.append(trainer.global_step))
    record = run_here(spec)
    assert starts[0] == 1  # and not 0
    assert table(record) == table(run_here(lines("whole", search={"lr": [0.5]}, confirm={"seeds": 1})))


def test_all_mistakes_are_told_at_their_places(store):
    spec = lines(
        "wrong",
        {"module": "lit_project.models.build_line", "settings": {"nose": 1}, "trainer": {"precison": 16}},
        search={"lrr": [0.1, 0.2]},
    )
    with pytest.raises(ConfigError) as error:
        run_here(spec)
    for text in (
        "experiment.settings.nose: is no argument of lit_project.models.build_line or lit_project.data.Numbers",
        "arms.far.start: is no argument of",
        "search.lrr: is no argument of",
        "experiment.lr: is an argument that build_line needs",
        "experiment.trainer.precison: is no argument of Lightning's Trainer",
    ):
        assert text in str(error.value)


@pytest.fixture
def project(store, tmp_path, monkeypatch):
    """project(text): a package of the user's own in the current folder; its name."""
    monkeypatch.chdir(tmp_path)

    def write(text=""):
        (tmp_path / "of_mine").mkdir(exist_ok=True)
        (tmp_path / "of_mine" / "models.py").write_text(f"from lit_project.models import Line as Mine\n{text}")

    yield write
    for name in ("of_mine", "of_mine.models"):
        sys.modules.pop(name, None)


MINE = {"module": "of_mine.models.Mine"}


def test_changed_code_is_not_continued(project):
    project()
    spec = lines("edited", MINE, search={"lr": [0.5]}, confirm={"seeds": 1})
    run_here(spec)
    project("x = 1")
    with pytest.raises(SweepError, match=r"edited was started with another .*\n.*package of_mine: SHA"):
        run_here(spec)


def test_a_worker_imports_no_code_that_the_sweep_began_without(project, tmp_path, monkeypatch):
    """As of a storage that somebody else has written to."""
    project()
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    spec = lines("foreign", search={"lr": [0.5]}, confirm={"seeds": 1})
    queue, _ = begin_session(spec, storage_url(None), False, 1)
    worker = Worker(queue.full_name, storage_url(None))
    layers = Sweep.layers
    monkeypatch.setattr(Sweep, "layers", lambda self, arm: (*layers(self, arm), {"module": "evil.Net"}))
    with pytest.raises(SweepError, match=r"foreign names file evil\.py, which the command that began it has not seen"):
        worker.run()
    assert "evil" not in sys.modules
