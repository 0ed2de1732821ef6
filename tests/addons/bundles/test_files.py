"""A bundle of somebody else: it runs no code that nobody trusts, and is refused in a sentence where it is none."""

import copy
import gzip
import json
import os
import random
import shutil
from pathlib import Path

import markdown
import pytest
from bundles.conftest import build_tree, read_json, run_spec, write_json
from bundles.test_publish import PLUGIN
from bundles.test_verify import change, list_fresh

from ablate.addons.bundles import files
from ablate.addons.bundles import publish as publishing
from ablate.addons.bundles.compare import compare
from ablate.addons.bundles.publish import publish, publish_anew
from ablate.addons.bundles.verify import verify
from ablate.cli import main
from ablate.config.errors import AblateError, ConfigError, DataError
from ablate.scheduler.storage import open_storage, storage_url

EVIL = "from pathlib import Path\nPath('ran').touch()\n" + PLUGIN


@pytest.fixture
def here(tmp_path, monkeypatch, registries):
    """The current folder, with a file that leaves a trace where it is run."""
    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text(EVIL)
    yield tmp_path
    assert not Path("ran").exists()


@pytest.fixture
def without_figures(monkeypatch):
    monkeypatch.setattr(publishing, "_draw", lambda *arguments: [])


def open_all(folder, trusts_plugins=False):
    """Each way to open a bundle."""
    return [
        lambda: verify(folder, runs=0, trusts_plugins=trusts_plugins),
        lambda: compare([str(folder), str(folder)], trusts_plugins=trusts_plugins),
        lambda: publish_anew(folder, "anew", trusts_plugins=trusts_plugins),
    ]


def name_in_runs(values):
    for run in list_fresh(values, "pre"):
        run["params"]["plugins"] = "evil.py"


NAMED = {
    "sweep": lambda values: values["sweeps"][0]["spec"].update(plugins=["evil.py"]),
    "experiment": lambda values: values["sweeps"][0]["spec"]["experiment"].update(plugins="evil.py"),
    "arm": lambda values: values["sweeps"][0]["spec"]["arms"]["post"].update(plugins=["evil.py"]),
    "point": lambda values: values["sweeps"][0]["spec"].update(fixed=[{"plugins": "evil.py"}]),
    "runs": name_in_runs,
}


@pytest.mark.parametrize("trusts_plugins", [False, True])
@pytest.mark.parametrize("edit", NAMED.values(), ids=NAMED)
def test_a_plugin_that_the_bundle_does_not_have_is_never_run(here, bundle, edit, trusts_plugins):
    """Though its digest is right, and a file of that name is in the current folder."""
    change(bundle, edit, seal=True)
    for opened in open_all(bundle, trusts_plugins):
        with pytest.raises(DataError, match=r"name the plugin 'evil.py', which it does not have. It was not run"):
            opened()
    assert main(["verify", str(bundle), "--trust-plugins"]) == 2


def test_an_experiment_of_a_restored_sweep_runs_no_plugin_either(here, bundle):
    (record,) = files.restore_records(files.read_bundle(bundle), bundle).values()
    for params in ({"plugins": "evil.py"}, {"plugins": ["evil.py"]}):
        with pytest.raises(ConfigError, match=r"it needs the plugin evil\.py"):
            record.spec.at("pre", params)
    assert record.spec.at("pre", {}).norm.kind == "pre"


def test_damage_is_judged_before_anything_is_run(here, run_sweep, without_figures):
    """Of a plugin that is trusted, too."""
    Path("mine.py").write_text(PLUGIN)
    run_sweep("unconfirmed")
    publish(["unconfirmed"], "out")
    Path("out/plugins").mkdir()
    shutil.copy("evil.py", "out/plugins/evil.py")
    (first, *rest) = open_all("out", trusts_plugins=True)
    assert first().damage == ["plugins/evil.py: the file was not published with it"]
    for opened in rest:
        with pytest.raises(DataError, match=r"out is damaged.*plugins/evil\.py: the file was not published with it"):
            opened()

    def list_plugin(values):
        values["plugins"] = {"plugins/evil.py": "0" * 64}
        values["sweeps"][0]["spec"]["plugins"] = ["plugins/evil.py"]

    change(Path("out"), list_plugin, seal=True)
    assert first().damage == ["plugins/evil.py: the file was changed"]
    assert main(["verify", "out", "--trust-plugins"]) == 1


def test_files_in_folders_that_begin_with_a_dot_are_checked(bundle):
    for name in (".hidden/evil.py", "plugins/.evil.py"):
        (bundle / name).parent.mkdir()
        (bundle / name).write_text("")
    assert files.list_damage(bundle) == [
        ".hidden/evil.py: the file was not published with it",
        "plugins/.evil.py: the file was not published with it",
    ]


def test_a_bundle_may_be_a_git_repository_of_its_own(bundle):
    for name in (".git/hooks/commit-msg", ".gitattributes"):
        (bundle / name).parent.mkdir(parents=True, exist_ok=True)
        (bundle / name).write_text("")
    assert files.list_damage(bundle) == []
    for name in (".github/evil.py", "plugins/.git/evil.py"):
        (bundle / name).parent.mkdir(parents=True)
        (bundle / name).write_text("")
    assert len(files.list_damage(bundle)) == 2


def test_no_link_leads_out_of_a_bundle(here, bundle):
    secret = here / "secret"
    secret.mkdir()
    (secret / "key").write_text("secret")
    for name, target in (("notes.md", secret / "key"), ("more", secret), ("other", "../secret")):
        (bundle / name).symlink_to(target)
        for opened in open_all(bundle):
            with pytest.raises(DataError, match=rf"{name} is a link that leads out of the folder of the bundle"):
                opened()
        (bundle / name).unlink()
    (bundle / "notes.md").symlink_to("sweep.yaml")
    assert files.list_damage(bundle) == ["notes.md: the file was not published with it"]


def set_sweep(**fields):
    return lambda values: values["sweeps"][0].update(fields)


HOSTILE = {
    "nested": "[" * 100_000 + "]" * 100_000,
    "nested in a setting": lambda values: values["sweeps"][0]["settings"].update(x=json.loads("[" * 400 + "]" * 400)),
    "not a number": lambda values: values["sweeps"][0].update(trivial_loss=float("nan")),
    "infinite": lambda values: values["totals"].update(seconds=float("inf")),
    "files of another type": lambda values: values.update(files=["sweep.yaml"]),
    "plugins of another type": lambda values: values.update(plugins="evil.py"),
    "a digest of another type": lambda values: values["files"].update({"sweep.yaml": 1}),
    "a long name": lambda values: values["files"].update({"a" * 5000: "0"}),
    "a name with NUL": lambda values: values["files"].update({"a\0b": "0"}),
    "outside": lambda values: values["files"].update({"../secret": "0"}),
    "absolute": lambda values: values["plugins"].update({"/etc/passwd": "0"}),
    "half a letter": lambda values: values.update(question="\ud800"),
    "a long sweep": set_sweep(name="a" * 5000),
    "a size that is a path": set_sweep(size="../../x"),
    "no sweep": set_sweep(spec={}),
    "a choice of no run": lambda values: values["sweeps"][0]["arms"]["pre"].update(chosen=99),
    "no sweeps": lambda values: values.update(sweeps=[]),
}


@pytest.mark.parametrize("edit", HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_bundle_is_refused_in_a_sentence(bundle, edit, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    if isinstance(edit, str):
        (bundle / "bundle.json.gz").write_bytes(gzip.compress(edit.encode()))
    else:
        sealed = "NaN" not in (text := json.dumps(edit_copy(bundle, edit))) and "Infinity" not in text
        change(bundle, edit, seal=sealed)
    for words in (["verify", str(bundle)], ["compare", str(bundle), str(bundle)], ["publish", str(bundle)]):
        assert main(words) == 2
        told = capsys.readouterr().err
        assert told.startswith(f"ablate {words[0]}: ")
        assert "Traceback" not in told
        assert len(told) < 1500


def edit_copy(bundle, edit):
    values = read_json(bundle)
    edit(values)
    return values


def test_a_bundle_that_is_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "bundle.json.gz")
    with pytest.raises(DataError, match="There is no bundle in"):
        verify(tmp_path)
    with pytest.raises(DataError, match="There is no bundle in"):
        verify("a" * 5000)


def test_no_more_is_unpacked_than_a_bundle_can_have(bundle, monkeypatch):
    """A gigabyte of spaces is a megabyte of gzip."""
    size = len(gzip.decompress((bundle / "bundle.json.gz").read_bytes()))
    monkeypatch.setattr(files, "MOST_BYTES", size)
    assert verify(bundle, runs=0).holds
    monkeypatch.setattr(files, "MOST_BYTES", size - 1)
    for opened in open_all(bundle):
        with pytest.raises(DataError, match=rf"it has more than {size - 1:,} bytes of JSON"):
            opened()
    with pytest.raises(DataError, match=rf"The bundle has {size:,} bytes of JSON, more than {size - 1:,}"):
        files.write_bundle(files.Bundle.model_validate(read_json(bundle)), bundle)


@pytest.mark.parametrize("damage", [lambda gz: gz[:-20], lambda gz: gz[:30] + b"x" * 40 + gz[70:], lambda gz: b"{}"])
def test_what_is_no_gzip_is_refused_in_a_sentence(bundle, damage):
    file = bundle / "bundle.json.gz"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(DataError, match=r"bundle\.json\.gz cannot be read as JSON in gzip: "):
        verify(bundle, runs=0)


def walk(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from walk(item, (*path, key))


def test_values_that_do_not_go_together_are_told(bundle):
    """Values of the bundle in random places are taken away, or replaced by others, and its digest made anew."""
    published = read_json(bundle)
    paths = [path for path in walk(published) if path and path[0] in ("sweeps", "surroundings")]
    drawn, told = random.Random(0), 0
    for _ in range(40):
        *above, last = drawn.choice(paths)
        values = part = copy.deepcopy(published)
        for key in above:
            part = part[key]
        part[last] = drawn.choice([None, -1, 10**400, "", "x", [], {}, [[]], {"a": 1}])
        write_json(bundle, values, seal=True)
        for check in open_all(bundle)[:2]:
            try:
                check()
            except AblateError:
                told += 1
    assert told > 20


def test_names_are_no_markup_in_the_page(store, tmp_path, without_figures):
    image, link = "<img src=x onerror=alert(1)>", "[x](javascript:alert(1))"
    arms = {"pre": {"norm": "pre"}, image: {"norm": "post"}, link: {"norm": "lns"}}
    run_spec(build_tree("searched", arms=arms), open_storage(storage_url()))
    folder = tmp_path / "out"
    publish(["searched"], folder)
    values = read_json(folder)
    values["question"] = f"Is {image} better?"
    values["sweeps"][0]["cautions"] = [image, link]
    values["sweeps"][0]["settings"]["data.kind"] = f"`{image}`"
    write_json(folder, values, seal=True)
    publish_anew(folder)
    text = (folder / "index.md").read_text()
    page = markdown.markdown(text, extensions=["tables", "attr_list", "md_in_html"])
    assert "alert(1)" in page
    assert "<img src=x" not in page
    assert 'href="javascript' not in page
    assert f"{link}</td>" in page
