"""`ablate check`: what Ablate itself has passes, and what is broken on purpose is found."""

import json
import re
from pathlib import Path

import pytest

from ablate.cli import main
from ablate.config import plugins
from ablate.diagnostics.checks import check, check_kinds
from ablate.diagnostics.checks.base import CheckFailedError, list_checks
from ablate.models import list_families
from ablate.models.llama import LlamaModel
from ablate.norms import norm_layers, placements
from ablate.norms.init import initializations
from ablate.optim.optimizers import optimizers
from ablate.optim.schedules import schedules
from ablate.tasks import tasks

DOCS = Path(__file__).parents[3] / "docs" / "reference"
GPT2 = re.search(r'title="gpt2.py"\n(.*?)```', (DOCS / "model-family.md").read_text(encoding="utf-8"), re.S)[1]
NORM = """
from collections.abc import Mapping
from typing import Literal

import torch
from torch import nn

from ablate.norms import NormLayer, Placement, norm_layers, placements
from ablate.norms.residuals import PreResidual


class Module(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return (x / (1 + x.abs().mean(-1, keepdim=True)) * self.weight).to(x.dtype)


@norm_layers.register
class Own(NormLayer):
    kind: Literal["own"] = "own"

    def build(self, dim):
        return Module(dim)

    def reference(self, x, weights):
        return weights["weight"] * x / (1 + x.abs().sum(-1, keepdim=True) / x.shape[-1])


@placements.register
class Halved(Placement):
    kind: Literal["halved"] = "halved"

    def residual(self, site):
        return PreResidual(site, scale=0.5)

    def reference(self, x, attn, mlp, norms, factors, layer, depth):
        y = x + attn(norms[0](x) / 2)
        return y + mlp(norms[1](y) / 2)
"""
OPTIMIZER = """
from typing import Literal

import torch

from ablate.optim.optimizers import OptimizerConfig, optimizers


class Sign(torch.optim.Optimizer):
    def step(self, closure):
        loss = closure()
        for group in self.param_groups:
            for p in [p for p in group["params"] if p.grad is not None]:
                state = self.state[p]
                state["mean"] = 0.9 * state.get("mean", torch.zeros_like(p)) + 0.1 * p.grad
                p.data.sub_(group["lr"] * state["mean"].sign())
        return loss


@optimizers.register
class SignConfig(OptimizerConfig):
    kind: Literal["sign"] = "sign"

    def build(self, model):
        return Sign([p for p in model.parameters() if p.requires_grad], {"lr": self.lr})
"""
OTHERS = """
import random
from typing import ClassVar, Literal

import torch

from ablate.data import UserDataset, data_kinds
from ablate.norms.init import Initialization, initializations
from ablate.optim.schedules import ScheduleConfig, schedules

COUNT = [0]


def count():
    COUNT.append(1)
    return len(COUNT)


class Images(torch.utils.data.Dataset):
    own = random.Random(0)

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.full((1, 8, 8), float(index)) + random.random() / 2, index % 3


@data_kinds.register
class Levels(UserDataset):
    kind: Literal["levels"] = "levels"
    task: ClassVar[str] = "image_classification"
    classes: ClassVar[int | None] = 3

    def build(self):
        return Images(), None


@schedules.register
class Quadratic(ScheduleConfig):
    kind: Literal["quadratic"] = "quadratic"

    def decay(self, progress):
        return (1 - progress) ** 2


@initializations.register
class Halved(Initialization):
    kind: Literal["halved_std"] = "halved_std"

    def std_of(self, projection, stack):
        return self.base_std(stack) / 2
"""
DETECTION = re.search(r'title="my_detection.py"\n(.*?)```', (DOCS / "detection.md").read_text(encoding="utf-8"), re.S)[
    1
]
ROTATIONS = re.search(r'title="my_task.py"\n(.*?)```', (DOCS / "plugins.md").read_text(encoding="utf-8"), re.S)[1]
OWN_WIRING = """
from typing import Literal

from torch import nn

from ablate.norms import Placement, placements


class Residual(nn.Module):
    def __init__(self, site):
        super().__init__()
        self.norm, self.drop, self.half = site.norm(), site.drop(), 0.5

    def forward(self, x, f, *args):
        return x + self.drop(self.half * f(self.norm(x), *args))


@placements.register
class Own(Placement):
    kind: Literal["own_wiring"] = "own_wiring"

    def residual(self, site):
        return Residual(site)

    def reference(self, x, attn, mlp, norms, factors, layer, depth):
        y = x + attn(norms[0](x)) / 2
        return y + mlp(norms[1](y)) / 2
"""
FILES = {
    "gpt2": GPT2,
    "norm": NORM,
    "optimizer": OPTIMIZER,
    "others": OTHERS,
    "detection": DETECTION,
    "rotations": ROTATIONS,
    "own": OWN_WIRING,
}


@pytest.fixture
def write(registries, tmp_path):
    """write(name, old, new): the path of a plugin in which `old` is `new`; it is gone afterwards."""

    def write(name, old="", new=""):
        assert old in FILES[name]
        file = tmp_path / f"{name}.py"
        file.write_text(FILES[name].replace(old, new), encoding="utf-8")
        return str(file)

    return write


def failures(findings):
    return {f.check: f.reason for f in findings if f.passed is False}


OWN = [
    *(("norm layer", kind) for kind in norm_layers),
    *(("placement", kind) for kind in placements),
    *(("initialisation", kind) for kind in initializations),
    *(("model", kind) for kind in list_families()),
    *(("data", kind) for kind in ("topics", "digits", "glyphs")),  # the others need files
    *(("schedule", kind) for kind in schedules),
    *(("optimizer", kind) for kind in optimizers),
    *(("task", kind) for kind in tasks),
]
MASKS = {"data.kind": "glyphs", "data.targets": "mask", "data.draws": 1, "data.val_draws": 1, "data.image_size": 8}
NEEDED = {
    "torch": {"optimizer.name": "SGD", "optimizer.momentum": 0.9},
    "timm": {"optimizer.name": "lion"},
    "image_segmentation": MASKS,
    "glyphs": {"data.draws": 1, "data.val_draws": 1, "data.image_size": 8},
}
"""Kind -> settings that it requires."""


@pytest.mark.parametrize(("part", "kind"), OWN)
def test_what_ablate_has_passes(part, kind):
    findings = list(check_kinds({part: [kind]}, NEEDED.get(kind, {})))
    assert failures(findings) == {}
    assert {f.check for f in findings} == set(list_checks(part))
    assert sum(f.passed is True for f in findings) >= 2


@pytest.mark.parametrize("name", FILES)
def test_the_examples_pass(write, name):
    findings = list(check(write(name), {}))
    assert failures(findings) == {}
    assert all(f.passed for f in findings if f.check == "formula")


SPLIT = "self.qkv(x).unflatten(-1, (3 * self.heads, -1))"
LENGTH = "    def sequence_length(self, shape):\n        return 7\n\n    def build("
BROKEN = [  # plugin, text, its replacement, the check that fails, its reason
    ("gpt2", "is_causal=True", "is_causal=False", "no future leak", "outputs depend on later tokens"),
    ("gpt2", "self.norm(F.gelu", "(F.gelu", "norms in each layer", "layer 1 computes 3 norms with placement subln"),
    ("gpt2", f"self.qkv_norm({SPLIT})", SPLIT, "norms in each layer", "placement hybrid, which declares 4"),
    (
        "gpt2",
        "self.open(self.embed_norm(",
        "self.open((",
        "norms in each layer",
        "computes 1 norms outside of its layers",
    ),
    ("gpt2", "positions.weight[", "positions.weight.detach()[", "gradients", "positions.weight gets no gradient"),
    ("gpt2", "    def build(", LENGTH, "plan", "attention"),
    ("gpt2", "per_token:", "mlp_matrices: ClassVar[int] = 3\n    per_token:", "plan", "weights in the layers"),
    ("gpt2", '"positions", "embed_norm"', '"embed_norm"', "parts", "positions.weight"),
    ("gpt2", "per_token:", "scales: ClassVar[bool] = True\n    per_token:", "scaled", "no scale_output and no scale_q"),
    ("norm", "mean(-1, keepdim=True)", "mean((-2, -1), keepdim=True)", "no future leak", "sees later ones"),
    ("norm", "(1 + x.abs().mean", "(1.01 + x.abs().mean", "formula", "they differ"),
    ("norm", "* self.weight", "* self.weight.detach()", "gradients", "weight gets no gradient"),
    ("norm", ".to(x.dtype)", ".float()", "types", "torch.float32"),
    ("own", "x + self.drop", "self.drop", "residual", "the residual is lost"),
    ("own", "self.drop(self.half", "(self.half", "stochastic depth", "model.drop_path changes nothing"),
    ("optimizer", 'sub_(group["lr"] *', "sub_(1e-3 *", "learning rate", "group['lr'] is not used"),
    ("norm", "scale=0.5", "scale=0.51", "formula", "layer 1 of 4 and reference"),
    ("optimizer", "if p.requires_grad]", "if p.ndim > 1]", "trained once", "leaves trainable parameters out: layers.0"),
    ("optimizer", "self.state[p]", "p.__dict__.setdefault('own', {})", "resume", "a resumed run has another"),
    ("optimizer", "p.data.sub_", "p.data.add_", "learns", "take the loss from"),
    ("detection", ', reduction="sum") / wanted.numel()', ")", "loss is a mean", "that of its parts"),
    (
        "rotations",
        "metrics.update(logits, truth)",
        "metrics.update(logits[:4], truth[:4])",
        "metrics over ranks",
        "ranks",
    ),
    ("optimizer", "loss = closure()", "loss = None", "learns", "does not call the closure"),
    ("others", "+ random.random() / 2", "+ self.own.random() / 2", "order", "third batch changes"),
    (
        "others",
        "+ random.random() / 2",
        "+ count()",
        "loads the same",
        "fingerprint changes",
    ),
    ("others", "float(index)) + random.random() / 2", "0.0)", "validation", "validation inputs are training inputs"),
    ("others", "(1 - progress) ** 2", "1 - 2 * progress", "factors", "not from 0 to 1"),
    (
        "others",
        "self.base_std(stack) / 2",
        "count() / 100",
        "standard deviations",
        "std_of says",
    ),
]


@pytest.mark.parametrize(("name", "old", "new", "where", "reason"), BROKEN, ids=range(len(BROKEN)))
def test_what_is_broken_on_purpose_is_found(write, name, old, new, where, reason):
    found = (f.reason for f in check(write(name, old, new), {}) if (f.check, f.passed) == (where, False))
    assert reason in next(found, "nothing is found")  # what comes after it is not run


STATISTIC = "(x / (1 + x.abs().mean(-1, keepdim=True)) * self.weight).to(x.dtype)"
"""What `Own` of the file "norm" returns; `LOW` is the same as LLaMA's norm does it, in a type of its own."""
LOW = "self.weight * (x.to({0}) / (1 + x.to({0}).abs().mean(-1, keepdim=True){1})).to(x.dtype)"


@pytest.mark.parametrize("dtype", ["torch.float32", "torch.float16", "torch.bfloat16"])
def test_a_norm_is_checked_at_the_precision_at_which_it_computes(write, dtype):
    right, wrong = LOW.format(dtype, ""), LOW.format(dtype, ".detach()")
    told = f"computed in {dtype.removeprefix('torch.')}"
    plugins.load([write("norm", STATISTIC, right)])
    findings = {f.check: f for f in check_kinds({"norm layer": ["own"]}, {})}
    assert failures(findings.values()) == {}
    assert all(findings[check].reason.endswith(told) for check in ("formula", "gradients"))
    plugins.load([write("norm", STATISTIC, wrong)])
    found = failures(check_kinds({"norm layer": ["own"]}, {}))
    assert list(found) == ["gradients"]
    assert re.match(
        rf"its gradient is not the derivative of its output: along the size of .*, {told}", found["gradients"]
    )


def test_a_wrong_gradient_of_a_mean_of_a_gain_or_of_all_is_found(write):
    centred = "(x - x.mean(-1, keepdim=True){0}) * self.weight"
    for right, wrong, along in (
        (centred.format(""), centred.format(".detach()"), "the size of its input"),
        ("x * self.weight ** 2", "x * self.weight * self.weight.detach()", "a random change of its parameters"),
        ("x * self.weight", "x * self.weight / 2 + (x * self.weight / 2).detach()", "the size of its input"),
    ):
        plugins.load([write("norm", STATISTIC, right)])
        assert list_checks("norm layer")["gradients"]("own", {}) == ""
        plugins.load([write("norm", STATISTIC, wrong)])
        with pytest.raises(CheckFailedError, match=f"not the derivative of its output: along {along}"):
            list_checks("norm layer")["gradients"]("own", {})


def test_a_residual_in_float32_is_compared_as_such(write):
    old = "x + self.drop(self.half * f(self.norm(x), *args))"
    new = "(x.float() + self.drop(self.half * f(self.norm(x), *args)).float()).to(x.dtype)"
    plugins.load([write("own", old, new)])
    findings = {f.check: f for f in check_kinds({"placement": ["own_wiring"]}, {})}
    assert failures(findings.values()) == {}
    assert findings["formula"].reason.endswith("computed in float32")


def test_a_family_whose_multipliers_do_nothing_is_found(monkeypatch):
    monkeypatch.setattr(LlamaModel, "scale_queries", lambda model, factor: None)
    assert failures(check_kinds({"model": ["llama"]}, {}))["scaled"].endswith(
        "the same after scale_queries with a factor of 0.5"
    )


def test_the_table_and_the_exit_status(write, capsys):
    assert main(["check", write("norm", "(1 + x.abs().mean", "(1.01 + x.abs().mean")]) == 1
    told = capsys.readouterr().out
    assert re.search(r"norm layer own +formula +FAILED", told)
    assert re.search(r"\d+ checks: \d+ passed and 1 failed\.", told)
    assert main(["check", "norm_layer:rmsnorm", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["passed"] for row in rows} == {True, None}


@pytest.mark.parametrize(
    ("what", "text", "message"),
    [
        ("empty.py", "x = 1\n", "registers nothing"),
        ("missing.py", None, "missing.py"),
        ("placment:pre", None, "Did you mean placement?"),
        ("placement:per", None, "Did you mean"),
    ],
)
def test_mistakes_are_told_in_a_sentence(registries, tmp_path, monkeypatch, capsys, what, text, message):
    monkeypatch.chdir(tmp_path)
    if text:
        (tmp_path / what).write_text(text)
    assert main(["check", what]) == 2
    assert message in capsys.readouterr().err
