"""One run from configuration to result: what it measures, how it ends early, and that a continued run is the same
run."""

import json
import math
import os
import shutil
import signal

import pytest
import torch
import torch.nn.functional as F
from stored_facts import read_facts
from torch._dynamo.utils import counters

from ablate import tracking
from ablate.config.errors import AblateError
from ablate.data import SequentialBatches
from ablate.experiment.tree import Experiment
from ablate.parallel import compiling
from ablate.training.callbacks import Validations
from ablate.training.procedures import Hooks, Place
from ablate.training.runs import load_experiment, shorten_settings
from ablate.training.train import train


def experiment(settings, **more):
    return Experiment.from_mapping(settings, {key.replace("__", "."): value for key, value in more.items()})


def history(run_id, key):
    return [(m.step, m.value) for m in tracking.client().get_metric_history(run_id, key)]


def weights(store, run_id):
    return torch.load(store / "runs" / run_id / "last.ckpt", weights_only=True)


def stop_at(step):
    calls = []

    def asked():
        calls.append(None)
        return len(calls) == step

    return asked


def test_the_loss_falls_and_the_result_says_how_it_went(store, family_settings):
    steps = {
        "trainer__max_steps": 80,
        "trainer__batch_size": 32,
        "data__val_fraction": 0.2,
        "trainer__val_samples": "all",
    }
    result = train(experiment(family_settings, **steps, optimizer__lr=5e-3))
    losses = [value for _, value in history(result.run_id, "val/loss")]
    assert (result.status, result.step) == ("completed", 80)
    assert losses[-1] < 0.95 * losses[0]
    assert result.metrics["val/loss"] == history(result.run_id, "val/loss")[-1][1]


@pytest.mark.parametrize("samples", ["all", 11])
def test_validation_loss_is_the_mean_over_all_tokens_and_perplexity_its_exponential(store, tiny_settings, samples):
    # the last validation batch is smaller than the others
    run = experiment(tiny_settings, trainer__batch_size=8, trainer__val_samples=samples, data__val_fraction=0.002)
    result = train(run)
    corpus = run.data.load(tracking.cache_folder())
    model = run.model.build(run.norm, run.init, corpus.classes, corpus.shape)
    state = weights(store, result.run_id)["state_dict"]
    model.load_state_dict(
        {key.removeprefix("model."): value for key, value in state.items() if key.startswith("model.")}
    )
    size = len(corpus.val)
    chosen = range(size) if samples == "all" else [int(size * place / samples) for place in range(samples)]
    inputs, targets = corpus.val.__getitems__(chosen)
    assert len({len(batch) for batch in SequentialBatches(len(chosen), 8)}) > 1
    with torch.no_grad():
        expected = F.cross_entropy(model(inputs).double().flatten(0, 1), targets.flatten()).item()
    assert result.metrics["val/loss"] == pytest.approx(expected, rel=1e-6)
    assert result.metrics["val/perplexity"] == pytest.approx(math.exp(expected), rel=1e-4)
    assert result.metrics["val/bits_per_byte"] == pytest.approx(expected / math.log(2), rel=1e-6)


def test_curves_are_logged_against_tokens_and_the_learning_rate_is_that_of_the_update(store, tiny_settings):
    run = experiment(tiny_settings, optimizer__lr=1e-2, schedule__warmup_steps=4, trainer__log_every_n_steps=1)
    result = train(run)
    lr = history(result.run_id, "train/lr")
    tokens = 4 * 32
    assert [step for step, _ in lr] == [tokens * (k + 1) for k in range(12)]
    expected = [run.optimizer.lr * run.schedule.factor(k, 12) for k in range(12)]
    assert [value for _, value in lr] == pytest.approx(expected)
    assert all(value > 0 for _, value in history(result.run_id, "train/tokens_per_second"))


def test_the_gradient_norm_is_the_one_before_clipping(store, tiny_settings):
    free = train(experiment(tiny_settings, trainer__max_steps=1, trainer__val_check_interval=1))
    clipped = train(
        experiment(tiny_settings, trainer__max_steps=1, trainer__val_check_interval=1, trainer__gradient_clip_val=1e-3)
    )
    norms = [history(r.run_id, "train/grad_norm")[0][1] for r in (free, clipped)]
    assert norms[0] == norms[1] > 1e-3


def test_accumulating_gradients_gives_the_update_of_the_whole_batch(store, tiny_settings):
    whole, parts = (train(experiment(tiny_settings, trainer__accumulate=n)) for n in (1, 2))
    assert parts.step == whole.step
    assert parts.metrics["val/loss"] == pytest.approx(whole.metrics["val/loss"], rel=1e-5)


def test_sigterm_in_a_validation_stops_after_it_with_a_checkpoint(store, tiny_settings, monkeypatch):
    """Lightning would leave it in its middle."""
    signals = []

    def send(self, trainer, *given):
        if trainer.global_step == 4 and not signals:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    plain = train(Experiment.from_mapping(tiny_settings))
    monkeypatch.setattr(Validations, "on_validation_batch_start", send)
    try:
        stopped = train(Experiment.from_mapping(tiny_settings), hooks=Hooks(asked_to_stop=lambda: bool(signals)))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (stopped.status, stopped.step) == ("interrupted", 4)
    whole = train(load_experiment(stopped.run_id, {}), Place(run_id=stopped.run_id))
    assert whole.metrics == plain.metrics


@pytest.mark.parametrize(("at", "accumulate"), [(1, 1), (6, 2), (8, 1)])  # first update, between validations, at one
def test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one(store, family_settings, at, accumulate):
    drop = {"model__drop_path": 0.3} if family_settings["model"].get("kind") == "vit" else {}
    run = experiment(family_settings, trainer__accumulate=accumulate, **drop)
    whole = train(run)
    part = train(run, hooks=Hooks(asked_to_stop=stop_at(at)))
    assert (part.status, part.step) == ("interrupted", at)
    rest = train(load_experiment(part.run_id, {}), Place(run_id=part.run_id))
    assert rest.run_id == part.run_id
    assert rest.metrics == whole.metrics
    a, b = weights(store, whole.run_id), weights(store, rest.run_id)
    assert all(torch.equal(a["state_dict"][key], b["state_dict"][key]) for key in a["state_dict"])
    for key in ("train/loss", "train/lr", "train/grad_norm", "val/loss", tracking.STEP_METRIC):
        assert history(rest.run_id, key) == history(whole.run_id, key)


def test_what_grows_with_the_updates_counts_them_also_in_a_resumed_run(store, tiny_settings):
    """ProRes: t updates after the start the branches of layer l count min(t / (T l), 1), with several batches each."""
    run = experiment(tiny_settings, norm={"kind": "prores", "updates": 10}, trainer__accumulate=2)
    part = train(run, hooks=Hooks(asked_to_stop=stop_at(5)))

    def factors():
        state = weights(store, part.run_id)["state_dict"]
        return [state[f"model.layers.{layer}.attn_residual.drop.factor"].item() for layer in (0, 1)]

    assert factors() == pytest.approx([0.5, 0.25])
    train(load_experiment(part.run_id, {}), Place(run_id=part.run_id))
    assert factors() == pytest.approx([1, 0.6])


def test_weights_of_length_1_have_it_after_every_update_also_in_a_resumed_run(store, tiny_settings, begun):
    """nGPT: rows of the width have length 1, columns of the matrices that write to the stream. It learns."""
    run = experiment(tiny_settings, norm="ngpt", optimizer__lr=0.1, trainer__max_steps=20, trainer__accumulate=2)
    part = train(run, hooks=Hooks(asked_to_stop=stop_at(5)))
    stored = [weights(store, part.run_id)["state_dict"]]
    rest = train(load_experiment(part.run_id, {}), Place(run_id=part.run_id))
    stored.append(weights(store, part.run_id)["state_dict"])
    for state in [*begun, *stored]:
        matrices = {name: value for name, value in state.items() if value.ndim == 2}
        assert len(matrices) == 2 + 4 * 2
        for name, value in matrices.items():
            vectors = value.T if name.endswith(("o_proj.weight", "down_proj.weight")) else value
            torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(vectors)), msg=name)
    assert rest.metrics["val/loss"] < 0.7 * math.log(256)


def test_a_run_killed_after_a_checkpoint_goes_on_from_it_without_logging_a_step_twice(store, tiny_settings):
    run = experiment(tiny_settings)
    whole = train(run)

    class Killed(BaseException):
        pass

    def die(step, loss):
        if step == 10:
            raise Killed

    place = Place(name="killed")
    started = []
    with pytest.raises(Killed):
        train(run, place, Hooks(started=lambda run_id, *_: started.append(run_id), progress=die))
    assert tracking.client().get_run(started[0]).info.status == "FAILED"
    rest = train(run, Place(run_id=started[0]))
    assert rest.metrics == whole.metrics
    assert history(started[0], "train/loss") == history(whole.run_id, "train/loss")
    assert tracking.client().get_run(started[0]).info.status == "FINISHED"


def test_a_run_that_explodes_is_recorded_as_diverged_with_its_step(store, tiny_settings):
    result = train(experiment(tiny_settings, optimizer__lr=1e4, schedule__warmup_steps=0, trainer__max_steps=50))
    tags = tracking.client().get_run(result.run_id).data.tags
    assert result.status == "diverged"
    assert result.step < 50
    assert f"at update {result.step}" in result.reason
    assert tags["ablate.status"] == "diverged"
    assert tags["ablate.reason"] == result.reason
    assert tracking.client().get_run(result.run_id).info.status == "FINISHED"


def test_a_pruned_run_is_finished_and_tagged(store, tiny_settings):
    result = train(experiment(tiny_settings), hooks=Hooks(decide=lambda step, metrics: step < 8))
    run = tracking.client().get_run(result.run_id)
    assert (result.status, result.step) == ("pruned", 8)
    assert (run.info.status, run.data.tags["ablate.status"]) == ("FINISHED", "pruned")


def test_a_run_cannot_be_pruned_at_its_last_update(store, tiny_settings):
    result = train(experiment(tiny_settings), hooks=Hooks(decide=lambda step, metrics: step < 12))
    assert result.status == "completed"


def test_there_is_a_validation_after_the_last_update_whatever_the_interval(store, tiny_settings):
    result = train(experiment(tiny_settings, trainer__val_check_interval=5))
    steps = [value for _, value in history(result.run_id, tracking.STEP_METRIC)]
    assert steps[-1] == 12
    assert [step // 128 for step, _ in history(result.run_id, "val/loss")] == [5, 10, 12]


def test_a_run_stores_what_is_needed_to_run_it_again(store, tiny_settings):
    run = experiment(tiny_settings, norm="mix", norm__alpha=0.5)
    result = train(run, hooks=Hooks(asked_to_stop=stop_at(2)))
    again = load_experiment(result.run_id, {})
    data = tracking.client().get_run(result.run_id).data
    assert again == run
    assert (data.params["norm.alpha"], data.params["norm.kind"]) == ("0.5", "mix")
    facts = read_facts(result.run_id)
    assert len(facts["ablate.corpus"]) == 64
    assert {"ablate.hardware", "ablate.precision", "version.torch"} <= set(facts)


def test_a_run_has_few_tags_and_its_data_as_an_input_once(store, tiny_settings):
    run = experiment(tiny_settings, norm="mix", norm__alpha=0.5)
    stopped = train(run, hooks=Hooks(asked_to_stop=stop_at(2)))
    result = train(load_experiment(stopped.run_id, {}), Place(run_id=stopped.run_id))
    stored = tracking.client().get_run(result.run_id)
    shown = {key for key in stored.data.tags if not key.startswith("mlflow.")}
    assert shown == {f"ablate.{key}" for key in (
        "status", "seed", "loss", "hardware", "precision", "parameters", "checkpoint"
    )}  # fmt: skip
    assert stored.data.tags["ablate.loss"] == f"{result.metrics['val/loss']:.3f}"
    (dataset,) = [one.dataset for one in stored.inputs.dataset_inputs]
    fingerprint = read_facts(result.run_id)["ablate.corpus"]
    assert (dataset.name, json.loads(dataset.source)["fingerprint"]) == ("topics", fingerprint)
    assert fingerprint.startswith(dataset.digest)


def test_compare_opens_on_rate_alpha_and_the_validation_loss(store, tiny_settings):
    """MLflow takes the first three parameters in the alphabet that differ, and the first metric that was logged."""
    result = train(experiment(tiny_settings, norm="mix", norm__alpha=0.5), Place(tags={"ablate.arm": "mix"}))
    data = tracking.client().get_run(result.run_id).data
    assert sorted(data.params)[:3] == ["LR", "alpha", "arm"]
    assert (data.params["alpha"], data.params["arm"], data.params["norm"]) == ("0.5", "mix", "mix")
    assert data.params["LR"] == data.params["optimizer.lr"]
    assert next(iter(data.metrics)) == "val/loss"


def test_compare_draws_a_run_without_an_alpha_at_no_number():
    """Its plot puts a run without a value at the largest number plus 0.01, unless a value is a word."""
    tree = {"model": "llama", "data": "topics"}
    short = {
        kind: shorten_settings(Experiment.from_mapping({**tree, "norm": kind}).flat(), kind) for kind in ("pre", "mix")
    }
    assert (short["pre"]["alpha"], short["mix"]["alpha"]) == ("none", 0.25)
    different = sorted(key for key in short["pre"] if short["pre"][key] != short["mix"][key])
    assert different == ["alpha", "arm", "norm"]  # so that norm.alpha, a number, is not among the first three


def test_finished_and_unknown_runs_are_not_resumed(store, tiny_settings):
    done = train(experiment(tiny_settings, trainer__max_steps=2))
    with pytest.raises(AblateError, match="nothing left to train"):
        load_experiment(done.run_id, {})
    with pytest.raises(AblateError, match="no run nonsense"):
        load_experiment("nonsense", {})
    with pytest.raises(AblateError, match=r"keeps its configuration; remove seed \(it has \d+\)\."):
        load_experiment(done.run_id, {"trainer.num_workers": 1, "seed": 3})


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_both_precisions_give_float32_losses_close_to_each_other(store, tiny_settings, precision):
    exact = train(experiment(tiny_settings, trainer__precision="32-true"))
    result = train(experiment(tiny_settings, trainer__precision=precision))
    assert result.metrics["val/loss"] == pytest.approx(exact.metrics["val/loss"], rel=5e-3)
    assert tracking.client().get_run(result.run_id).data.tags["ablate.precision"] == precision


@pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler on this machine")
def test_compiled_runs_give_the_losses_of_eager_ones_and_the_second_compiles_nothing(store, tiny_settings):
    compiling.forget_programs()
    counters.clear()
    programs = []
    for seed, lr in ((0, 1e-3), (1, 1e-2)):
        more = {"norm": "deepnorm", "seed": seed, "optimizer__lr": lr}
        eager, compiled = (train(experiment(tiny_settings, **more, trainer__compile=how)) for how in (False, True))
        for (_, a), (_, b) in zip(
            history(eager.run_id, "train/loss"), history(compiled.run_id, "train/loss"), strict=True
        ):
            assert b == pytest.approx(a, rel=1e-4)
        assert compiled.metrics["val/loss"] == pytest.approx(eager.metrics["val/loss"], rel=1e-4)
        assert read_facts(compiled.run_id)["ablate.compile"] == "true"
        programs.append(counters["stats"]["unique_graphs"])
    assert programs == [2, 2]  # of a layer, and of head and loss


@pytest.mark.chaos
@pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler on this machine")
def test_a_layer_that_torch_compiles_wrongly_is_refused(store, tiny_settings):
    """torch 2.13: as many tokens in a batch as the model is wide, in bfloat16."""
    more = {"norm": "deepnorm", "model__hidden": 256, "model__heads": 16, "model__layers": 1, "data__seq_len": 64}
    trainer = {"trainer__precision": "bf16-mixed", "trainer__batch_size": 4, "trainer__max_steps": 5}
    refused = ""
    try:
        compiled = train(experiment(tiny_settings, **more, **trainer, trainer__compile=True))
    except AblateError as error:
        refused = str(error)
    if refused:
        assert "torch compiles this model wrongly for this processor" in refused
        return
    eager = train(experiment(tiny_settings, **more, **trainer, trainer__compile=False))
    assert compiled.metrics["val/loss"] == pytest.approx(eager.metrics["val/loss"], rel=1e-3)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_clipping_works_in_every_precision(store, tiny_settings, precision, optimizer):
    result = train(
        experiment(tiny_settings, trainer__precision=precision, optimizer=optimizer, trainer__gradient_clip_val=0.1)
    )
    assert result.status == "completed"
