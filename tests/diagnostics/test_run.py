"""`ablate diagnose` on models of every origin, by the command a user types."""

import csv
import json

import pytest
import torch
import torch.nn.functional as F

from ablate import tracking
from ablate.cli import main
from ablate.config.errors import AblateError
from ablate.data import IGNORED
from ablate.diagnostics.figures.run import figure
from ablate.diagnostics.measures import Batch, measurements
from ablate.diagnostics.opening.base import mask_tokens
from ablate.diagnostics.run import diagnose
from ablate.experiment.tree import Experiment
from ablate.plots.drawing import draw
from ablate.training.train import train

WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "under", "mat", "tree", "and", "then", "slept", "woke", "again"]
CONFIGS = {
    "LlamaForCausalLM": ("LlamaConfig", {"num_key_value_heads": 1}),
    "MistralForCausalLM": ("MistralConfig", {"num_key_value_heads": 1}),
    "Qwen2ForCausalLM": ("Qwen2Config", {"num_key_value_heads": 2}),
    "BertForMaskedLM": ("BertConfig", {}),
}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    file = tmp_path_factory.mktemp("data") / "text.txt"
    file.write_text(" ".join(WORDS[(i * i) % len(WORDS)] for i in range(400)))
    return file


@pytest.fixture
def _plain_figures(monkeypatch):
    """Figures are drawn, and written as a word: laying one out takes a second."""

    def save(figure, folder):
        paths = [folder / f"{figure.name}{suffix}" for suffix in (".png", ".svg")]
        for path in paths:
            path.write_text(str(draw(figure)))
        return paths

    monkeypatch.setattr("ablate.diagnostics.run.save", save)


def saved(kind, folder, tokenizer=True):
    """A tiny model in a folder of transformers, with a tokenizer of words."""
    import transformers
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    config, more = CONFIGS[kind]
    words = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    torch.manual_seed(0)
    small = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2}
    config = getattr(transformers, config)(
        vocab_size=len(words),
        max_position_embeddings=32,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        **small,
        **more,
    )
    model = getattr(transformers, kind)(config).eval()
    model.save_pretrained(folder)
    if tokenizer:
        made = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
        made.pre_tokenizer = Whitespace()
        made.save(str(folder / "tokenizer.json"))
    return model


ONE_STREAM = [name for name in measurements if name != "streams"]


def rows(file):
    with open(file) as opened:
        return list(csv.DictReader(opened))


@pytest.mark.parametrize("kind", list(CONFIGS)[1:])
@pytest.mark.usefixtures("_plain_figures")
def test_others_of_transformers(store, tmp_path, text, kind, capsys):
    check_transformers(tmp_path, text, kind, capsys)


def test_models_of_transformers(store, tmp_path, text, capsys):
    check_transformers(tmp_path, text, "LlamaForCausalLM", capsys)
    svg = (tmp_path / "out" / "angular.svg").read_text()
    assert svg.count("<svg") == 1


def check_transformers(tmp_path, text, kind, capsys):
    model = saved(kind, tmp_path / "model")
    words = ["diagnose", f"mine=hf:{tmp_path / 'model'}", "--data", str(text), "seq_len=8", "--tokens", "160"]
    assert main([*words, "--output", str(tmp_path / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["measurements"]) == set(ONE_STREAM)
    for name in ONE_STREAM:
        assert all((tmp_path / "out" / f"{name}.{suffix}").stat().st_size for suffix in ("png", "svg", "csv"))
    whole = found["measurements"]["pruning"]["mine"]
    assert len(whole["rows"]) == 3
    if kind == "BertForMaskedLM":
        return
    experiment = Experiment.from_mapping(
        {
            "data": {
                "kind": "text",
                "files": str(text),
                "seq_len": 8,
                "tokenizer": str(tmp_path / "model/tokenizer.json"),
            }
        }
    )
    corpus = experiment.data.load(tracking.cache_folder())
    parts = [corpus.val.__getitems__(range(len(corpus.val))), corpus.train.__getitems__(range(20 - len(corpus.val)))]
    inputs, targets = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    with torch.no_grad():
        expected = F.cross_entropy(model(input_ids=inputs).logits.flatten(0, 1), targets.flatten()).item()
    assert whole["facts"]["whole"]["loss"] == pytest.approx(expected, abs=1e-5)
    assert whole["facts"]["tokens"] == 160


def test_the_help_names_all_measurements(capsys):
    with pytest.raises(SystemExit):
        main(["diagnose", "--help"])
    assert f"comma-separated list of {', '.join(measurements)} (default" in " ".join(capsys.readouterr().out.split())


def test_masked_models_are_asked_for_masked_tokens_alone():
    inputs = torch.arange(4, 204).view(10, 20)

    def load(first, last):
        return Batch(inputs[first:last], inputs[first:last] + 1)

    load = mask_tokens(load, mask=3, ends=(1, 2))
    batch = load(0, 10)
    asked = batch.targets != IGNORED
    assert 10 < asked.sum() < 60
    assert torch.equal(batch.inputs == 3, asked)
    assert torch.equal(batch.targets[asked], inputs[asked])
    assert (batch.inputs[:, 0] == 1).all()
    assert (batch.inputs[:, -1] == 2).all()
    assert not asked[:, [0, -1]].any()
    again = load(4, 6)  # the same of an item however it is batched
    assert torch.equal(again.inputs, batch.inputs[4:6])


@pytest.mark.usefixtures("_plain_figures")
def test_runs_by_id_by_checkpoint_and_at_initialisation(store, trained, capsys):
    runs = trained("llama", "lns")
    file = str(store / "runs" / runs[1].run_id / "last.ckpt")
    models = [f"Pre-LN={runs[0].run_id}", f"LNS={file}", f"init:{runs[0].run_id}"]
    assert main(["diagnose", *models, "--tokens", "200", "--what", "pruning,gradients"]) == 0
    text = capsys.readouterr().out
    assert "Pre-LN" in text
    assert "LNS" in text
    found = diagnose(models, ["pruning", "angular"])
    results = found.results["pruning"]
    assert list(results)[:2] == ["Pre-LN", "LNS"]
    for run, label in zip(runs, results, strict=False):  # over all of the validation set it is the loss of validation
        assert results[label].facts["whole"]["loss"] == pytest.approx(run.metrics["val/loss"], rel=1e-5)
    initial = list(results.values())[2].facts["whole"]["loss"]
    assert initial == pytest.approx(torch.tensor(256.0).log().item(), abs=0.2)
    assert "fewer than 256,000" in found.notes[0]
    names = {item.path for item in tracking.client().list_artifacts(runs[1].run_id, "layers")}
    assert {"layers/angular.png", "layers/pruning.svg", "layers/measured.json", "layers/diagnostics.json"} <= names
    table = rows(found.folder / "angular.csv")
    assert {row["model"] for row in table} == set(results)
    assert len(table) == 3 * 3  # two layers: the distances 1, 1 and 2


def test_a_run_on_bytes_is_measured_on_any_text_under_any_label(trained, text):
    run = trained("llama")
    found = diagnose([f"a $\\frac$={run.run_id}"], ["angular"], data=[str(text)])
    assert list(found.results["angular"]) == ["a $\\frac$"]
    assert (found.folder / "angular.png").is_file()


def test_a_model_without_layers_has_nothing_to_measure(store, tiny_settings, capsys):
    settings = {"model.layers": 0, "trainer.diagnose.what": "all", "trainer.max_steps": 4}
    run = train(Experiment.from_mapping(tiny_settings, settings))
    assert run.status == "completed"
    assert main(["diagnose", run.run_id]) == 2
    assert "has no layers" in capsys.readouterr().err


@pytest.mark.usefixtures("_plain_figures")
def test_a_classifier_has_an_accuracy(trained):
    run = trained("vit")
    found = diagnose([run.run_id], ["pruning"]).results["pruning"]
    (result,) = found.values()
    assert result.facts["whole"]["accuracy"] == pytest.approx(run.metrics["val/accuracy"])
    assert result.has("accuracy_change")


@pytest.mark.usefixtures("_plain_figures")
@pytest.mark.addons
def test_a_model_that_cannot_be_measured_so_is_refused_before_it_is_measured(store, vit_settings, monkeypatch):
    layers = {"kind": "convpool", "width": 4, "last_padding": 1}
    run = train(Experiment.from_mapping({**vit_settings, "model": layers}, {"trainer.max_steps": 4})).run_id
    found = diagnose([run], tokens=4)
    assert {"variance", "gradients", "jacobian"} == set(found.results)
    assert any("so angular, pruning, spectral and block_jacobian cannot" in note for note in found.notes)
    monkeypatch.setattr("ablate.diagnostics.measuring.measure", None)
    message = "its layers change the shape of the hidden state, so pruning cannot be measured"
    with pytest.raises(AblateError, match=message):
        diagnose([run], ["variance", "pruning"])
    with pytest.raises(AblateError, match=message.replace("pruning", "angular and pruning")):
        figure("contribution", [run])


@pytest.mark.usefixtures("_plain_figures")
def test_timm_from_a_folder(store, tmp_path):
    import timm
    from PIL import Image
    from timm.models import save_for_hf

    for name in ("cat", "dog"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(4):
            Image.new("RGB", (16, 16), (60 * i, 20, 200)).save(tmp_path / "images" / name / f"{i}.png")
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 3, "num_heads": 2}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=2, **sizes)
    model.pretrained_cfg["input_size"] = (3, 16, 16)
    save_for_hf(model, tmp_path / "model", model_args=sizes)
    found = diagnose([f"timm:{tmp_path / 'model'}"], data=["image_folder", f"root={tmp_path / 'images'}"])
    assert found.results["pruning"]["model"].facts["images"] == 8
    assert set(found.results) == set(ONE_STREAM)


@pytest.fixture(scope="module")
def models(tmp_path_factory, text):
    """A folder with a model that lacks a tokenizer, one that has it, and the text."""
    folder = tmp_path_factory.mktemp("models")
    saved("LlamaForCausalLM", folder / "bare", tokenizer=False)
    saved("LlamaForCausalLM", folder / "whole")
    (folder / "text.txt").write_text(text.read_text())
    return folder


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nobody"], "neither a checkpoint nor a run"),
        (["hf:{tmp}/nowhere"], "There is no folder "),
        (["hf:{tmp}/bare"], "needs text for the measurement"),
        (["hf:{tmp}/bare", "--data", "{tmp}/text.txt"], "has no tokenizer"),
        (["hf:{tmp}/bare", "--data", "{tmp}/text.txt", "tokenizer=bytes"], "has 256 tokens and"),
        (["hf:{tmp}/whole", "--data", "{tmp}/text.txt", "seq_len=64"], "has 32 positions"),
        (["hf:{tmp}/whole", "--data", "{tmp}/text.txt", "seqlen=4"], "Did you mean data.seq_len"),
        (["hf:{tmp}/whole", "--data", "{tmp}/text.txt", "--what", "angulr"], "Did you mean angular"),
        (["hf:{tmp}/whole", "--data", "{tmp}/text.txt", "--positions", "some"], "must be one of all, last"),
        (["timm:nothing"], "Unknown model"),
        (["hf:{tmp}/whole", "--device", "nowhere", "--data", "{tmp}/text.txt"], "--device nowhere"),
    ],
)
def test_mistakes_are_told(store, models, capsys, words, message):
    assert main(["diagnose", *(word.format(tmp=models) for word in words)]) == 2
    assert message in capsys.readouterr().err
