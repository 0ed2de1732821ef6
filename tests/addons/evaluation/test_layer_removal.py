"""Tasks of lm-evaluation-harness without each layer, against models from which the layer was taken out."""

import pytest
from torch import nn

from ablate.addons.evaluation.layer_removal import Benchmarks
from ablate.cli import main
from ablate.data.text.tokenizers import load_tokenizer
from ablate.diagnostics.run import diagnose
from ablate.training.trained import open_trained

pytest.importorskip("lm_eval")
from evaluation.conftest import task_data  # noqa: F401 - a fixture

from ablate.addons.evaluation.scoring import score
from ablate.addons.evaluation.tasks import load_tasks


def test_a_task_without_each_layer_is_scored_as_a_shorter_model(trained, task_data, capsys):  # noqa: F811
    run = trained("llama").run_id
    found = diagnose([run], ["pruning"], benchmarks=Benchmarks(["piqa"], task_data))
    (result,) = found.results["pruning"].values()
    wanted = []
    for left_out in (None, 0, 1):
        model = open_trained(run).model()
        model.layers = nn.ModuleList(layer for i, layer in enumerate(model.layers) if i != left_out)
        scored = score(model, load_tokenizer("bytes"), load_tasks(["piqa"], task_data), length=32)
        wanted.append(scored["piqa"].metrics["acc_norm"])
    assert result.facts["whole"]["piqa/acc_norm"] == wanted[0]
    assert result.column("piqa/acc_norm_change") == [value - wanted[0] for value in wanted[1:]]
    words = ["diagnose", run, "--what", "pruning", "--task-data", str(task_data), "--limit", "2", "--tasks"]
    assert main([*words, "piqa"]) == 0
    assert main([*words, "sciq"]) == 2
    assert "There are no questions of allenai/sciq" in capsys.readouterr().err


def test_what_has_no_tasks(trained, task_data, capsys):  # noqa: F811
    run, vit = (result.run_id for result in trained("llama", "vit"))
    words = ["--tasks", "piqa", "--task-data", str(task_data)]
    for model, what, message in (
        (run, "angular", ("include pruning in --what")),
        (vit, "pruning", "is a model of images, which --tasks cannot score"),
    ):
        assert main(["diagnose", model, "--what", what, *words]) == 2
        assert message in capsys.readouterr().err
