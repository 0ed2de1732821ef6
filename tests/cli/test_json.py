"""With --json stdout is one JSON document, whatever else there is to say."""

import fcntl
import json
import threading

import pytest
import yaml
from cli.conftest import TINY

from ablate.cli import VERBS, build_parser, main
from ablate.cli.output import print_json
from ablate.experiment.tree import Experiment
from ablate.scheduler.storage import open_storage, storage_url
from ablate.training.procedures import Hooks
from ablate.training.train import train
from benchmarks.simulation.sweeps import simulate

SAID = "a remark of a library"
QUESTION = {"goal": "Boil an egg", "sol1": "# pot of water", "sol2": "@ dry pan", "label": 0}
LADDER = {
    "name": "toy",
    "experiment": {"data": {"kind": "topics", "seq_len": 32}, "schedule": {"warmup_steps": 2}},
    "sizes": {
        size: {"model": {"hidden": width, "layers": 2, "heads": 2, "mlp": 2 * width}}
        for size, width in (("s", 16), ("m", 32))
    },
    "arms": {"pre": {"norm": "pre"}, "post": {"norm": "post"}},
    "search": {"optimizer.lr": [1e-3, 3e-3]},
    "sampler": "grid",
    "confirm": {"seeds": 3},
}


@pytest.fixture
def document(capsys):
    """document(*words) -> what a command prints on stdout, from JSON; `document.err` is what it says besides."""

    def command(*words):
        status = main([str(word) for word in words])
        captured = capsys.readouterr()
        command.err = captured.err
        assert status == 0, captured.err
        return parse(captured.out)

    return command


def parse(text):
    """JSON as its standard has it: without NaN and Infinity."""

    def refuse(word):
        raise ValueError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_train(swept, document):
    assert document("train", *TINY, "--json")["status"] == "completed"
    assert "In MLflow" in document.err


def test_a_run_that_diverges(swept, document):
    content = document("train", *TINY, "optimizer.lr=1e30", "schedule.warmup_steps=0", "--json")
    assert content["status"] == "diverged"
    assert content["reason"]
    assert set(content.get("not_finite", {})) == {
        f"metrics.{name}" for name, value in content["metrics"].items() if value is None
    }


def test_numbers_that_json_has_no_word_for(capsys):
    nan, inf = float("nan"), float("inf")
    documents = [
        {"metrics": {"val/loss": nan, "val/accuracy": 0.5}, "curve": [[1, inf], [2, -inf]]},
        {"status": "diverged", "metrics": {"val/loss": nan}},
        {"status": "completed", "metrics": {"val/loss": 2.5}, 3: (1, None, True)},
    ]
    print_json(documents)
    assert parse(capsys.readouterr().out) == [
        {
            "status": "not finite",
            "metrics": {"val/loss": None, "val/accuracy": 0.5},
            "curve": [[1, None], [2, None]],
            "not_finite": {"metrics.val/loss": "nan", "curve.0.1": "inf", "curve.1.1": "-inf"},
        },
        {"status": "diverged", "metrics": {"val/loss": None}, "not_finite": {"metrics.val/loss": "nan"}},
        {"status": "completed", "metrics": {"val/loss": 2.5}, "3": [1, None, True]},
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["report", "demo"],
        ["sweep", "demo.yaml", "--dry-run"],
        ["config", "norm=mix"],
        ["plan", *TINY],
        ["plan", "demo.yaml"],
        ["list", "placements"],
        ["list", "sweeps"],
        ["diagnose", "sweep:demo/pre", "sweep:demo/mix", "--what", "angular", "--tokens", "100"],
    ],
    ids=" ".join,
)
def test_what_only_reads(swept, document, words):
    assert document(*words, "--json")


@pytest.mark.addons
def test_word_similarity(swept, document, tmp_path, monkeypatch):
    (tmp_path / "pairs.txt").write_text("a\tb\t7\nb\tc\t3\na\tc\t2\n")
    words = ["diagnose", "sweep:demo/pre", "sweep:demo/mix", "--what", "word_similarity", "--neighbours", 5]
    words += ["--pairs", tmp_path / "pairs.txt"]
    monkeypatch.setattr("ablate.addons.papers.word_similarity.find_token", lambda word, _: ord(word))
    assert len(document(*words, "--json")["similarities"]) == 4


@pytest.mark.addons
def test_evaluate(swept, document, tmp_path):
    pytest.importorskip("lm_eval")
    (tmp_path / "piqa").mkdir()
    for split in ("train", "validation"):
        (tmp_path / "piqa" / f"{split}.jsonl").write_text(f"{json.dumps(QUESTION)}\n" * 2)
    words = ["evaluate", "sweep:demo", "--tasks", "piqa", "--task-data", tmp_path]
    assert {one["model"].partition("/")[2] for one in document(*words, "--json")} == {"pre", "post", "mix"}


@pytest.mark.addons
def test_align(swept, document, pairs):
    pytest.importorskip("trl")
    words = ["--method", "dpo", "--pairs", pairs, "--template", "plain", "--steps", 1, "--batch-size", 2]
    assert document("align", "sweep:demo/pre", *words, "--json")["status"] == "completed"
    diverged = document("align", "sweep:demo/pre", *words[:-4], "--steps", 2, *words[-2:], "--lr", 1e38, "--json")
    assert diverged["status"] == "diverged"


def test_a_sweep_that_has_run(swept, document):
    (one,) = document("sweep", "demo.yaml", "--json")["sweeps"]
    assert "demo" in document.err  # the report for people
    told = document("report", "demo", "--json")  # draws nothing, and asks MLflow for nothing
    assert {**one, "mlflow": None, "figures": None} == {**told, "mlflow": None, "figures": None}


def test_the_plans_of_all_files(swept, document, tmp_path, monkeypatch):
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "toy.yaml").write_text(yaml.safe_dump(LADDER))
    monkeypatch.chdir(tmp_path)
    (one,) = document("sweep", "--all", "--dry-run", "--json")["files"]
    assert (one["file"], len(one["plans"]), one["problem"]) == ("sweeps/toy.yaml", 2, None)


@pytest.mark.addons
def test_export(swept, document, tmp_path):
    content = document("export", "sweep:demo/pre", "--to", "safetensors", "--output", tmp_path / "exported", "--json")
    assert content["files"] == sorted(file.name for file in (tmp_path / "exported").iterdir())


@pytest.mark.addons
def test_sizes(store, document, tmp_path, monkeypatch):
    file = tmp_path / "toy.yaml"
    file.write_text(yaml.safe_dump(LADDER))

    def sweep(spec, *, console, **_):
        console.print("a line of progress")
        print(SAID)
        return simulate(spec, lambda arm, params, seed: 3 + len(arm) + seed / 7, open_storage(storage_url()))

    monkeypatch.setattr("ablate.scheduler.run.sweep", sweep)
    assert set(document("sweep", file, "--json")["over_sizes"]["losses"]) == {"pre", "post"}
    assert SAID in document.err
    assert "a line of progress" in document.err

    def diverge(spec, **_):
        return simulate(
            spec, lambda arm, params, seed: float("inf" if arm == "post" else 3), open_storage(storage_url())
        )

    monkeypatch.setattr("ablate.scheduler.run.sweep", diverge)
    assert set(document("sweep", file, "name=other", "--json")["over_sizes"]["losses"]) == {"pre", "post"}


def test_every_verb_with_json_is_run_here():
    verbs = next(action for action in build_parser()._actions if action.dest == "verb").choices
    assert len(verbs) == len(VERBS)
    with_json = {name for name, parser in verbs.items() if "--json" in parser._option_string_actions}
    assert set(verbs) - with_json == {"ui", "work"}
    # servers, and one process of many, whose results are the sweep's


# ------------------------------------------------------------------ a run that goes on


@pytest.fixture
def interrupted(store, tiny_settings):
    """(the id, the folder) of a run that was stopped after some updates."""
    counter = iter(range(1, 100))
    result = train(Experiment.from_mapping(tiny_settings), hooks=Hooks(asked_to_stop=lambda: next(counter) == 6))
    assert result.status == "interrupted"
    return result.run_id, store / "runs" / result.run_id


def test_a_run_goes_on_from_a_damaged_checkpoint(interrupted, document):
    run_id, folder = interrupted
    file = folder / "last.ckpt"
    file.write_bytes(file.read_bytes()[:1000])
    assert document("train", "--resume", run_id, "--json")["status"] == "completed"
    assert f"The checkpoint {file} is damaged" in document.err


def test_a_run_goes_on_when_another_process_lets_it(interrupted, document):
    run_id, folder = interrupted
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        threading.Timer(1, fcntl.flock, (lock, fcntl.LOCK_UN)).start()
        assert document("train", "--resume", run_id, "--json")["status"] == "completed"
    assert f"Another process is training the run {run_id}; waiting for it to end." in document.err


def test_a_mistake_leaves_stdout_empty(swept, capsys):
    assert main(["report", "nosuch", "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "There is no sweep 'nosuch'" in captured.err
