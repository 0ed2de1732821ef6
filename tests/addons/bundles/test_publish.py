"""The files of a bundle: what is in them, and what must not be."""

import json
import socket
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
import yaml
from bundles.conftest import RATES, TRIVIAL, build_tree, lose, read_json, run_in_memory, write_json
from run_table import by_arm

from ablate.addons.bundles import files, studies
from ablate.addons.bundles.publish import hide_places, publish, publish_anew
from ablate.addons.bundles.reruns import list_reruns
from ablate.addons.bundles.schema import SCHEMA
from ablate.addons.bundles.verify import verify
from ablate.config import plugins
from ablate.config.errors import DataError, StoreError, SweepError
from ablate.reports.section import Section, Table
from ablate.scheduler.storage import open_storage, storage_url
from ablate.sweeps.comparison import compare_record
from ablate.sweeps.runs import FRESH, Runs
from ablate.sweeps.spec.files import load_sweeps
from ablate.sweeps.verdict_summary import summarise_verdict
from benchmarks.simulation.sweeps import simulate


def read_texts(folder):
    texts = {
        str(file.relative_to(folder)): file.read_text("utf-8")
        for file in folder.rglob("*")
        if file.is_file() and file.suffix not in (".png", ".gz")
    }
    return texts | {"bundle.json.gz": json.dumps(read_json(folder))}


def test_a_bundle_has_the_sweep_its_runs_its_verdict_and_how_to_check_it(bundle):
    values = read_json(bundle)
    assert values["version"] == SCHEMA
    (sweep,) = values["sweeps"]
    record = run_in_memory("searched")
    compared = compare_record(record)
    assert {arm: one["kind"] for arm, one in sweep["verdict"]["arms"].items()} == {
        a: c.kind for a, c in compared.items()
    }
    for arm, runs in by_arm(record, FRESH).items():
        published = {
            run["seed"]: (run["ending"], run["value"])
            for run in sweep["runs"]
            if (run["arm"], run.get("stage")) == (arm, "confirmation")
        }
        assert published == {seed: (one.ending, one.value) for seed, one in compared[arm].outcomes.items()}
        assert len(runs) == len(published) == 4
    assert values["totals"]["runs"] == len(record.runs)
    assert values["totals"]["items"] == sum(run.items for run in record.runs)
    page = (bundle / "index.md").read_text()
    assert sweep["verdict"]["text"] in page
    assert "ablate verify FOLDER" in page
    assert yaml.safe_load((bundle / "sweep.yaml").read_text())["arms"]["post"]["norm"] == "post"
    assert set(values["files"]) == {file.name for file in bundle.iterdir()} - {"bundle.json.gz"}


def test_nothing_of_this_machine_and_no_secret_is_published(run_sweep, tmp_path, monkeypatch):
    monkeypatch.setenv("HUB_TOKEN", "hf_abcdefgh12345678")
    home = tmp_path / "home" / "ada"
    monkeypatch.setenv("HOME", str(home))
    sources = [str(home / "corpora" / "books.txt")]
    data = {"kind": "text", "files": sources, "val_fraction": 0.1}
    trainer = {"copy_to": "s3://ada:s3cr3tpass@bucket/runs"}
    run_sweep("unconfirmed", experiment={"model": "llama", "data": data, "trainer": trainer})
    publish(["unconfirmed"], tmp_path / "out")
    for name, text in read_texts(tmp_path / "out").items():
        for word in (str(tmp_path), str(home), "hf_abcdefgh", "s3cr3tpass", str(Path.cwd()), socket.gethostname()):
            assert word not in text, name
    bundle = files.read_bundle(tmp_path / "out")
    assert bundle.sweeps[0].spec["experiment"]["data"]["files"] == ["books.txt"]
    cells = list_reruns(files.restore_records(bundle, tmp_path / "out").values())
    assert {cell.build_experiment().trainer.copy_to for cell in cells} == {None}  # a verified run is copied nowhere


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("at /home/ada/data/books.txt: line 3", "at books.txt: line 3"),
        (r"C:\Users\ada\x.txt", "x.txt"),
        (
            "val/loss of allenai/c4 at https://host/a/b, 1/2 or 3/4",
            "val/loss of allenai/c4 at https://host/a/b, 1/2 or 3/4",
        ),
        ("postgresql://ada:pa55word@host/db", "postgresql://ada:***@host/db"),
        ("data/books/*.txt", "data/books/*.txt"),
    ],
)
def test_of_a_path_the_name_is_left(text, hidden):
    assert hide_places({"key": [text]}) == {"key": [hidden]}


PLUGIN = """
from typing import Literal

from ablate.norms import placements
from ablate.norms.placements import Pre


@placements.register
class Mine(Pre):
    kind: Literal["mine"] = "mine"
"""


@pytest.fixture
def run_mine(run_sweep, tmp_path, monkeypatch, registries):
    """run_mine(text) -> the record of a sweep with a plugin in the current folder."""
    monkeypatch.chdir(tmp_path)

    def run(text=PLUGIN):
        Path("mine.py").write_text(text)
        arms = {"pre": {"norm": "pre"}, "mine": {"norm": "mine"}}
        record = run_sweep("unconfirmed", plugins=["mine.py"], arms=arms)
        hashes = plugins.hash_files(["mine.py"])
        storage = open_storage(storage_url())
        for study in optuna.get_all_study_names(storage):
            optuna.load_study(study_name=study, storage=storage).set_user_attr("plugins", hashes)
        return record

    return run


def test_plugins_are_published_and_run_only_where_they_are_trusted(run_mine, tmp_path):
    run_mine()
    bundle = publish(["unconfirmed"], tmp_path / "out").bundle
    assert (tmp_path / "out" / "plugins" / "mine.py").read_text() == PLUGIN
    assert bundle.sweeps[0].spec["plugins"] == ["plugins/mine.py"]
    with pytest.raises(DataError, match=r"plugins/mine.py. Read them, and then add --trust-plugins"):
        files.restore_records(bundle, tmp_path / "out")
    (record,) = files.restore_records(bundle, tmp_path / "out", trusts_plugins=True).values()
    assert record.spec.base("mine").norm.kind == "mine"


def test_a_plugin_that_was_changed_or_names_a_folder_of_this_machine_is_not_published(run_mine, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    run_mine(PLUGIN + '\nWHERE = "/home/ada/secrets"\n')
    with pytest.raises(SweepError, match=r"mine.py would publish /home/ada"):
        publish(["unconfirmed"], tmp_path / "out")
    Path("mine.py").write_text(PLUGIN)
    with pytest.raises(SweepError, match=r"The plugin mine.py was changed since unconfirmed was run"):
        publish(["unconfirmed"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_notes_stay_and_stand_below_the_title(run_sweep, tmp_path):
    run_sweep("unconfirmed")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "notes.md").write_text("Post-LN fails.\n")
    publish(["unconfirmed"], folder)
    (folder / "stale.png").write_bytes(b"")
    publish(["unconfirmed"], folder)
    lines = (folder / "index.md").read_text().splitlines()
    assert lines[0].startswith("# ")
    assert lines[2] == "Post-LN fails."
    assert not (folder / "stale.png").exists()


def test_a_published_folder_can_be_read_by_others_as_any_new_one(run_sweep, tmp_path):
    (tmp_path / "new").mkdir()
    publish([run_sweep("grid").name], tmp_path / "out")
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "new").stat().st_mode


def test_the_same_runs_give_the_same_files(run_sweep, tmp_path):
    run_sweep("grid")
    for name in ("a", "b"):
        publish(["grid"], tmp_path / name)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes(), file.name


def test_a_bundle_is_written_anew_from_its_runs(bundle, tmp_path):
    before = {file.name: file.read_bytes() for file in bundle.iterdir()}
    values = read_json(bundle)
    (bundle / "notes.md").write_text("Mix-LN wins.\n")
    publish_anew(bundle)
    page = (bundle / "index.md").read_text().split("\n\n")
    assert page[1] == "Mix-LN wins."
    assert page[2:] == before["index.md"].decode().split("\n\n")[3:]
    figures = {name: content for name, content in before.items() if name.endswith((".png", ".yaml"))}
    assert {name: (bundle / name).read_bytes() for name in figures} == figures
    anew = files.read_bundle(bundle)
    before = files.Bundle.model_validate_json(json.dumps(values))
    assert anew == before.model_copy(update={"files": anew.files, "digest": anew.digest})
    assert files.list_damage(bundle) == []
    publish_anew(bundle, tmp_path / "copy")
    assert read_texts(tmp_path / "copy") == read_texts(bundle)
    (tmp_path / "copy" / "notes.md").write_text("Mix-LN loses.\n")
    publish_anew(bundle, tmp_path / "copy")
    assert "Mix-LN loses." in (tmp_path / "copy" / "index.md").read_text()
    assert files.list_damage(tmp_path / "copy") == []


def test_a_damaged_bundle_is_not_written_anew(bundle):
    values = read_json(bundle)
    values["sweeps"][0]["verdict"]["arms"]["mix"]["kind"] = "better"
    write_json(bundle, values, seal=True)
    before = {file.name: file.read_bytes() for file in bundle.iterdir()}
    with pytest.raises(DataError, match=r"is damaged, and stays as it is: searched: verdict.mix.kind: better is said"):
        publish_anew(bundle)
    assert {file.name: file.read_bytes() for file in bundle.iterdir()} == before


def test_a_bundle_with_plugins_is_written_anew_only_where_they_are_trusted(run_mine, tmp_path):
    run_mine()
    publish(["unconfirmed"], tmp_path / "out")
    before = read_texts(tmp_path / "out")
    with pytest.raises(DataError, match="--trust-plugins"):
        publish_anew(tmp_path / "out")
    publish_anew(tmp_path / "out", trusts_plugins=True)
    assert read_texts(tmp_path / "out") == before


@pytest.fixture
def run_sizes(write_sweep, store):
    """run_sizes(*sizes) -> a sweep file of two sizes, or of other layers, of which these are in the store."""

    def run(*sizes, layers=(2, 4), **parts):
        tree = {**build_tree("grid", name="toy"), "search": {"optimizer.lr": RATES}, "confirm": {"seeds": 3}, **parts}
        file = write_sweep(tree, sizes={f"l{n}": {"model.layers": n} for n in layers})
        for spec in load_sweeps(file):
            if spec.name.removeprefix("toy-") in sizes:
                simulate(spec, lose(spec), open_storage(storage_url()), trivial_loss=TRIVIAL)
        return str(file)

    return run


@pytest.fixture
def move_store(monkeypatch):
    """move_store(folder): from here on, runs are kept there."""

    def move(folder):
        folder.mkdir()
        monkeypatch.setenv("ABLATE_STORE", str(folder))

    return move


def test_a_study_over_sizes_has_the_command_that_runs_it(run_sizes, tmp_path):
    publish([run_sizes("l2", "l4")], tmp_path / "out")
    page = (tmp_path / "out" / "index.md").read_text()
    assert "ablate sweep FOLDER/sweep.yaml --size l2,l4 --workers 2" in page


def test_sizes_that_were_run_on_different_machines_become_one_bundle(run_sizes, move_store, tmp_path):
    whole, joined = tmp_path / "whole", tmp_path / "joined"
    file = run_sizes("l2", "l4")
    publish([file], whole)
    move_store(tmp_path / "one")
    run_sizes("l2")
    assert publish([file], joined).not_run == ["toy-l4"]
    move_store(tmp_path / "two")
    run_sizes("l4")
    published = publish([file], joined)
    assert (published.kept, published.not_run) == (["l2"], [])
    assert read_texts(joined) == read_texts(whole)


def test_sizes_that_are_added_share_the_error_with_those_that_were_run_before(run_sizes, move_store, tmp_path):
    whole, joined = tmp_path / "whole", tmp_path / "joined"
    publish([run_sizes("l2", "l4")], joined)
    three = run_sizes("l6", layers=(2, 4, 6))
    publish([three], whole)
    families = [{compared["family"] for compared in sweep.verdict.arms.values()} for sweep in read_sweeps(whole)]
    assert families == [{3}] * 3  # one comparison of each size
    move_store(tmp_path / "other")
    publish([run_sizes("l6", layers=(2, 4, 6))], joined)
    assert [sweep.verdict for sweep in read_sweeps(joined)] == [sweep.verdict for sweep in read_sweeps(whole)]
    assert verify(joined, runs=0).holds


def test_sizes_that_are_named_share_the_error_too(run_sizes):
    """Where those of a file are: one comparison of each, and two of the others."""
    run_sizes("l2", "l4")
    run_sizes("l6", layers=(2, 4, 6))
    study = studies.find_study(["toy-l2", "toy-l4", "toy-l6"])
    assert [record.spec.family for record in study.records.values()] == [2, 2, 2]
    assert studies.find_study(["toy-l2"]).records["toy-l2"].spec.family == 1


def read_sweeps(folder):
    return files.read_bundle(folder).sweeps


def test_sizes_of_other_settings_or_damaged_are_not_joined(run_sizes, move_store, tmp_path):
    publish([run_sizes("l2", "l4", objective={"metric": "val/loss", "direction": "minimize"})], tmp_path / "out")
    move_store(tmp_path / "other")
    file = run_sizes("l2", search={"optimizer.lr": RATES[:2]})
    with pytest.raises(SweepError, match=r"has l4, which this storage does not have, with other settings than"):
        publish([file], tmp_path / "out")
    file = run_sizes()
    figure = next((tmp_path / "out").glob("*.png"))
    figure.write_bytes(b"")
    with pytest.raises(DataError, match=rf"is damaged: {figure.name}: the file was changed. Choose another folder"):
        publish([file], tmp_path / "out")


def test_the_page_of_sizes_has_a_column_for_each(run_sizes, tmp_path):
    publish([run_sizes("l2", "l4", confirm={"seeds": 3})], tmp_path / "out")
    page = (tmp_path / "out" / "index.md").read_text()
    assert "\n| arm | l2 | l4 |\n" in page
    (row,) = [line for line in page.splitlines() if line.startswith("| post |")]
    kinds = [sweep.verdict.arms["post"]["kind"] for sweep in read_sweeps(tmp_path / "out")]
    kinds = ["inconclusive" if kind == "undecided" else kind for kind in kinds]
    assert all(kind in cell for kind, cell in zip(kinds, row.split("|")[2:], strict=False))


def test_long_tables_are_left_to_the_bundle(run_sweep, tmp_path, monkeypatch):
    short, long = (Section(f"Layers of {n}", Table.of_rows(("arm", "n"), [("post", "1")] * n), ["So."]) for n in (8, 9))
    monkeypatch.setattr("ablate.addons.bundles.page.list_sections", lambda record: [short, long])
    publish([run_sweep("grid").name], tmp_path / "out")
    page = (tmp_path / "out" / "index.md").read_text()
    assert "## Layers of 8\n\n| arm | n |" in page
    assert "Layers of 9" not in page


def test_the_page_begins_with_the_answer(run_sweep, write_sweep, store, tmp_path):
    file = write_sweep(build_tree("searched"))
    head = "# Which wins?\n#\n#   ablate sweep it.yaml\n#\n# Planned before\n# any run.\n"
    file.write_text(head + file.read_text())
    record = run_sweep("searched")
    bundle = publish([str(file)], tmp_path / "out").bundle
    page = (tmp_path / "out" / "index.md").read_text()
    assert page.startswith(f"# Which wins?\n\n**{summarise_verdict(record)}**\n\n{bundle.sweeps[0].verdict.text}\n")
    assert len(page.split()) <= 600
    limits = page.partition("## What this does not show")[2].partition("## ")[0]
    assert "this length of training alone: " in limits
    assert "A seed fails when it diverges or is stuck" in limits
    assert "ablate sweep FOLDER/sweep.yaml --workers 2" in page


def test_a_sweep_none_of_whose_runs_has_ended_is_not_published(run_sweep, tmp_path, monkeypatch):
    record = run_sweep("searched")
    empty = replace(record, runs=Runs())
    monkeypatch.setattr(studies, "read_sweep", lambda *_: empty)
    with pytest.raises(SweepError, match="No run of searched has ended, so there is nothing to publish"):
        publish(["searched"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_sweep_that_was_run_with_other_defaults_is_not_published(run_sweep, tmp_path, monkeypatch):
    """Its bundle would have those of now."""
    record = run_sweep("searched")
    other = replace(record, inputs={"setting optimizer.eps": "another", "setting of.then": "one"})
    monkeypatch.setattr(studies, "read_sweep", lambda *_: other)
    with pytest.raises(SweepError, match=r"searched was run with other defaults than .* has \(optimizer\.eps\)"):
        publish(["searched"], tmp_path / "out")


def test_what_cannot_be_published_is_told(run_sweep, tmp_path):
    with pytest.raises(SweepError, match="There is no sweep 'searched'"):
        publish(["searched"], tmp_path / "out")
    run_sweep("searched")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("mine")
    with pytest.raises(StoreError, match="has other files in it"):
        publish(["searched"], tmp_path / "full")
    assert [file.name for file in (tmp_path / "full").iterdir()] == ["letter.txt"]
    with pytest.raises(StoreError, match="is a file"):
        publish(["searched"], tmp_path / "full" / "letter.txt")
