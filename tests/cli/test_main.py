"""The command line as a person uses it: what is printed, the exit status, and each wrong input."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import yaml
from cli.conftest import TINY

from ablate.cli import main
from ablate.experiment.tree import Experiment


@pytest.fixture
def ablate(store, tmp_path, monkeypatch, capsys):
    """ablate(*words) -> (status, stdout, stderr), in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def command(*words):
        status = main([str(word) for word in words])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return command


def refused(answer, *parts):
    status, _, err = answer
    assert status == 2, err
    assert "Traceback" not in err
    for part in parts:
        assert part in err
    return err


# ------------------------------------------------------------------ what works


@pytest.mark.parametrize("module", [True, False])
def test_help_answers_in_under_a_second_and_shows_examples(module):
    command = [sys.executable, "-m", "ablate"] if module else [os.path.join(os.path.dirname(sys.executable), "ablate")]
    times = []
    for _ in range(3):
        before = os.times()
        done = subprocess.run([*command, "--help"], capture_output=True, text=True)
        after = os.times()  # of the processor: other work on the machine does not count
        times.append(after.children_user + after.children_system - before.children_user - before.children_system)
    assert done.returncode == 0
    assert "examples:" in done.stdout
    assert min(times) < 1


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom ablate.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
        "print(' '.join(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "ablate.cli" in loaded
    assert not {"torch", "lightning", "mlflow", "optuna", "pydantic", "rich"} & loaded


@pytest.mark.parametrize("verb", ["train", "sweep", "status", "report", "ui", "list", "config"])
def test_each_verb_has_help_with_an_example(verb, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([verb, "--help"])
    assert stopped.value.code == 0
    assert f"ablate {verb}" in capsys.readouterr().out.partition("example")[2]


def test_options_may_stand_between_settings(ablate):
    status, out, _ = ablate("train", *TINY[:5], "--json", *TINY[5:])
    assert (status, json.loads(out)["step"]) == (0, 4)


@pytest.mark.parametrize("words", [["train", "--jsn"], ["status", "demo", "more"], ["sweep", "s.yaml", "--worker=x"]])
def test_options_that_do_not_exist(words, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith(("ablate: unrecognized arguments: ", "ablate sweep: ambiguous option: "))
    assert told.count("\n") == 1


def test_what_is_missing_is_named(ablate, capsys):
    with pytest.raises(SystemExit):
        main(["report"])
    assert capsys.readouterr().err.endswith("the following arguments are required: SWEEP\n")
    refused(ablate("sweep"), "expected the sweep file, FILE.yaml, or --all --dry-run")
    refused(ablate("sweep", "--all"), "--all: needs --dry-run")
    refused(ablate("sweep", "x.yaml", "--scale-model"), "--scale-model: needs --scale")


@pytest.mark.parametrize("share", ["0", "1.5", "much"])
def test_a_scale_out_of_range_is_refused(share, capsys):
    with pytest.raises(SystemExit):
        main(["sweep", "x.yaml", "--scale", share])
    assert capsys.readouterr().err == f"ablate sweep: --scale: must be a number above 0 and at most 1, given {share}\n"


def test_all_files_are_planned_without_their_data_and_a_broken_one_stops_no_other(ablate, tmp_path):
    refused(ablate("sweep", "--all", "--dry-run"), "this folder has no YAML file in sweeps/")
    folder = tmp_path / "sweeps"
    folder.mkdir()
    away = {"kind": "text", "files": ["nowhere/*.txt"], "tokenizer": "gpt2"}
    tree = {"name": "b", "experiment": {"data": away}, "search": {"optimizer.lr": [1e-3]}, "sampler": "grid"}
    (folder / "b.yaml").write_text(yaml.safe_dump({**tree, "sizes": {"9m": {"model": "llama-9m"}, "tiny": None}}))
    assert ablate("sweep", "--all", "--dry-run")[0] == 0
    (folder / "a.yaml").write_text("name: a\nexperiment: {trainer: {max_step: 3}}\n")
    status, out, err = ablate("sweep", "--all", "--dry-run", "--scale", "0.5", "trainer.batch_size=8")
    assert status == 2
    assert "sweeps/a.yaml" in err
    assert "experiment.trainer.max_step: unknown key" in err
    assert "sweep b-9m-scale0.5: " in out
    assert "sweep b-tiny-scale0.5: " in out
    assert "text files=['nowhere/*.txt'] tokenizer=gpt2 (needed; not checked here)" in out
    assert "150 updates = 307,200 tokens" in out
    assert "Not the full setting (--scale 0.5 and further settings)" in out


def test_config_given_back_is_the_identical_experiment(ablate, tmp_path):
    words = ["norm=mix", "norm.alpha=0.5", "optimizer.lr=1e-3", "model=vit-digits"]
    _, first, _ = ablate("config", *words)
    (tmp_path / "again.yaml").write_text(first)
    assert ablate("config", "again.yaml")[1] == first
    assert Experiment.load(tmp_path / "again.yaml").norm.alpha == 0.5


def test_a_sweep_from_the_file_to_the_report(swept, capsys):
    def told(*words):
        assert main(list(words)) == 0
        return capsys.readouterr().out

    assert "arm post: 2 trials of 4 updates = 512 tokens each" in swept.printed["plan"]
    assert "6 trials, 3,072 tokens" in swept.printed["plan"]
    assert "[6/6]" in swept.printed["run"]
    assert "learning_rate.png" in swept.printed["run"]
    assert "not evidence" in " ".join(swept.printed["run"].split())
    status = told("status")
    assert "demo" in status
    assert "post" in status
    report = json.loads(told("report", "demo", "--json"))
    best = {arm: report["arms"][arm]["best"]["value"] for arm in ("pre", "post", "mix")}
    values = {arm: [t["value"] for t in report["trials"] if t["arm"] == arm] for arm in best}
    assert best == {arm: min(losses) for arm, losses in values.items()}
    assert all(os.path.exists(file) for file in report["figures"])
    assert "demo" in told("list", "sweeps")


def test_schema_describes_experiments_and_sweeps(ablate):
    experiment, sweep = (json.loads(ablate("config", "--schema", *flag)[1]) for flag in ([], ["--sweep"]))
    assert "norm" in experiment["properties"]
    assert "arms" in sweep["properties"]


# ------------------------------------------------------------------ what is wrong


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["norm=prre"], ["norm", "unknown placement 'prre'", "Did you mean pre?"]),
        (["norm.layer=rms"], ["unknown norm layer 'rms'", "rmsnorm"]),
        (["model=vit", "data=topics"], ["data.kind", "Accepted: digits, image_folder"]),
        (["optimizer.lr=fast"], ["optimizer.lr: must be a number"]),
        (["max_steps"], ["expected FILE.yaml or key=value, given 'max_steps'"]),
        (["absent.yaml"], ["there is no file absent.yaml"]),
        (["data=text"], ["data: needs", "files", "dataset"]),
    ],
)
def test_wrong_settings(ablate, words, parts):
    refused(ablate("train", *words), *parts)


@pytest.mark.parametrize("run_id", ["", " "])
def test_an_empty_run_is_no_new_one(ablate, run_id, store):
    refused(
        ablate("train", "--resume", run_id, "trainer.max_steps=1"),
        f"--resume: expected the id of a run, given {run_id!r}",
        "new run",
    )
    assert not (store / "runs").exists()


def test_a_missing_data_file(ablate):
    refused(ablate("train", "data=text", "data.files=absent.txt"), "absent.txt")


def test_a_tracking_server_that_is_away(ablate, monkeypatch):
    from ablate import tracking

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@127.0.0.1:9")
    tracking.client.cache_clear()
    begin = time.monotonic()
    err = refused(ablate("train", *TINY), "127.0.0.1:9", "MLFLOW_TRACKING_URI")
    assert "secret" not in err
    assert time.monotonic() - begin < 30


def test_a_damaged_database(ablate, store):
    from ablate import tracking

    (store / "mlflow.db").write_bytes(b"this is no database" * 500)
    tracking.client.cache_clear()
    refused(ablate("train", *TINY), "mlflow.db", "damaged")


@pytest.mark.parametrize(("verb", "status"), [("status", 0), ("sweep", 141)])
def test_a_reader_that_has_gone_is_no_failed_trial(verb, status, monkeypatch):
    """Nothing is lost where it only looked; a sweep was cut short."""

    def gone(given):
        raise BrokenPipeError

    monkeypatch.setattr(f"ablate.cli.{verb}.run", gone)
    monkeypatch.setattr("os.dup2", lambda *_: None)
    assert main([verb, *(["any.yaml"] if verb == "sweep" else [])]) == status


@pytest.mark.parametrize("file", ["/store/x", None])
def test_a_file_that_cannot_be_written_or_read_is_told_in_a_sentence(file, monkeypatch, capsys):
    def fail(given):
        raise OSError(errno.ENOSPC, "No space left on device", file)

    monkeypatch.setattr("ablate.cli.status.run", fail)
    assert main(["status"]) == 2
    assert f"ablate status: {file or 'a file cannot be written'}: No space left on device." in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_ends_a_sweep_in_order_before_its_first_trial(number, store, tmp_path, monkeypatch, capsys):
    (tmp_path / "early.yaml").write_text("{name: early, sampler: grid, search: {optimizer.lr: [0.001]}}")
    monkeypatch.setattr("ablate.scheduler.run.sweep", lambda *_, **__: os.kill(os.getpid(), number))
    before = signal.getsignal(number)
    assert main(["sweep", str(tmp_path / "early.yaml")]) == 130
    assert "Stopped." in capsys.readouterr().err
    assert signal.getsignal(number) is before


def test_sigterm_in_a_callback_of_the_garbage_collection_is_not_lost(store, tmp_path, monkeypatch, capsys):
    """There Python reports an exception and goes on. `timeout` sends two signals, and neither is told."""
    (tmp_path / "early.yaml").write_text("{name: early, sampler: grid, search: {optimizer.lr: [0.001]}}")

    class Garbage:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)

    def prepare(*_, **__):
        del (rubbish := [Garbage()])[0]
        assert not rubbish
        threading.Event().wait(10)
        pytest.fail("it was lost")

    monkeypatch.setattr("ablate.scheduler.run.sweep", prepare)
    hook = sys.unraisablehook
    assert main(["sweep", str(tmp_path / "early.yaml")]) == 130
    told = capsys.readouterr().err
    assert told.startswith("\nStopped.")
    assert "KeyboardInterrupt" not in told
    assert sys.unraisablehook is hook


def test_a_verb_that_does_not_exist(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["trian", "norm=pre"])
    assert stop.value.code == 2
    assert "unknown verb 'trian'" in (told := capsys.readouterr().err)
    assert "Did you mean train?" in told


@pytest.mark.parametrize("word", ["search={optimizer.lr: [1e-3]}", "arms.mine.norm=pre"])
def test_what_only_the_file_can_set(ablate, tmp_path, word):
    (tmp_path / "s.yaml").write_text("name: s\nsearch: {optimizer.lr: [1.0e-3, 3.0e-3]}\n")
    refused(ablate("sweep", "s.yaml", word), "only the file can set this", "search.optimizer.lr=[1e-3,3e-3]")


def test_a_missing_file_is_told_before_a_run_is_announced(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "data=text", "data.files=missing.txt"]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", f"ablate train: There is no file {tmp_path / 'missing.txt'}.\n")
