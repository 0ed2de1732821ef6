"""Results in stores and in folders of logs, written by their own libraries."""

import struct
import sys
from types import SimpleNamespace

import optuna
import pytest
import yaml

from ablate import AblateError, judge, tracking
from ablate.addons.judging import stores
from ablate.addons.judging.logs import _BLOCK, read_folder
from ablate.cli import main

PRE, POST = [2.10, 2.14, 2.11, 2.16, 2.12], [2.20, 2.25, 2.22, 2.26, 2.21]


@pytest.fixture
def experiment(store):
    """An experiment of MLflow with the runs of two arms, one that crashed and one that is running."""
    client = tracking.client()
    number = client.create_experiment("norms", artifact_location=(store / "artifacts").as_uri())
    ends = {("post", 5): "FAILED", ("pre", 5): "RUNNING"}
    for arm, values in {"pre": [*PRE, 9.0], "post": [*POST, 9.0]}.items():
        for seed, value in enumerate(values):
            run = client.create_run(number, run_name=f"{arm} {seed}").info.run_id
            client.log_param(run, "norm", arm)
            client.log_param(run, "train.seed", seed)
            client.log_metric(run, "val_loss", value + 1, step=1)
            client.log_metric(run, "val_loss", value, step=2)
            if ends.get((arm, seed)) != "RUNNING":
                client.set_terminated(run, ends.get((arm, seed), "FINISHED"))
    return client, number


def test_an_experiment_of_mlflow(experiment):
    found = judge("mlflow:norms", arm="norm", baseline="pre")
    assert found.compared["post"].kind == "worse"
    assert [one.value for one in found.compared["post"].outcomes.values()] == POST
    told = " ".join(found.told)
    assert "1 of pre: the status is running" in told
    assert (
        "1 of post: the status is failed; if it failed as training diverged, count it: --status status=failed" in told
    )
    counted = judge("mlflow:norms", arm="norm", baseline="pre", status="status=failed")
    assert counted.compared["post"].failures.failed == 1


def test_the_description_is_written_on_request_and_keeps_what_is_there(experiment, capsys):
    client, number = experiment
    client.set_experiment_tag(number, "mlflow.note.content", "Of the winter.")
    command = ["judge", "mlflow:norms", "--arm", "norm", "--baseline", "pre", "--json"]
    assert main(command) == 0
    assert client.get_experiment(number).tags["mlflow.note.content"] == "Of the winter."
    for _ in range(2):
        assert main([*command, "--write"]) == 0
    note = client.get_experiment(number).tags["mlflow.note.content"]
    assert note.startswith("Of the winter.\n\n" + stores.BEGIN)
    assert note.count(stores.BEGIN) == 1
    assert "post is worse than pre on a typical seed" in note
    (run,) = client.search_runs([number], "attributes.run_name = 'judge'")
    assert f"run_uuid={run.info.run_id}" in note
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {
        "verdict.html", "verdict.json", "verdict.md", "verdict.png", "verdict.svg",
    }  # fmt: skip
    assert len(judge("mlflow:norms", arm="norm", baseline="pre").rows) == 12  # the run "judge" is not one of them


def test_experiments_that_are_not_there(store, monkeypatch):
    client = tracking.client()
    client.create_experiment("empty", artifact_location=(store / "artifacts").as_uri())
    with pytest.raises(AblateError, match="The MLflow experiment 'empty' has no runs"):
        judge("mlflow:empty")
    with pytest.raises(AblateError, match=r"There is no experiment 'emty'.* Did you mean empty"):
        judge("mlflow:emty")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store}/none.db")
    with pytest.raises(AblateError, match="There is no MLflow database"):
        judge("mlflow:empty")
    assert not (store / "none.db").exists()


def test_a_server_that_does_not_answer(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setattr(stores, "_SOON", {"MLFLOW_HTTP_REQUEST_TIMEOUT": "1", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"})
    with pytest.raises(AblateError, match="cannot be used"):
        judge("mlflow:norms")


def test_a_server_of_optuna_that_does_not_answer():
    pytest.importorskip("psycopg2", reason="pip install psycopg2-binary")
    with pytest.raises(AblateError, match="cannot be used") as error:
        judge("optuna:postgresql://127.0.0.1:9/none/norms")
    assert "--storage" not in str(error.value)


def test_a_database_is_no_table(tmp_path):
    with pytest.raises(AblateError, match=r"optuna:sqlite:///.*study.db/STUDY; of MLflow, set MLFLOW_TRACKING_URI"):
        judge(tmp_path / "study.db")


def test_a_study_of_optuna(tmp_path):
    url = f"sqlite:///{tmp_path}/study.db"
    study = optuna.create_study(study_name="norms", storage=url, direction="maximize")
    for norm, sign in (("pre", 1), ("post", -1)):
        for seed in range(5):
            trial = optuna.trial.create_trial(
                params={"norm": norm, "seed": seed},
                distributions={
                    "norm": optuna.distributions.CategoricalDistribution(["pre", "post"]),
                    "seed": optuna.distributions.IntDistribution(0, 9),
                },
                value=sign * (1 + 0.01 * seed + 0.001 * (seed * 7 % 3)),
            )
            study.add_trial(trial)
    study.enqueue_trial({"norm": "pre", "seed": 9})
    found = judge(f"optuna:{url}/norms", arm="norm", baseline="pre")
    assert found.compared["post"].kind == "worse"
    assert found.columns.maximize
    assert "the best of a search is optimistic" in " ".join(found.told)
    assert "1 row without params.norm was left out" in " ".join(found.told)  # it waits
    for source, told in (
        (f"{url}/norm", "There is no study 'norm'.*Did you mean norms"),
        ("norms", "its form is optuna:URL/STUDY"),
        (f"sqlite:///{tmp_path}/none.db/norms", "There is no Optuna storage"),
    ):
        with pytest.raises(AblateError, match=told):
            judge(f"optuna:{source}")


@pytest.fixture
def event_files(tmp_path):
    """Folders of TensorBoard, ARM-sSEED, with Lightning's settings; one of them is shorter."""
    pytest.importorskip("tensorboard", reason="pip install tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    for arm, values in (("pre", PRE), ("post", [*POST, 5.0])):
        for seed, value in enumerate(values):
            folder = tmp_path / "logs" / f"{arm}-s{seed}"
            with SummaryWriter(str(folder)) as writer:
                for step in range(3 if value < 5 else 1):
                    writer.add_scalar("train/loss", 9.0, step)
                    writer.add_scalar("val/loss", value + 2 - step, step)
            (folder / "hparams.yaml").write_text(yaml.safe_dump({"norm": arm}))
    return tmp_path / "logs"


def test_event_files_of_tensorboard(event_files, monkeypatch):
    found = judge(event_files, baseline="pre", value="val/loss")
    assert found.compared["post"].kind == "worse"
    assert found.compared["pre"].outcomes[3].value == pytest.approx(PRE[3])
    told = " ".join(found.told)
    assert "the names in 'run', such as 'post-s0'" in told
    assert "1 run ended before the others of the arm" in told
    assert judge(event_files, arm="norm", baseline="pre", value="val/loss").compared["post"].kind == "worse"
    file = next((event_files / "pre-s0").glob("events*"))
    file.write_bytes(file.read_bytes()[:-7])  # still written
    assert len(judge(event_files, baseline="pre", value="train/loss").rows) > 20
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_accumulator", None)
    with pytest.raises(AblateError, match="pip install tensorboard"):
        judge(event_files, baseline="pre")


def test_a_folder_with_nothing(tmp_path):
    with pytest.raises(AblateError, match=r"neither event files of TensorBoard .* nor offline runs of W&B"):
        judge(tmp_path)


def write_offline_run(folder, name, records):
    """A file of W&B as its documentation of LevelDB's log format has it, here with its own checksums left out."""
    from wandb.proto import wandb_internal_pb2 as pb

    content = b":W&B" + struct.pack("<HB", 0xBEE1, 0)
    for record in records:
        data = pb.Record(**record).SerializeToString()
        first = True
        while data or first:
            left = _BLOCK - len(content) % _BLOCK
            if left < 7:
                content += b"\0" * left
                continue
            part, data = data[: left - 7], data[left - 7 :]
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[first, not data]
            content += struct.pack("<IHB", 0, len(part), kind) + part
            first = False
    place = folder / f"offline-run-1-{name}" / f"run-{name}.wandb"
    place.parent.mkdir(parents=True)
    place.write_bytes(content)
    return place


def list_records(name, config, losses, ends=True, padding=""):
    from wandb.proto import wandb_internal_pb2 as pb

    items = [pb.ConfigItem(key=key, value_json=value) for key, value in config.items()]
    yield {"run": pb.RunRecord(run_id=name, display_name=name, config=pb.ConfigRecord(update=items))}
    for step, loss in enumerate(losses):
        pairs = {"_step": str(step), "val/loss": loss, "note": f'"{padding}"'}
        yield {"history": pb.HistoryRecord(item=[pb.HistoryItem(key=k, value_json=v) for k, v in pairs.items()])}
    if ends:
        yield {"exit": pb.RunExitRecord(exit_code=0)}


def test_offline_runs_of_wandb(tmp_path):
    pytest.importorskip("wandb", reason="pip install wandb")
    for arm, values in (("pre", PRE), ("post", POST)):
        for seed, value in enumerate(values):
            config = {"arm": f'"{arm}"', "seed": str(seed)}
            losses = ["9.5", "NaN" if (arm, seed) == ("post", 2) else str(value)]
            records = list_records(f"{arm}{seed}", config, losses, padding="x" * (40_000 if seed == 1 else 10))
            write_offline_run(tmp_path, f"{arm}{seed}", records)
    cut = write_offline_run(tmp_path, "cut", list_records("cut", {"arm": '"post"', "seed": "7"}, ["9.5"], ends=False))
    cut.write_bytes(cut.read_bytes()[:-3])
    found = judge(tmp_path, baseline="pre")
    assert found.compared["post"].kind == "worse"
    assert found.compared["post"].outcomes[1].value == POST[1]
    assert found.compared["post"].failures.failed == 1
    assert "1 of post: the status is running" in " ".join(found.told)
    cut.write_bytes(b"nothing of it")
    with pytest.raises(AblateError, match="is not a run of W&B"):
        read_folder(tmp_path)


def test_a_project_of_wandb(monkeypatch):
    runs = [
        SimpleNamespace(
            id=f"{arm}{seed}", name=f"{arm}{seed}", state="finished", config={"arm": arm, "seed": seed, "_wandb": {}},
            summary={"val/loss": value, "_step": 9, "image": {"_type": "file"}},
        )
        for arm, values in (("pre", PRE), ("post", POST))
        for seed, value in enumerate(values)
    ]  # fmt: skip
    asked = []

    def api(timeout):
        return SimpleNamespace(runs=lambda place: asked.append(place) or runs)

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(Api=api))
    assert judge("wandb:me/norms", baseline="pre").compared["post"].kind == "worse"
    assert asked == ["me/norms"]
    runs.clear()
    with pytest.raises(AblateError, match="has no runs"):
        judge("wandb:me/norms")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(AblateError, match="pip install wandb"):
        judge("wandb:me/norms")
