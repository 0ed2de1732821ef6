"""Two ranks that share a model train what one process trains, and their checkpoints go on anywhere."""

import json
from types import SimpleNamespace
from typing import Literal

import pytest
import torch
from forked import run_ranks
from norms.cases import PROFILED, WIRED
from torch import nn
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

from ablate import tracking
from ablate.config.errors import ConfigError
from ablate.distributed import ranks
from ablate.estimate.memory import Setup
from ablate.experiment.extensions import restrict
from ablate.experiment.tree import Experiment
from ablate.models import models
from ablate.norms import Placement, placements
from ablate.parallel.deferred import Recipes
from ablate.parallel.strategies import (
    Ddp,
    Fsdp,
    average_in_float32,
    leaves_unused,
    must_find_unused,
    precision_policies,
)
from ablate.training.checkpoints import load
from ablate.training.module import TrainingModule
from ablate.training.procedures import Hooks, Place
from ablate.training.runs import load_experiment
from ablate.training.train import train
from ablate.training.trainer import check_ranks

SCRIPT = """
import contextlib, json, sys
from pathlib import Path

from torch.utils._python_dispatch import TorchDispatchMode

from ablate.distributed import groups
from ablate.experiment.tree import Experiment
from ablate.training.runs import load_experiment
from ablate.training.train import Hooks, Place, train

settings = json.loads(Path(sys.argv[1]).read_text())


class Sums(TorchDispatchMode):
    # how often gradients are summed and shared out

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += "reduce_scatter" in str(func)
        return func(*args, **(kwargs or {}))


def stopped_at(step, tree):
    asked = iter(range(1, 1000))
    return train(Experiment.from_mapping(tree), hooks=Hooks(asked_to_stop=lambda: next(asked) == step))


def everything():
    results, counts = {}, {}
    for name, tree in settings["whole"].items():
        with Sums() if name in settings["counted"] else contextlib.nullcontext() as sums:
            results[name] = train(Experiment.from_mapping(tree))
        counts |= {name: sums.count} if sums else {}
    for name in settings["parts"]:
        results[f"{name}, part"] = stopped_at(7, settings["whole"][name])
        again = stopped_at(7, settings["whole"][name])
        results[f"{name}, rest"] = train(load_experiment(again.run_id, {}), Place(run_id=again.run_id))
    for name, (run_id, how) in settings["rests"].items():
        results[name] = train(load_experiment(run_id, how), Place(run_id=run_id))
    told = {name: result.to_dict() for name, result in results.items()}
    Path(sys.argv[2]).write_text(json.dumps({**told, "counts": counts}))
    return 0


with groups.lead() as ending:
    if ending.leads:
        ending.status = everything()
sys.exit(ending.status)
"""

PLACEMENTS = ("pre", "post", "mix", "deepnorm", "lns", "admin")
FSDP = {"strategy": "fsdp"}
ATTENTION = {"gate": "headwise", "sink": "learned", "value_residual": "learned", "temperature": True}
CLIPPED = {"gate": "headwise", "sink": "learned", "value_residual": "learned", "qk_clip": 1e-3}
DAILY = {  # a strategy, a family, a way to sum gradients, a precision: each once; the others by `make chaos`
    "llama pre ddp", "llama lns fsdp", "vit admin fsdp", "padded, accumulated, clipped", "accumulated, summed once",
    "recomputed", "attention", "tied", "halved", "matrices", "muon", "muon ddp", "convpool",
}  # fmt: skip


def history(run_id, key):
    return [m.value for m in tracking.client().get_metric_history(run_id, key)]


def shards(path):
    state = {}
    _load_state_dict(state, FileSystemReader(path), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return state["state_dict"]


def weights(store, run_id):
    """Name -> weight of the last checkpoint of a run, whole."""
    path = store / "runs" / run_id / "last.ckpt"
    if path.is_dir():
        return shards(path)
    return torch.load(path, weights_only=True)["state_dict"]


def streams(store, run_id):
    """The different states of the CPU's generator that the checkpoint of a run has."""
    states = load(store / "runs" / run_id / "last.ckpt")["callbacks"]["Checkpoint"]["generators"]
    return {state["cpu"].numpy().tobytes() for state in states}


@pytest.fixture
def trees(tiny_settings, vit_settings, tmp_path):
    """Name -> settings, each of which one process trains without its strategy."""
    trainer = {"max_steps": 10, "val_check_interval": 10, "log_every_n_steps": 1, "precision": "32-true"}

    def build(base, strategy, **more):
        return {**base, "trainer": {**base["trainer"], **trainer, **strategy, **more.pop("trainer", {})}, **more}

    llama = {**tiny_settings, "model": {**tiny_settings["model"], "heads": 4, "kv_heads": 2}}
    found = {
        f"{family} {placement} {strategy}": build(
            base, {"strategy": strategy}, **(PROFILED[family] if placement == "admin" else {"norm": placement})
        )
        for family, base in (("llama", llama), ("vit", vit_settings))
        for placement in PLACEMENTS
        for strategy in ("ddp", "fsdp")
        # neither DDP nor what shards knows placements, but for what they initialise and calibrate
        if (family, strategy) == ("llama", "fsdp") or placement in ("pre", "admin")
    }
    lines = (json.dumps({"text": f"{number} " + "some words " * (number % 5)}) for number in range(97))
    (tmp_path / "lines.jsonl").write_text("\n".join(lines))
    documents = {"kind": "text", "files": str(tmp_path / "lines.jsonl"), "layout": "documents", "seq_len": 32}
    small = {"accumulate": 2, "gradient_clip_val": 0.1}
    by_name = {"kind": "torch", "name": "RMSprop", "momentum": 0.5, "groups": {"embedding": {"lr_factor": 2.0}}}
    again = {"activation_checkpointing": True, "gradient_clip_val": 0.1}
    found |= {
        "padded, accumulated, clipped": build(llama, FSDP, data=documents, trainer=small),
        "accumulated, summed once": build(llama, FSDP, trainer={"accumulate": 2, "gradient_sync": "update"}),
        "halved, summed once": build(
            llama, FSDP, trainer={"accumulate": 2, "gradient_sync": "update", "precision": "bf16-true"}
        ),
        "recomputed": build(llama, FSDP, norm="ngpt", trainer=again),
        "recomputed ddp": build(vit_settings, {"strategy": "ddp"}, **PROFILED["vit"], trainer=again),
        "attention": build(llama | {"model": {**llama["model"], "attention": CLIPPED}}, FSDP, trainer=again),
        "clipped ddp": build(
            vit_settings | {"model": {**vit_settings["model"], "attention": CLIPPED}},
            {"strategy": "ddp"},
            trainer=small,
        ),
        "attention ddp": build(
            vit_settings | {"model": {**vit_settings["model"], "attention": ATTENTION}},
            {"strategy": "ddp"},
            trainer=again,
        ),
        "tied": build(llama | {"model": {**llama["model"], "tie_embeddings": True}}, FSDP),
        "mixed": build(llama, FSDP, trainer={"precision": "bf16-mixed"}),
        "halved": build(llama, FSDP, norm="mix", trainer={"precision": "bf16-true"}),
        "halved ddp": build(llama, {"strategy": "ddp"}, trainer={"precision": "bf16-true"}),
        "muon": build(llama, FSDP, optimizer="muon", trainer={"gradient_clip_val": 0.1}),
        "muon ddp": build(llama, {"strategy": "ddp"}, optimizer="muon"),
        "muon matrices": build(llama, FSDP, optimizer="muon", trainer={"tensor_parallel": 2}),
        "matrices": build(
            llama,
            FSDP,
            **PROFILED["llama"],
            optimizer=by_name,
            trainer={"tensor_parallel": 2, "gradient_clip_val": 0.1},
        ),
    }
    if {"gru", "convpool"} <= {*models}:  # of an addon
        gru = {**llama, "model": {"kind": "gru", "hidden": 16, "layers": 2}}
        quiet = {"kind": "convpool", "width": 4, "last_padding": 1, "noise": 0.0, "dropout": 0.0}  # else ranks differ
        found |= {"gru": build(gru, FSDP), "convpool": build({**vit_settings, "model": quiet}, FSDP)}
    found["llama lns fsdp"]["optimizer"] = {"groups": {"norms": {"lr_factor": 0.5}, "head": {"weight_decay": 0.0}}}
    found["llama lns fsdp"]["parametrization"] = {"kind": "complete_p", "base": {"hidden": 8, "layers": 1}}
    return found


def test_ddp_sums_narrow_gradients_in_float32(monkeypatch):
    """Four ranks, of which torch's collective is stood in for. In bfloat16 the small ones would be rounded away one by
    one."""
    gradients = torch.tensor([[1.0], [0.0039], [0.0039], [0.0039]]).bfloat16()
    given, done = [], torch.futures.Future()

    def all_reduce(mine, async_op):
        given.append(mine.dtype)
        mine.copy_((gradients.to(mine.dtype) / 4).sum(0))
        done.set_result([mine])
        return SimpleNamespace(get_future=lambda: done)

    monkeypatch.setattr(ranks, "world_size", lambda: 4)
    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    bucket = gradients[0].clone()
    mean = average_in_float32(None, SimpleNamespace(buffer=lambda: bucket)).wait()
    assert given == [torch.float32]
    assert mean is bucket
    assert mean.item() == gradients.double().mean().bfloat16().item()


def test_shards_are_copied_by_what_writes_them_alone(monkeypatch):
    """On a GPU: Lightning would copy them to the host, and torch's writer then once more."""
    asked = []
    for name in ("get_model_state_dict", "get_optimizer_state_dict"):
        monkeypatch.setattr(
            f"torch.distributed.checkpoint.state_dict.{name}", lambda *given, options=None: asked.append(options) or {}
        )
    strategy = Fsdp(Experiment.from_mapping({}, {"trainer.strategy": "fsdp"}), "32-true", False, Recipes())
    strategy.model = torch.nn.Linear(1, 1)
    strategy.lightning_module_state_dict()
    strategy.optimizer_state(torch.optim.SGD(strategy.model.parameters()))
    assert len(asked) == 2
    assert not any(options and options.cpu_offload for options in asked)


def test_with_offloaded_weights_all_else_is_on_the_device(monkeypatch, vit_settings, tmp_path):
    """The meta device stands for a GPU."""
    run = Experiment.from_mapping(
        vit_settings, {"norm.layer": "batchnorm", "trainer.strategy": "fsdp", "trainer.cpu_offload": True}
    )
    monkeypatch.setattr(Fsdp, "root_device", torch.device("meta"))
    strategy = Fsdp(run, "32-true", False, Recipes())
    strategy._lightning_module = task = TrainingModule(run, run.data.load(tmp_path))
    strategy.model_to_device()
    states = [state for metric in task.metrics.values() for state in metric.metric_state.values()]
    assert {state.device.type for state in states} == {"meta"}
    assert {buffer.device.type for buffer in task.buffers()} == {"meta"}
    assert {parameter.device.type for parameter in task.parameters()} == {"cpu"}


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.chaos)])
def test_two_ranks_train_what_one_process_trains_and_go_on_anywhere(every, store, trees, run_by_two, tmp_path):
    trees = {name: tree for name, tree in trees.items() if every or name in DAILY}
    settings, out = tmp_path / "settings.json", tmp_path / "out.json"
    alone = {}
    for name, tree in trees.items():
        one = {"strategy": "auto", "tensor_parallel": 1, "gradient_sync": "batch"}
        key = json.dumps({**tree, "trainer": {**tree["trainer"], **one}})
        alone[name] = alone[key] = alone.get(key) or train(Experiment.from_mapping(json.loads(key)))
    asked = iter(range(1, 100))
    pre = Experiment.from_mapping(trees["llama lns fsdp"], {"trainer.strategy": "auto"})
    part = train(pre, hooks=Hooks(asked_to_stop=lambda: next(asked) == 7))
    parts = ["llama lns fsdp", "matrices", "muon"] + ["muon matrices"] * every
    rests = {"one, then two": (part.run_id, {"trainer.strategy": "fsdp"})}
    counted = ["padded, accumulated, clipped", "accumulated, summed once"] + ["halved, summed once"] * every
    settings.write_text(json.dumps({"whole": trees, "parts": parts, "rests": rests, "counted": counted}))
    ended = run_by_two(SCRIPT, settings, out)
    assert [status for status, *_ in ended] == [0, 0], ended
    group = json.loads(out.read_text())

    for name, result in alone.items():
        if name not in trees:
            continue
        rough = {"mixed": 5e-3, "halved": 2e-2, "halved ddp": 2e-2, "halved, summed once": 2e-2}.get(name)
        run_id = group[name]["run_id"]
        for key in ("train/loss", "val/loss"):
            assert len(history(run_id, key)) == {"train/loss": 10, "val/loss": 1}[key]
            assert history(run_id, key) == pytest.approx(history(result.run_id, key), rel=rough or 1e-5), name
        key = "train/grad_norm"
        assert history(run_id, key) == pytest.approx(history(result.run_id, key), rel=(rough and 0.2) or 1e-3), name

    units = 10 * (1 + 2)  # updates of two layers, and of embedding and head
    assert group["counts"] == dict(zip(counted, (2 * units, units, units)[: len(counted)], strict=True))
    # both ranks of the one read the same data, and draw the same masks
    assert [len(streams(store, group[name]["run_id"])) for name in ("matrices", "llama pre ddp")] == [1, 2]

    for name in parts:
        whole, rest, first = (group[key]["run_id"] for key in (name, f"{name}, rest", f"{name}, part"))
        assert (store / "runs" / first / "last.ckpt").is_dir()
        for key in ("train/loss", "train/grad_norm", "val/loss"):
            assert history(rest, key) == history(whole, key)
        a, b = weights(store, whole), weights(store, rest)
        assert all(torch.equal(a[key], b[key]) for key in a)
        rest = train(
            load_experiment(first, {"trainer.strategy": "auto", "trainer.tensor_parallel": 1}), Place(run_id=first)
        )
        for key in ("train/loss", "val/loss"):
            assert history(rest.run_id, key) == pytest.approx(history(alone[name].run_id, key), rel=1e-5)
        a, b = weights(store, alone[name].run_id), weights(store, first)
        assert list(a) == list(b)
        assert all(torch.allclose(a[key], b[key], atol=1e-4) for key in a)
    for key in ("train/loss", "val/loss"):
        ours, theirs = group["one, then two"]["run_id"], alone["llama lns fsdp"].run_id
        assert history(ours, key) == pytest.approx(history(theirs, key), rel=1e-5)


@pytest.mark.chaos  # four ranks
def test_two_copies_of_two_shards_train_what_one_process_trains(store, tiny_settings, tmp_path):
    """Four ranks, two on each of two machines; gradients are summed over the copies once per update. The run goes on as
    one process, and as four ranks that all share one copy."""
    trainer = {"max_steps": 10, "val_check_interval": 10, "log_every_n_steps": 1, "precision": "32-true"}
    trainer |= {"batch_size": 8, "accumulate": 2, "gradient_clip_val": 0.1}
    tree = {**tiny_settings, "trainer": {**tiny_settings["trainer"], **trainer}}
    alone = train(Experiment.from_mapping(tree))
    hybrid = {**tree, "trainer": {**tree["trainer"], **FSDP, "fsdp": {"shard": 2}}}
    script, settings, out = tmp_path / "script.py", tmp_path / "settings.json", tmp_path / "out.json"
    script.write_text(SCRIPT)
    settings.write_text(json.dumps({"whole": {"hybrid": hybrid}, "parts": ["hybrid"], "rests": {}, "counted": []}))
    ended = run_ranks(script, settings, out, cwd=tmp_path, seconds=280, count=4, nodes=2)
    assert [status for status, *_ in ended] == [0] * 4, ended
    group = json.loads(out.read_text())
    whole, rest = (group[name]["run_id"] for name in ("hybrid", "hybrid, rest"))
    for key, off in (("train/loss", 1e-5), ("val/loss", 1e-5), ("train/grad_norm", 1e-3)):
        assert history(whole, key) == pytest.approx(history(alone.run_id, key), rel=off)
        assert history(rest, key) == history(whole, key)
    first = group["hybrid, part"]["run_id"]
    train(load_experiment(first, {"trainer.strategy": "auto", "trainer.fsdp.shard": None}), Place(run_id=first))
    assert history(first, "val/loss") == pytest.approx(history(alone.run_id, "val/loss"), rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"strategy": "fsdp", "fsdp.shard": 3}, r"trainer\.fsdp\.shard: must divide 4, the ranks \(given: 3\)"),
        ({"strategy": "fsdp", "fsdp.shard": 4, "tensor_parallel": 2}, r"must divide 2, the ranks of each tensor_paral"),
        ({"strategy": "ddp", "fsdp.shard": 2}, r"trainer\.fsdp\.shard: needs trainer\.strategy=fsdp \(given: 2\)"),
        ({"strategy": "fsdp", "fsdp.shard": 1}, r"trainer\.fsdp\.shard: .* greater than 1 \(given: 1\)"),
    ],
)
def test_a_mesh_that_does_not_divide_is_refused(monkeypatch, settings, text):
    monkeypatch.setattr(ranks, "world_size", lambda: 4)
    monkeypatch.setattr(ranks, "local_size", lambda: 4)
    with pytest.raises(ConfigError, match=text):
        check_ranks(Experiment.from_mapping({f"trainer.{name}": value for name, value in settings.items()}).trainer)


SHAPES = {"llama": (16,), "vit": (1, 8, 8)}


class Idle(nn.Module):
    def __init__(self, norm, looks):
        super().__init__()
        self.norm, self.idle, self.looks = norm, nn.Parameter(torch.ones(1)), looks

    def forward(self, x, f, *args):
        if self.looks and x.sum() > 0:
            return x
        return x + f(self.norm(x), *args) * (self.idle if self.looks else 1)


class Own(Placement):
    """Has a parameter that no step uses, or only steps whose numbers say so."""

    kind: Literal["own"] = "own"
    looks: bool = False
    """Whether it looks at numbers."""
    rule = "x + f(N(x))"
    source = "this test"

    def residual(self, site):
        return Idle(site.norm(), self.looks)


def experiment(family="llama", **settings):
    sizes = {"model": {"kind": family, "hidden": 16, "layers": 2, "heads": 2}}
    return Experiment.from_mapping(sizes, {key.replace("__", "."): value for key, value in settings.items()})


def looked_at(run, family="llama"):
    """Whether a step of the run leaves a parameter unused."""
    model = run.build_model(11, SHAPES[family])
    restrict(model, run)
    return leaves_unused(model, run.task, 11, SHAPES[family])


@pytest.mark.parametrize(("family", "kind"), WIRED)
def test_every_parameter_of_ours_has_a_gradient(family, kind):
    assert not looked_at(experiment(family, norm=kind), family)


@pytest.mark.parametrize("looks", [False, True])
def test_a_parameter_that_may_be_left_out_is_found(registries, looks):
    placements.register(Own)
    assert looked_at(experiment(norm={"kind": "own", "looks": looks}))


@pytest.mark.addons
def test_what_is_not_trained_needs_no_gradient():
    run = experiment(warm_start={"from": "RUN", "copy": ["all"], "freeze": ["embedding"]})
    assert not looked_at(run)


def test_the_model_is_not_changed_by_the_look():
    """Neither its weights nor its running averages, and it keeps no gradient."""
    run = experiment("vit", norm={"kind": "pre", "layer": "batchnorm"})
    model = run.build_model(11, SHAPES["vit"]).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert not leaves_unused(model, run.task, 11, SHAPES["vit"])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.training


def test_on_gpus_ddp_looks_only_where_it_must(monkeypatch, tmp_path):
    run = experiment(data__seq_len=16)
    corpus = run.data.load(tmp_path)
    model = run.build_model(corpus.classes, corpus.shape)
    assert must_find_unused(model, run, corpus)  # on the CPU a run goes on bit for bit, and sums in one order
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not must_find_unused(model, run, corpus)
    assert Ddp("32-true", False)._ddp_kwargs == {"find_unused_parameters": False, "gradient_as_bucket_view": True}


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true"])
def test_the_plan_gathers_and_sums_in_the_types_that_training_does(precision):
    policies, own = precision_policies(precision), 2 if precision == "bf16-true" else 4
    widths = tuple(policy.param_dtype.itemsize if policy.param_dtype else own for policy in policies)
    assert widths == Setup("fsdp", 2, precision, 2, 1, False, False).widths
    assert {policy.reduce_dtype for policy in policies} == {torch.float32}
