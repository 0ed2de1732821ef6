"""Runs of somebody else's LightningModule: its arguments, its length, how it ends, and how it goes on."""

import sys

import pytest
import torch

from ablate import tracking
from ablate.config.errors import ChangedInputsError, RunFailed
from ablate.experiment.tree import build_experiment
from ablate.training import lightning_modules
from ablate.training.external import run_external
from ablate.training.procedures import Hooks, Place
from ablate.training.runs import CHECKPOINT, run_folder

LINE = {"module": "lit_project.models.Line", "data": "lit_project.data.Numbers"}
OFTEN = {"val_check_interval": 2, "check_val_every_n_epoch": None}
DIGITS = {
    "module": "lit_project.models.DigitsLitModule",
    "data": "lit_project.data.DigitsDataModule",
    "net": {"class_path": "lit_project.models.Net", "init_args": {"width": 4}},
    "optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.01}},
}


def experiment(**fields):
    return build_experiment({"kind": "lightning", "steps": 5, **LINE, **fields})


def check(**fields):
    return " | ".join(map(str, lightning_modules.DRIVER.check(experiment(**fields))))


@pytest.fixture
def run(store):
    """run(**fields): the result of a run, and step -> the values that were reported."""

    def start(metrics=("distance",), decide=None, asked_to_stop=None, run_id=None, **fields):
        seen, start.begun = {}, []

        def note(step, values):
            seen[step] = dict(values)
            return decide is None or decide(step, values)

        hooks = Hooks(
            lambda run_id, *rest: start.begun.append(run_id), lambda *given: None, note, asked_to_stop, metrics=metrics
        )
        return run_external(experiment(**fields), Place(run_id=run_id), hooks), seen

    return start


@pytest.mark.parametrize(
    ("trainer", "steps"),
    [
        ({}, [3, 5]),  # the epochs of three batches, and the end
        (OFTEN, [2, 4, 5]),
        ({"check_val_every_n_epoch": 4}, [5]),
        ({"accumulate_grad_batches": 3}, [1, 2, 3, 4, 5]),
        ({"limit_val_batches": 1, "val_check_interval": 5, "check_val_every_n_epoch": None}, [5]),
    ],
)
def test_a_run_has_exactly_its_steps_and_is_validated_after_the_last(run, trainer, steps):
    result, seen = run(trainer=trainer, seed=3)
    assert (result.status, result.step) == ("completed", 5)
    assert [*seen] == steps
    for step, values in seen.items():  # each step halves the distance
        assert values["distance"] == pytest.approx(0.5**step)
    assert result.metrics["distance"] == pytest.approx(0.5**5)
    assert result.metrics["batches"] == (1 if "limit_val_batches" in trainer else 3)
    history = tracking.client().get_metric_history(result.run_id, "distance")
    assert {point.step: point.value for point in history} == pytest.approx({s: 0.5**s for s in steps})
    found = tracking.client().get_run(result.run_id).data
    assert (found.tags["ablate.seed"], found.params["module"]) == ("3", "lit_project.models.Line")


def test_the_seed_is_set_before_module_and_data_are_built(run):
    def value(seed):
        result, _ = run(noise=1.0, lr=0.0, seed=seed)
        return result.metrics["distance"]

    assert value(5) == value(5) != value(6)
    torch.manual_seed(5)
    expected = abs(torch.randn(()).item() - 1)
    assert value(5) == pytest.approx(expected)


def test_a_module_of_the_hydra_template_trains_as_it_is(run):
    schedule = {"class_path": "torch.optim.lr_scheduler.ReduceLROnPlateau", "init_args": {"mode": "min"}}
    first, _ = run(("val/acc_best",), **DIGITS, scheduler=schedule, steps=30, train_val_split=[40, 24])
    assert first.status == "completed"
    assert {"train/loss", "val/loss", "val/acc", "val/acc_best"} <= first.metrics.keys()
    assert first.facts["ablate.parameters"] == 8 * 4 + 4 + 4 * 2 + 2
    assert first.metrics["val/acc_best"] > 0.5
    other, _ = run(("val/loss",), **DIGITS, scheduler=None, batch_size=4, steps=12)
    assert other.step == 12
    checkpoint = torch.load(run_folder(first.run_id) / CHECKPOINT, weights_only=False)
    assert checkpoint["hyper_parameters"]["optimizer"].func is torch.optim.Adam


@pytest.mark.parametrize("data", ["Tokens", "connected_tokens"])
def test_a_module_of_litgpt_trains_as_it_is(run, data):
    fields = {"module": "lit_project.models.LitLLM", "data": f"lit_project.data.{data}", "checkpoint_dir": "x"}
    result, seen = run(("validation_loss",), **fields, **{"for_data.seed": 7}, steps=11)
    assert [*seen][-1] == 11
    assert result.metrics["setups"] == 1  # a second would throw away what it has learned
    assert result.metrics["validation_loss"] < seen[min(seen)]["validation_loss"]


def test_pytorch_lightning_trains_its_own_modules(run, monkeypatch, tmp_path):
    (tmp_path / "old_style.py").write_text(
        "import pytorch_lightning, torch\n"
        "class Old(pytorch_lightning.LightningModule):\n"
        "    def __init__(self):\n        super().__init__()\n        self.w = torch.nn.Parameter(torch.zeros(()))\n"
        "    def training_step(self, batch, i):\n        self.log('loss', self.w ** 2)\n        return self.w ** 2\n"
        "    def train_dataloader(self):\n        return [1, 2, 3]\n"
        "    def configure_optimizers(self):\n        return torch.optim.SGD(self.parameters(), lr=0.1)\n"
    )
    monkeypatch.chdir(tmp_path)
    result, seen = run(("loss",), module="old_style.Old", data=None)
    assert (result.status, result.metrics, [*seen]) == ("completed", {"loss": 0.0}, [5])


def test_without_a_validation_the_last_value_of_training_counts(run):
    fields = {**DIGITS, "data": "lit_project.data.DigitsDataModule", "trainer": {"limit_val_batches": 0}}
    result, seen = run(("train/loss",), **fields)
    assert [*seen] == [5]
    assert result.metrics.keys() == {"train/loss"}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"fail": "nan"}, "distance nan at step 4"),
        ({"fail": "inf"}, "distance inf at step 4"),
        ({"lr": 1e38, "metrics": ("batches",)}, "a weight that is not finite at step 2"),
    ],
)
def test_a_value_or_weight_that_is_not_finite_is_a_divergence(run, fields, reason):
    result, seen = run(**fields, trainer=OFTEN)
    assert (result.status, result.reason) == ("diverged", reason)
    assert result.step < 5
    assert tracking.client().get_run(result.run_id).data.tags["ablate.status"] == "diverged"
    assert all(value == value for values in seen.values() for value in values.values())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"metrics": ("distanse",)}, r"self\.log gave no distanse\. It gave: distance, batches\. Did you mean dista"),
        ({"fail": "stop"}, r"it ended after 3 of 5 steps, by a callback, the module or empty data"),
        ({"module": "lit_project.models.build_nothing", "data": None}, "made a Linear, which is no LightningModule"),
        ({"count": 0}, "after 0 of 5 steps"),
    ],
)
def test_a_run_of_another_length_or_without_a_value_fails(run, fields, message):
    with pytest.raises(RunFailed, match=message):
        run(**fields)


def test_an_error_of_the_module_is_told_as_it_is(run):
    with pytest.raises(ValueError, match="no luck"):
        run(fail="crash")
    (run_id,) = run.begun
    assert tracking.client().get_run(run_id).data.tags["ablate.status"] == "failed"
    assert lightning_modules.DRIVER.spoils


def test_a_pruned_run_ends_at_its_validation(run):
    result, _ = run(decide=lambda step, values: step < 4, trainer=OFTEN)
    assert (result.status, result.reason, result.step) == ("pruned", "pruned at step 4", 4)
    assert result.metrics["distance"] == pytest.approx(0.5**4)


def test_a_stopped_run_goes_on_from_its_checkpoint(run):
    asked = iter([False, False, True])
    first, seen = run(asked_to_stop=lambda: next(asked), trainer=OFTEN)
    assert (first.status, first.reason, [*seen]) == ("interrupted", "stopped at step 3", [2])
    second, seen = run(run_id=first.run_id, trainer=OFTEN)
    assert (second.status, second.step, second.run_id) == ("completed", 5, first.run_id)
    assert second.metrics["distance"] == pytest.approx(0.5**5)  # and not of five more steps
    assert [*seen] == [4, 5]
    again, _ = run(run_id=first.run_id, trainer=OFTEN)  # killed after its last step, and before that was written down
    assert again.metrics == second.metrics


def test_code_that_is_not_installed_is_hashed_without_being_imported(store, monkeypatch, tmp_path):
    (tmp_path / "unseen").mkdir()
    file = tmp_path / "unseen" / "models.py"
    file.write_text("raise SystemExit('imported')")
    (tmp_path / "single.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    net = {"class_path": "single.Net"}
    named = experiment(module="unseen.models.Net", data="torch.Tensor", x=[{"y": net}], trainer={"callbacks": [net]})
    before = lightning_modules.DRIVER.fingerprint(named)
    assert before.keys() == {"package unseen", "file single.py"}
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [str(tmp_path), *sys.path])  # as of a process that has imported from there
        assert lightning_modules.DRIVER.fingerprint(named) == before
    file.write_text("raise SystemExit('changed')")
    after = lightning_modules.DRIVER.fingerprint(named)
    assert after["package unseen"] != before["package unseen"]
    assert after["file single.py"] == before["file single.py"]
    assert not {"unseen", "single"} & sys.modules.keys()
    monkeypatch.chdir(store)
    with pytest.raises(ChangedInputsError, match=r"unseen of unseen\.models\.Net is neither in .* nor inst"):
        lightning_modules.DRIVER.fingerprint(named)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"module": "lit_project.models.Lin"}, "module: lit_project.models has no class or function Lin. Did"),
        ({"module": "lit_projekt.models.Line"}, "module: there is no module lit_projekt, neither in "),
        ({"module": "lit_project.model.Line"}, "module: there is no module lit_project.model, neither in "),
        ({"module": "torch.nn.Linear"}, "module: is no LightningModule of lightning or pytorch_lightning"),
        ({**DIGITS, "nett": 1}, "nett: is no argument of lit_project.models.DigitsLitModule or lit_"),
        ({**DIGITS, "nett": 1}, "Did you mean net?"),
        ({**DIGITS, "stepz": 1}, "Did you mean steps?"),
        ({"module": DIGITS["module"]}, "net: is an argument that DigitsLitModule needs"),
        ({**DIGITS, "optimizer": {"class_path": "torch.optim.Adan"}}, "optimizer.class_path: torch.optim has no cl"),
        ({**DIGITS, "optimizer": {**DIGITS["optimizer"], "lr": 1}}, "optimizer.lr: is not accepted beside class_path"),
        (
            {**DIGITS, "net": {"class_path": "lit_project.models.Net", "init_args": {"widht": 3}}},
            "net.init_args.widht: is no argument of Net. Accepted: input_size, width, output_size. Did you mean width?",
        ),
        ({**DIGITS, "net": {"_target_": "x.Net"}}, "net._target_: has no class_path beside it: an object is {"),
        ({**DIGITS, "net": {"init_args": {}}}, "net.init_args: has no class_path beside it"),
        ({"data": None, "for_data": {"count": 3}}, "for_data: needs data, which the file does not name"),
        ({"for_data": {"cuont": 3}}, "for_data.cuont: is no argument of Numbers"),
        ({"trainer": {"precison": 32}}, "trainer.precison: is no argument of Lightning's Trainer. Did you mean prec"),
        ({"trainer": {"accelerator": "abacus"}}, "trainer: Lightning's Trainer refuses it: ValueError"),
        ({"trainer": {"callbacks": [{"class_path": "x.Y"}]}}, "trainer.callbacks.0.class_path: there is no module x"),
    ],
)  # fmt: skip
def test_what_cannot_be_built_is_found_before_the_first_run(fields, problem):
    assert problem in check(**fields)


@pytest.mark.parametrize(
    "fields",
    [{}, {"anything": 1}, DIGITS, {"module": "lit_project.models.build_line", "lr": 0.1},
     {"trainer": {"callbacks": [{"class_path": "lightning.pytorch.callbacks.Timer"}], "precision": "32-true"}}],
)  # fmt: skip
def test_what_can_be_built_has_no_problem(fields):
    assert check(**fields) == ""


def test_an_argument_of_both_goes_to_both_unless_it_is_of_one():
    shared = experiment(data="lit_project.data.connected_tokens", batch_size=8, lr=1, **{"for_module.batch_size": 3})
    given, problems = lightning_modules._share_settings(shared)
    assert given == {"module": {"lr": 1, "batch_size": 3}, "data": {"batch_size": 8}}
    assert not problems
