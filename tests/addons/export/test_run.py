"""Exported models, against ours: logits, parameters, the validation loss."""

import json
import os
import subprocess
import sys

import pytest
import torch

from ablate.addons.export.run import export
from ablate.cli import main
from ablate.config.errors import AblateError
from ablate.experiment.tree import Experiment

transformers = pytest.importorskip("transformers")
from export.cases import CASES, LLAMA, SEQ, VOCAB, checkpoint  # noqa: E402
from safetensors.torch import load_file  # noqa: E402


@pytest.fixture(autouse=True)
def _own_modules_cache(tmp_path, monkeypatch):
    """transformers copies the code of a folder into its cache."""
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))


def loaded(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()


UNLIKE_ANY = {"model.attention", "norm.final_norm", "model.layers", "model.sublayers", "parametrization"}
NATIVE = {
    ("pre", "rmsnorm", None): "LlamaForCausalLM",
    ("pre", "rmsnorm", "head"): "Qwen3ForCausalLM",
    ("pre", "layernorm", None): "StableLmForCausalLM",
    ("olmo2", "rmsnorm", "width"): "Olmo2ForCausalLM",
    ("olmo2", "rmsnorm", "head"): "Exaone4ForCausalLM",
    ("sandwich", "rmsnorm", None): "Glm4ForCausalLM",
    ("sandwich_scaled", "rmsnorm", None): "Glm4ForCausalLM",
}


@pytest.mark.parametrize(
    ("kind", "settings"), CASES, ids=lambda part: part if isinstance(part, str) else " ".join(map(str, part.values()))
)
def test_transformers_gives_our_logits(kind, settings, tmp_path):
    if settings.get("norm.layer") == "groupnorm":
        settings = {**settings, "norm.layer.groups": 2}
    file, ours = checkpoint(tmp_path, {"norm": kind, **settings})
    export(str(file), "hf", tmp_path / "out")
    theirs = loaded(tmp_path / "out")
    tokens = torch.randint(VOCAB, (2, SEQ), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, ours(tokens), rtol=1e-5, atol=1e-5)
    count = sum(p.numel() for p in theirs.parameters())
    assert count == ours.parameter_count()
    layer, qk = settings.get("norm.layer", "rmsnorm"), settings.get("norm.qk")
    layer = layer if isinstance(layer, str) else layer["kind"] + ", no bias" * ("bias" in layer)
    qk = qk and (settings.get("norm.qk_over", "head") if qk == layer else "another")
    unlike = UNLIKE_ANY & {*settings} or (layer == "layernorm" and "model.head_dim" in settings)
    expected = "AblateForCausalLM" if unlike else NATIVE.get((kind, layer, qk), "AblateForCausalLM")
    assert type(theirs).__name__ == expected
    code = tmp_path / "out" / "modeling_ablate.py"
    assert code.exists() is (expected == "AblateForCausalLM")


def test_it_generates_and_saves_again(tmp_path):
    file, _ = checkpoint(tmp_path, {"norm": "sandwich"})
    export(str(file), "hf", tmp_path / "out")
    model = loaded(tmp_path / "out")
    tokens = torch.tensor([[1, 2, 3]])
    made = model.generate(tokens, max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert made[0, 3] == model(tokens).logits[0, -1].argmax()
    assert made.shape == (1, 7)
    model.save_pretrained(tmp_path / "again")
    torch.testing.assert_close(loaded(tmp_path / "again")(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize("form", ["consolidated", "safetensors"])
@pytest.mark.parametrize("family", ["llama", "vit"])
def test_the_weights_alone(form, family, tmp_path):
    if family == "llama":
        file, model = checkpoint(tmp_path, {"norm": "mix", "model.tie_embeddings": True})
    else:
        sizes = {"model": {"kind": "vit", "hidden": 16, "layers": 2, "heads": 2}}
        file, model = checkpoint(tmp_path, {"norm": "post"}, sizes, 10, (1, 8, 8))
    export(str(file), form, tmp_path / "out")
    if form == "consolidated":
        state = torch.load(tmp_path / "out" / "model.pt", weights_only=True)
    else:
        state = load_file(tmp_path / "out" / "model.safetensors")
    expected = model.state_dict()
    missing = {"lm_head.weight"} if family == "llama" and form == "safetensors" else set()  # it is the embedding
    assert set(expected) - set(state) == missing
    assert all(torch.equal(value, expected[name]) for name, value in state.items())
    config = Experiment.load(tmp_path / "out" / "config.yaml")
    assert config.model.kind == family


@pytest.mark.parametrize(("kind", "name"), [("pre", "llama"), ("lns", "lns")])
def test_a_run_keeps_its_validation_loss(kind, name, trained, tmp_path, tiny_settings, capsys):
    from ablate import tracking

    experiment, result = Experiment.from_mapping(tiny_settings, {"norm": kind}), trained(name)
    assert main(["export", result.run_id, "--to", "hf", "--output", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert f"{result.facts['ablate.parameters']:,} parameters after {result.step} updates" in said
    val = experiment.data.load(tracking.cache_folder()).val
    inputs, targets = val.__getitems__(range(len(val)))
    with torch.no_grad():
        logits = loaded(tmp_path / "out")(inputs).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()
    assert loss == pytest.approx(result.metrics["val/loss"], abs=1e-5)


def test_the_tokenizer_goes_along(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.save(str(tmp_path / "mine.json"))
    data = {"data": "text", "data.files": "*.txt", "data.tokenizer": str(tmp_path / "mine.json"), "data.seq_len": SEQ}
    file, _ = checkpoint(tmp_path, {**data, "norm": "post"}, {"model": LLAMA["model"]})
    export(str(file), "hf", tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert theirs("b a b")["input_ids"] == [1, 0, 1]
    assert theirs.eos_token == "<eos>"
    (tmp_path / "mine.json").unlink()
    assert "could not be written" in export(str(file), "hf", tmp_path / "without")
    assert (tmp_path / "without" / "model.safetensors").exists()


def test_a_plugin_is_exported(tmp_path, registries):
    (tmp_path / "mine.py").write_text(
        "import math\nfrom typing import Literal\nfrom torch import nn\n"
        "from ablate.norms import Placement, placements\n"
        "ROOT, POWER = 0.25, 2\n\n\ndef damp(x, power=POWER):\n    return x * math.sqrt(ROOT) * power / 2\n\n\n"
        "class MineResidual(nn.Module):\n    plus = 0.5\n\n"
        "    def __init__(self, site):\n        super().__init__()\n        self.norm = site.norm()\n"
        "        self.by = {'factor': 1.5}\n\n"
        "    def forward(self, x, f, *args):\n        return x + self._branch(f(self.norm(x), *args))\n\n"
        "    def _branch(self, y):\n        return damp(y) * self.by['factor'] + self.plus\n\n\n"
        "@placements.register\nclass Mine(Placement):\n    kind: Literal['mine'] = 'mine'\n\n"
        "    def residual(self, site):\n        return MineResidual(site)\n"
    )
    file, ours = checkpoint(tmp_path, {"plugins": str(tmp_path / "mine.py"), "norm": "mine"})
    export(str(file), "hf", tmp_path / "out")
    tokens = torch.arange(SEQ)[None]
    torch.testing.assert_close(loaded(tmp_path / "out")(tokens).logits, ours(tokens))


def test_without_ablate_it_is_told_what_to_install(tmp_path):
    file, _ = checkpoint(tmp_path, {"norm": "post"})
    export(str(file), "hf", tmp_path / "out")
    code = (
        "import ablate, sys; from transformers import AutoModelForCausalLM; sys.modules['ablate'] = None\n"
        "AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)"
    )
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules")}
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "out"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "ImportError: This model has norms that transformers does not have, and is built by Ablate" in done.stderr


def test_a_plugin_that_no_run_of_the_store_used_is_not_run(tmp_path, registries):
    file, _ = checkpoint(tmp_path, {"norm": "post"})
    export(str(file), "hf", tmp_path / "out")
    (tmp_path / "mine.py").write_text("raise SystemExit('code of somebody else was run')")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    config["experiment"]["plugins"] = [str(tmp_path / "mine.py")]
    (tmp_path / "out" / "config.json").write_text(json.dumps(config))
    with pytest.raises(AblateError, match=r"it needs the plugin .*mine\.py, and no run of this store has used"):
        loaded(tmp_path / "out")


def test_a_tensor_that_no_checkpoint_has_is_refused(tmp_path, registries):
    (tmp_path / "odd.py").write_text(
        "from typing import Literal\nimport torch\nfrom torch import nn\n"
        "from ablate.norms import Placement, placements\n"
        "class OddResidual(nn.Module):\n"
        "    def __init__(self, site):\n        super().__init__()\n"
        "        self.register_buffer('table', torch.ones(1), persistent=False)\n        self.other = torch.ones(1)\n"
        "    def forward(self, x, f, *args):\n        return x + self.table * self.other * f(x, *args)\n"
        "@placements.register\nclass Odd(Placement):\n    kind: Literal['odd'] = 'odd'\n"
        "    def residual(self, site):\n        return OddResidual(site)\n"
    )
    file, _ = checkpoint(tmp_path, {"plugins": str(tmp_path / "odd.py"), "norm": "odd"})
    with pytest.raises(AblateError, match="OddResidual computes other, table, which no checkpoint has"):
        export(str(file), "hf", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.part").exists()


def test_mistakes_are_told(tmp_path, store, capsys):
    file, _ = checkpoint(tmp_path, {"norm": "pre"})
    out = str(tmp_path / "out")

    def said(*words):
        assert main(["export", *words]) == 2
        return capsys.readouterr().err

    assert "Did you mean safetensors?" in said(str(file), "--to", "safetensor", "--output", out)
    assert "nowhere is neither a checkpoint nor a run" in said("nowhere", "--to", "hf", "--output", out)
    assert "(300 characters) is neither a checkpoint nor a run" in said("a" * 300, "--to", "hf", "--output", out)
    assert "cannot be written: File name too long" in said(str(file), "--to", "hf", "--output", "a" * 300)
    (tmp_path / "out").mkdir()
    assert "out exists" in said(str(file), "--to", "hf", "--output", out)
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    assert "is damaged" in said(str(file), "--to", "hf", "--output", out + "2")
    changed = bytearray(content)
    changed[len(content) // 2] ^= 1
    file.write_bytes(changed)
    assert "is damaged" in said(str(file), "--to", "hf", "--output", out + "2")
    torch.save({"state_dict": {}}, file)
    assert "is not a checkpoint of this version of Ablate" in said(str(file), "--to", "hf", "--output", out + "2")
    sizes = {"model": {"kind": "vit", "hidden": 16, "layers": 2, "heads": 2}}
    vit, _ = checkpoint(tmp_path, {}, sizes, 10, (1, 8, 8))
    assert "Accepted for it: timm, consolidated, safetensors" in said(str(vit), "--to", "hf", "--output", out + "2")
    assert not (tmp_path / "out2").exists()


def test_the_configuration_has_the_parts_that_make_the_model(tmp_path):
    file, _ = checkpoint(tmp_path, {"norm": "lns"})
    export(str(file), "hf", tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert set(config["experiment"]) == {"plugins", "model", "norm", "init", "parametrization"}
    assert config["experiment"]["norm"]["kind"] == "lns"
