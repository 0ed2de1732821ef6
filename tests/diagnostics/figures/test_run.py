"""`ablate diagnose --what figure:NAME` on a sweep with two seeds of each arm."""

import csv
import json

import numpy as np
import pytest

from ablate import tracking
from ablate.addons.evaluation.layer_removal import Benchmarks
from ablate.cli import main
from ablate.diagnostics.figures import figures
from ablate.diagnostics.figures.rows import INITIAL_GRADIENTS, KEYS, AngleMaps, RemovalBars
from ablate.diagnostics.figures.run import draw, figure
from ablate.diagnostics.kinds import papers
from ablate.diagnostics.measures import measurements
from ablate.diagnostics.measuring import join_notes, measure
from ablate.diagnostics.opening import Opening, open_model
from ablate.diagnostics.run import diagnose
from ablate.plots.marks import Bars, Points

T = 12.706204736432095  # of Student's t with one degree of freedom


def test_the_numbers_are_those_of_every_checkpoint(sweep, runs, tmp_path):
    drawing = figure("mixing", "small", output=tmp_path, tokens=96)
    assert list(drawing.rows) == ["angular", "pruning", "gradients_initial", "gradients"]
    for key, numbers in drawing.rows.items():
        assert list(numbers) == ["pre", "post"]
        for arm, one in numbers.items():
            for (seed, result), run in zip(one.seeds.items(), runs[arm], strict=True):
                assert seed == run.seed
                prefix = "init:" if key.endswith("initial") else ""
                kind = measurements[key.partition("_")[0]]
                subject = open_model(f"{prefix}{run.run_id}", Opening()).subject
                assert result.rows == measure(subject, [kind], tokens=96)[kind.name].rows
            check_mean(*one.seeds.values(), one.mean)
    check_table(tmp_path / "mixing.csv", drawing)
    content = json.loads((tmp_path / "mixing.json").read_text())
    (post,) = (row for row in content["rows"]["pruning"]["post"]["mean"]["rows"] if row["layer"] == 2)
    assert post["loss_increase"] == drawing.rows["pruning"]["post"].mean.column("loss_increase")[1]


def check_mean(one, other, mean):
    for a, b, row in zip(one.rows, other.rows, mean.rows, strict=True):
        for column in set(a) - set(KEYS):
            if not column.endswith("_error"):
                assert row[column] == pytest.approx((a[column] + b[column]) / 2)
                assert row.get(f"{column}_error", 0) == pytest.approx(T * abs(a[column] - b[column]) / 2)


def check_table(file, drawing):
    with file.open() as opened:
        rows = [row for row in csv.DictReader(opened) if (row["quantity"], row["model"]) == ("gradients", "pre")]
    mean = drawing.rows["gradients"]["pre"].mean
    assert [float(row["mean"]) for row in rows] == mean.column("gradient_norm")
    halves = mean.column("gradient_norm_error")
    assert [float(row["high"]) - float(row["low"]) for row in rows] == pytest.approx([2 * half for half in halves])
    assert {row["seeds"] for row in rows} == {"2"}


def test_a_figure_shows_them_in_the_axes_of_the_paper(sweep, tmp_path):
    drawing = figure("lns-7", "small", output=tmp_path, tokens=96)
    bars, maps = (part.panels for part in draw(figures["removal"], drawing.rows).parts)
    for panel, one in zip(bars, drawing.rows["pruning"].values(), strict=True):
        (shown,) = (mark for mark in panel.marks if isinstance(mark, Bars))
        assert shown.heights == one.mean.column("loss_increase")
        seeds = [mark.ys for mark in panel.marks if isinstance(mark, Points)]
        assert seeds == [result.column("loss_increase") for result in one.seeds.values()]
    for panel, one in zip(maps, drawing.rows["angular"].values(), strict=True):
        (cells,) = panel.marks
        assert cells.limits == (0, 1)
        assert cells.extent == (0.5, 3.5, 0.5, 3.5)  # the first row is the lowest
        assert (panel.x.label, panel.y.label) == ("layer l", "n-th subsequent layer")
        for row in one.mean.rows:
            assert cells.values[int(row["distance"]) - 1, int(row["layer"]) - 1] == row["angular_distance"]
        assert np.isfinite(cells.values).sum() == 3 + 2 + 1
    assert bars[0].title.startswith("pre, 2 seeds, ± ")
    assert "LayerNorm Scaling, figure 7, in the paper: LLaMA-130M: Pre-LN and LayerNorm Scaling." in drawing.notes


def test_a_course_is_that_of_the_training_of_each_seed(sweep, runs, tmp_path):
    drawing = figure("variance-course", "sweep:small/post", output=tmp_path)
    for run in runs["post"]:
        with open(tracking.client().download_artifacts(run.run_id, "layers/training.json")) as file:
            course = json.load(file)["history"]["variance"]
        expected = [(int(seen) / (4 * 32), n, v) for seen, row in course.items() for n, v in enumerate(row, 1)]
        rows = drawing.rows["variance_training"]["post"].seeds[run.seed].rows
        assert [(row["update"], row["layer"], row["variance"]) for row in rows] == sorted(expected)
    (panel,) = draw(figures["variance-course"], drawing.rows).panels
    means = drawing.rows["variance_training"]["post"].mean.rows
    for layer, line in enumerate(panel.marks[:3], 1):
        own = [row for row in means if row["layer"] == layer]
        assert line.xs == [0, 2, 4] == [row["update"] for row in own]
        assert line.ys == [row["variance"] for row in own]
    blue, red = (panel.marks[i].colour for i in (0, 2))
    assert blue[5:] > blue[1:3]
    assert red[1:3] > red[5:]


@pytest.mark.parametrize("name", figures)
def test_every_figure_is_one_command(sweep, tmp_path, capsys, name):
    assert main(["diagnose", "small", "--what", f"figure:{name}", "--tokens", "64", "--output", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert f"Figure and numbers are in {tmp_path}" in text
    assert {file.suffix for file in tmp_path.glob(f"{name}.*")} == {".png", ".svg", ".csv", ".json"}
    titles = {row.key: row.title for row in reversed(figures[name].rows)}
    assert all(f"\n{title}: " in text for title in titles.values())


def test_stored_measurements_are_read(sweep, tmp_path, monkeypatch):
    first = figure("variance", "small", output=tmp_path / "first", tokens=32)
    monkeypatch.setattr("ablate.diagnostics.measuring._take", None)
    assert figure("variance", "small", output=tmp_path / "second", tokens=32).rows == first.rows


def test_a_model_is_drawn_beside_arms_without_seeds(sweep, runs, tmp_path):
    run = runs["pre"][0].run_id
    drawing = figure("variance", ["small", f"one={run}"], output=tmp_path, tokens=32)
    assert [one.seed_count for one in drawing.rows["variance"].values()] == [2, 2, 0]
    assert drawing.rows["variance"]["one"].mean.rows == next(iter(drawing.rows["variance"]["pre"].seeds.values())).rows


def test_a_note_is_said_once_for_all_models_that_it_is_about(sweep, runs, tmp_path):
    tokens = open_model(runs["pre"][0].run_id, Opening()).subject.items * 32
    few = f"the data has {tokens} tokens, fewer than 256,000."
    assert figure("variance", "small", output=tmp_path).notes == [f"All models: {few}"]
    models = [f"one={runs['pre'][0].run_id}", f"other={runs['post'][0].run_id}"]
    assert diagnose(models, ["variance"], output=tmp_path).notes == [f"All models: {few}"]
    assert diagnose(models[:1], ["variance"], output=tmp_path).notes == [f"one: {few}"]
    assert join_notes({"a": ["x."], "b": ["y.", "x."], "c": ["y."]}) == ["a and b: x.", "b and c: y."]


@pytest.mark.parametrize("name", papers)
def test_every_number_of_a_paper_is_drawn_by_a_figure(name):
    assert papers[name].figure in figures


def test_the_figures_5_and_6_of_mix_ln_have_the_panels_of_the_paper():
    five, six = (figures[papers[name].figure].rows for name in ("mixln-5", "mixln-6"))
    assert [type(row) for row in five] == [AngleMaps]
    assert [*six] == [INITIAL_GRADIENTS, RemovalBars()]


def test_a_number_of_a_paper_says_which_tasks_it_measures(sweep, tmp_path, capsys):
    assert (
        main(["diagnose", "sweep:small/pre", "--what", "figure:mixln-3", "--tokens", "32", "--output", str(tmp_path)])
        == 0
    )
    assert "There the performance is that on arc_easy: --tasks arc_easy." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["varience", "small"], "Did you mean variance"),
        (["mixln-4", "small"], "unknown figure 'mixln-4'. Accepted: removal"),
        (["removal", "sweep:small/pr"], "Did you mean pre"),
        (["removal", "sweep:small/pre", "sweep:small/pre"], "Two models are called pre"),
        (["spectral", "small", "--tasks", "arc_easy"], "--tasks is for layer removal, which spectral does not show"),
        (["variance-course", "timm:vit"], "vit: variance-course shows what is measured in training"),
        (["mixing", "small", "hf:some/model"], "before and after training, and hf:some/model has one of the two"),
        (["mixing", "timm:one", "init:two"], "before and after training, and timm:one, init:two has one of the two"),
        (["removal", "small", "--positions", "some"], "must be one of all, last"),
    ],
)
def test_mistakes_are_told(sweep, tmp_path, capsys, words, message):
    name, *models = words
    assert main(["diagnose", *models, "--what", f"figure:{name}", "--output", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_a_course_needs_measurements_in_training(sweep, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("ablate.diagnostics.figures.run.read_measurements", lambda run, files: iter(()))
    assert main(["diagnose", "small", "--what", "figure:lns-4", "--output", str(tmp_path)]) == 2
    text = " ".join(capsys.readouterr().err.split())
    assert "pre, post: variance-course shows what is measured in training" in text
    assert "trainer.diagnose.what=variance" in text


def test_images_have_no_tasks(trained, tmp_path):
    run = trained("vit")
    with pytest.raises(Exception, match="a model of images, which --tasks cannot score"):
        figure("removal", run.run_id, output=tmp_path, benchmarks=Benchmarks(["arc_easy"]))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--what", "figure:variance,angular"], "are asked for alone, not as in --what figure:variance,angular"),
        (["--what", "word_similarity,angular"], "are asked for alone, not as in --what word_similarity,angular"),
        (["--what", "word_similarity"], "--what word_similarity needs --pairs FILE"),
        (["--what", "angular", "--pairs", "pairs.txt"], "--pairs is for word similarity: --what word_similarity"),
        (["--what", "angular", "--storage", "sqlite:///x.db"], "--storage is for the sweeps of a figure"),
        (["--what", "figure:variance", "--widths", "32"], "--widths is for the coordinate check"),
    ],
)
def test_options_of_another_kind_are_refused(words, message, capsys):
    assert main(["diagnose", "any", *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
