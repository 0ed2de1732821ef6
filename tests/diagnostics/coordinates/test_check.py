"""The coordinate check by the command a user types, a number of it by hand, and what is refused."""

import csv
import json
import math

import pytest
import torch

from ablate.cli import main
from ablate.config.errors import AblateError
from ablate.diagnostics.coordinates.check import describe_placements, find_exponent, find_ratio, judge
from ablate.diagnostics.coordinates.recipes import choose_sizes
from ablate.diagnostics.run import diagnose
from ablate.experiment.tree import Experiment
from ablate.plots.drawing import draw
from ablate.training.train import train

RECIPE = """\
model: {hidden: 32, layers: 3, heads: 4, mlp: 64}
data: {kind: topics, seq_len: 8}
optimizer: {lr: 0.01}
trainer: {batch_size: 4}
seed: 3
"""
SMALL = ["--what", "coordinates", "--widths", "32,64", "--depths", "2,3", "--updates", "2", "--seeds", "1"]


@pytest.fixture
def recipe(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text(RECIPE)
    return file


@pytest.fixture(autouse=True)
def _plain_figures(monkeypatch):
    """Figures are drawn, and written as a word: laying one out takes a second."""

    def save(figure, folder):
        file = folder / f"{figure.name}.png"
        file.write_text(" ".join(panel.get_xlabel() for panel in draw(figure)[0].axes))
        return [file]

    monkeypatch.setattr("ablate.diagnostics.run.save", save)


def test_table_and_numbers(store, recipe, tmp_path, capsys):
    mup = tmp_path / "mup.yaml"
    mup.write_text(RECIPE + "parametrization: {kind: mup, base: {hidden: 16}}\n")
    words = ["diagnose", f"usual={recipe}", str(mup), *SMALL, "--output", str(tmp_path / "out")]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["measurements"]["coordinates"]
    assert list(found) == ["usual", "mup"]
    assert found["mup"]["facts"]["parametrization"] == "mup"
    changes = {
        (row["axis"], row["size"], row["layer"]): row["change"] for row in found["mup"]["rows"] if row["update"] == 2
    }
    (one,) = [
        part for part in found["mup"]["summary"]
        if (part["axis"], part["quantity"], part["group"]) == ("width", "change", "layers")
    ]  # fmt: skip
    layers = ["embedding", "layer 1", "layer 2", "layer 3", "final norm"]
    ratios = {name: find_ratio([changes["width", size, name] for size in (32, 64)]) for name in layers}
    assert one["ratio"] == pytest.approx(max(ratios.values()))
    assert one["part"] == max(ratios, key=ratios.get)
    with open(tmp_path / "out" / "coordinates.csv") as opened:
        rows = list(csv.DictReader(opened))
    assert {row["model"] for row in rows} == {"usual", "mup"}
    assert (tmp_path / "out" / "coordinates.png").read_text().split() == ["width"] * 4 + ["depth"] * 4
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "usual (standard): not flat along the width" in shown
    assert "within 10%" in shown


def test_a_number_by_hand(store, recipe, tmp_path):
    """The last layer's change after two updates of AdamW, and the activations before, written out."""
    found = diagnose(str(recipe), ["coordinates"], widths=[32, 64], depths=[2, 3], updates=2, seeds=2, output=tmp_path)
    (check,) = found.coordinates.values()
    experiment = Experiment.load(recipe)
    corpus = experiment.data.load(tmp_path / "cache")
    batches = iter(corpus.train.batches(4, 3))
    batches = [next(batches) for _ in range(2)]
    before, after = [], []
    for seed in (3, 4):  # the recipe's own, and the next
        torch.manual_seed(seed)
        model = Experiment.load(recipe, {"model.hidden": 64, "model.heads": 8, "model.mlp": 128}).build_model(
            corpus.classes, corpus.shape
        )
        decaying = [p for p in model.parameters() if p.ndim > 1]
        rest = [p for p in model.parameters() if p.ndim == 1]
        groups = [{"params": decaying, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95), eps=1e-8)

        def last_layer(model=model):
            kept = []
            handle = model.layers[-1].register_forward_hook(lambda *parts: kept.append(parts[2].detach()))
            model(batches[0][0])
            handle.remove()
            return kept[0]

        first = last_layer()
        for tokens, targets in batches:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
            optimizer.step()
        before.append(first.pow(2).mean().sqrt().item())
        after.append((last_layer() - first).pow(2).mean().sqrt().item())
    activation, change = check.courses["width"][64]["layer 3"][0][0], check.courses["width"][64]["layer 3"][2][1]
    assert activation == pytest.approx(sum(before) / 2, rel=1e-5)
    assert change == pytest.approx(sum(after) / 2, rel=1e-3)


def test_of_a_run_and_of_a_sweep_beside_what_is_measured(store, tiny_settings, tmp_path, capsys):
    run = train(Experiment.from_mapping(tiny_settings)).run_id
    words = ["--widths", "16,32", "--depths", "2,3", "--updates", "1", "--seeds", "1", "--tokens", "64"]
    assert main(["diagnose", f"run={run}", "--what", "variance,coordinates", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["measurements"]) == ["variance", "coordinates"]
    assert [list(own) for own in found["measurements"].values()] == [["run"], ["run"]]
    sweep = tmp_path / "own.yaml"
    text = {"name": "own", "experiment": {**tiny_settings}, "arms": {"a": {"norm": "pre"}, "b": {"norm": "post"}}}
    sweep.write_text(json.dumps({**text, "search": {"optimizer.lr": [1e-3, 1e-2]}}))
    assert main(["diagnose", str(sweep), "--what", "coordinates", *words, "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["measurements"]["coordinates"]) == ["a", "b"]


REFUSED = {
    "a model of transformers": (["hf:gpt2", *SMALL], "hf:gpt2: a model of transformers has no recipe"),
    "a model of timm": (["timm:vit", *SMALL], "timm:vit: a model of timm has no recipe"),
    "no whole heads": (["FILE", *SMALL[:3], "36,40"], "--widths 36: no whole number of heads"),
    "one width": (["FILE", *SMALL[:3], "64"], "--widths 64: one size cannot be compared"),
    "one depth": (["FILE", *SMALL[:2], "--depths", "4"], "--depths 4: one size cannot be compared"),
    "not asked for": (["FILE", "--what", "variance", "--seeds", "2"], "--seeds is for the coordinate check"),
    "no weights": (["FILE", "--what", "variance,coordinates"], "is a recipe without weights"),
    "no weights, by default": (["FILE"], "is a recipe without weights"),
    "another name": (["FILE", "--what", "coordinate"], "unknown measurement 'coordinate'"),
    "another family": (["GRU", *SMALL], "has no width and depth that coordinates could set. Accepted: llama, vit"),
    "a warm start": (["WARM", *SMALL], "WARM has warm_start, which is for a model whose size is given"),
}


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=[pytest.mark.addons] if what == "another family" else []) for what in REFUSED]
)
def test_what_is_refused(store, recipe, tmp_path, what, capsys):
    words, message = REFUSED[what]
    files = {"FILE": recipe, "GRU": tmp_path / "gru.yaml", "WARM": tmp_path / "warm.yaml"}
    files["GRU"].write_text("model: {kind: gru}\n")
    files["WARM"].write_text("warm_start: {from: a1b2, copy: [embedding]}\n")
    assert main(["diagnose", *(f"{word}={files[word]}" if word in files else word for word in words)]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("model", "widths"),
    [
        ({"hidden": 128, "heads": 8}, (32, 64, 128, 256, 512)),
        ({"kind": "vit"}, (36, 60, 132, 252, 516)),
        ({"hidden": 128, "heads": 2}, (64, 128, 256, 512)),
        ({"hidden": 128, "heads": 4, "kv_heads": 1}, (128, 256, 512)),
    ],
)
def test_widths_have_whole_heads(model, widths):
    assert choose_sizes(Experiment.from_mapping({"model": model}).model, (), ()).widths == widths


@pytest.mark.parametrize(
    ("norm", "depths", "words"),
    [
        ({"kind": "mix", "alpha": 0.25}, [2, 4, 8], "with 2 layers pre; with 4 and 8 layers post and pre"),
        ({"kind": "mix", "alpha": 0.25}, [4, 8], ""),
        ({"kind": "pre"}, [2, 4, 8], ""),
    ],
)
def test_depths_with_other_placements_are_told(norm, depths, words):
    note = describe_placements(Experiment.from_mapping({"norm": norm}).norm, depths)
    assert note == (
        f"Different models over the depth: {words}. Choose --depths that all have the same." if words else ""
    )


def test_exponent_and_ratio():
    assert find_exponent([2, 4, 8], [3.0, 12.0, 48.0]) == pytest.approx(2)
    assert find_ratio([2.0, 3.0, 4.0]) == 2
    assert find_ratio([1.0, math.nan]) == math.inf
    (one, *_) = judge("width", {2: {"layer 1": [(1.0, 0.0)]}, 4: {"layer 1": [(1.05, 0.0)]}})
    assert (one.ratio, one.is_flat) == (1.05, True)


@pytest.mark.parametrize(("name", "value"), [("seeds", 0), ("updates", 0), ("widths", [0, 2])])
def test_python_is_checked_too(store, recipe, name, value):
    with pytest.raises(AblateError, match=f"--{name}: must be"):
        diagnose(str(recipe), ["coordinates"], **{name: value})
