"""Kinds from outside the package: what extend.md and plugins.md say works, and each thing that can be wrong."""

import json
import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import yaml
from rich.console import Console
from run_table import by_arm
from scheduler.small import run_here
from stored_facts import read_facts

from ablate import tracking
from ablate.cli import main
from ablate.config import plugins
from ablate.config.errors import AblateError, ConfigError, SweepError
from ablate.config.merging import merge
from ablate.experiment.tree import Experiment
from ablate.norms import norm_layers, placements
from ablate.scheduler import run
from ablate.scheduler.storage import read_sweep
from ablate.scheduler.worker import Worker
from ablate.sweeps.spec.sweep import Sweep
from ablate.training.procedures import Hooks, Place
from ablate.training.runs import load_experiment
from ablate.training.train import train

ROOT = Path(__file__).parents[2]
TEXT = "".join(
    (ROOT / "docs" / page).read_text(encoding="utf-8") for page in ("how-to/extend.md", "reference/plugins.md")
)
COMMANDS = re.findall(r"^(ablate \w+ (?!.*my_task).*)$", TEXT, flags=re.MULTILINE)  # those: tests/tasks/test_new_task


def block(language, title=""):
    return re.search(rf"```{language}[^\n]*{title}[^\n]*\n(.*?)```", TEXT, flags=re.DOTALL).group(1)


EXAMPLE = block("python")


@pytest.fixture
def folder(registries, store, tmp_path, monkeypatch):
    """A folder with the files of the page, the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_norm.py").write_text(EXAMPLE)
    for name in ("my_callbacks", "my_data", "my_training", "two_streams"):
        (tmp_path / f"{name}.py").write_text(block("python", name))
    (tmp_path / "own-norms.yaml").write_text(block("yaml"))
    return tmp_path


def load(*mappings):
    return Experiment.from_mapping({"plugins": ["my_norm.py"]}, *mappings)


def refused(folder, text, file="broken.py"):
    """What is said of a plugin with this `text`."""
    (folder / file).write_text(text)
    with pytest.raises(ConfigError) as error:
        Experiment.from_mapping({"plugins": [file]})
    (problem,) = error.value.problems
    assert problem.path == "plugins"
    return problem.message


# ------------------------------------------------------------------ what the page says


def test_the_commands_of_the_page_do_what_it_says(folder, capsys):
    answers = {}
    for command in COMMANDS:
        words, _, file = command.partition(" > ")
        assert main(shlex.split(words)[1:]) == 0, (command, capsys.readouterr().err)
        answers[words.split()[1] + str(len(answers))] = out = capsys.readouterr().out
        if file:
            (folder / file).write_text(out)
    assert [re.sub(r"\d+$", "", name) for name in answers] == [
        "check", "list", "list", "train", "train", "config", "config", "sweep", "report", "check", "train", "plan",
        "check", "train", "train", "check", "train", "train",
    ]  # fmt: skip
    assert "x + factor f(N(x))" in answers["list1"]
    assert "meanabs" in answers["list2"]
    assert "completed" in answers["train3"]
    assert "accuracy" in answers["train4"]
    assert re.search(r"data stripes +order +passed", answers["check9"])
    assert re.search(r"optimizer signum +learns +passed", answers["check12"])
    assert "completed" in answers["train13"]
    assert "stripes: 380 training and 20 validation items, 4 classes" in answers["train10"]
    run_id = re.search(r"^run (\w+)", answers["train14"], re.MULTILINE).group(1)
    assert len(tracking.client().get_metric_history(run_id, "weights/norm")) == 2
    again = Experiment.load(folder / "my_experiment.yaml")
    assert (again.norm.kind, again.norm.first.kind, again.plugins) == ("mix", "damped", ("my_norm.py",))
    assert "damped" in json.loads((folder / "ablate-schema.json").read_text())["$defs"]["placement"]["anyOf"][0]["enum"]
    record = read_sweep("own-norms")
    assert {arm: [t.status for t in trials] for arm, trials in by_arm(record).items()} == {
        arm: ["completed"] * 2 for arm in ("pre", "damped", "meanabs")
    }
    for run_id in [*record.parents.values(), *(t.run_id for trials in by_arm(record).values() for t in trials)]:
        copy = tracking.client().download_artifacts(run_id, "my_norm.py")
        assert Path(copy).read_text() == EXAMPLE


def test_an_installed_package_needs_no_plugins_setting(folder, store, tmp_path):
    """The entry point of the page, in a process of its own that finds the package on its path."""
    site = tmp_path / "site"
    info = site / "my_norms-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-norms\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(
        re.sub(r'project\.entry-points\."(.*)"', r"\1", block("toml")).replace('"', "")
    )
    (site / "my_norms").mkdir()
    (site / "my_norms" / "__init__.py").touch()
    (site / "my_norms" / "placements.py").write_text(EXAMPLE)

    def run(*verbs):
        environment = {**os.environ, "PYTHONPATH": str(site)}
        code = f"import sys; from ablate.cli import main; sys.exit(max(main(verb.split()) for verb in {verbs}))"
        command = [sys.executable, "-c", code]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=400)

    tree = {key: value for key, value in yaml.safe_load(block("yaml")).items() if key != "plugins"}
    (tmp_path / "installed.yaml").write_text(yaml.safe_dump(tree))
    words = "train norm=damped norm.layer=meanabs model.layers=1 trainer.max_steps=2 trainer.val_check_interval=2"
    done = run("list placements", "config --schema", "plan installed.yaml", words)
    assert done.returncode == 0, done.stderr
    assert "damped" in done.stdout.split("{")[0]
    assert '"damped"' in done.stdout
    (trained,) = (store / "runs").iterdir()
    assert read_facts(trained.name)["version.my-norms"] == "1.2"
    (site / "my_norms" / "placements.py").write_text("import no_such_module\n")
    broken = run("config")
    assert broken.returncode == 2
    assert "Traceback" not in broken.stderr
    assert "my-norms 1.2" in broken.stderr
    assert "No module named 'no_such_module'" in broken.stderr


def test_a_callback_that_changes_training_is_a_factor_of_the_sweep_on_the_page(folder):
    tree = yaml.safe_load(block("yaml", "noise-sweep"))
    spec = Sweep.from_tree(tree)
    (noise,) = spec.base("noise").trainer.callbacks
    assert (noise.kind, noise.arguments) == ("my_callbacks.GradientNoise", {"scale": 0.01})
    with pytest.raises(
        ConfigError, match=r"differ in trainer\.callbacks: none \(plain\), my_callbacks\.GradientNoise \(scale=0\.01\)"
    ):
        Sweep.from_tree({key: value for key, value in tree.items() if key != "factor"})


def test_an_installed_package_that_registers_nothing_is_told(registries, monkeypatch, caplog, tmp_path):
    (tmp_path / "empty_norms.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("empty", "empty_norms", plugins.GROUP)
    monkeypatch.setattr(plugins, "_points", lambda: (point,))
    plugins.load()
    (record,) = caplog.records
    assert record.message.startswith("The plugin empty = empty_norms of empty_norms registers nothing. It can register")
    plugins._begun.discard("empty = empty_norms")


# ------------------------------------------------------------------ the setting


def test_it_is_loaded_before_its_kinds_are_looked_up(folder):
    experiment = load({"norm": "damped", "norm.factor": 2})
    assert experiment.norm.factor == 2.0
    assert Experiment.from_mapping(experiment.to_tree()) == experiment
    assert Experiment.model_validate(experiment.to_tree()) == experiment
    assert Experiment.load(None, {"norm": "damped", "plugins": "my_norm.py"}).norm.kind == "damped"
    with pytest.raises(ConfigError, match=r"norm\.factr: unknown key. Did you mean norm\.factor\?"):
        load({"norm": "damped", "norm.factr": 2})


def test_direct_validation_loads_it_too(folder):
    assert Experiment.model_validate({"norm": "damped", "plugins": "my_norm.py"}).plugins == ("my_norm.py",)


def test_plugins_add_up(folder):
    (folder / "other.py").write_text(EXAMPLE.replace('"damped"', '"other"').replace('"meanabs"', '"otherabs"'))
    experiment = load({"norm": "damped"}, {"plugins": "other.py", "norm.layer": "otherabs"})
    assert experiment.plugins == ("my_norm.py", "other.py")
    assert merge(Experiment, {"plugins": "a.py"}, {"plugins": ["b.py", "a.py"]})["plugins"] == ["a.py", "b.py"]


def test_the_same_file_is_loaded_once_under_all_its_names(folder):
    load()
    before = placements["damped"]
    (folder / "link.py").symlink_to("my_norm.py")
    load({"plugins": [str(folder / "my_norm.py"), "./my_norm.py", "link.py"]})
    assert placements["damped"] is before
    assert sys.modules[before.__module__].Damped is before


def test_a_file_that_changed_is_loaded_anew(folder):
    load()
    (folder / "my_norm.py").write_text(EXAMPLE.replace("Damped", "Renamed").replace('"meanabs"', '"l1"'))
    load()
    assert placements["damped"].__name__ == "Renamed"
    assert "l1" in norm_layers
    assert "meanabs" not in norm_layers


@pytest.mark.parametrize("given", [3, [3], {"a": 1}, None])
def test_what_is_no_file_name_is_told(folder, given):
    with pytest.raises(ConfigError, match=r"plugins(\.0)?: must be"):
        Experiment.from_mapping({"plugins": given})


# ------------------------------------------------------------------ what is wrong with a file


def test_a_missing_file(folder):
    with pytest.raises(ConfigError, match=r"plugins: there is no file my_nrm\.py in .*Did you mean my_norm\.py\?"):
        Experiment.from_mapping({"plugins": ["my_nrm.py"]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import os\ndef f(:\n", r"^broken\.py, line 2: SyntaxError: "),
        ("import os\n\n1 / 0\n", r"^broken\.py, line 3: ZeroDivisionError: division by zero$"),
        ("def f():\n    raise KeyError\nf()\n", r"^broken\.py, line 2: KeyError: no message$"),
        ("import json\njson.loads('{')\n", r"^broken\.py, line 2: JSONDecodeError: "),
        ("import sys\nsys.exit('no')\n", r"^broken\.py, line 2: SystemExit: no$"),
        ("import no_such_module\n", r"line 1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("x = 1\n", r"^broken\.py registers nothing\. .*placement.* or .*`@placements\.register` above .*callback"),
        ("import ablate.sweeps.search.methods\nfrom ablate.norms import Placement\n", "registers nothing"),
        (EXAMPLE.replace("@norm_layers.register", "1 / 0"), "ZeroDivisionError"),
        (
            EXAMPLE.replace('"damped"', '"post"'),
            r"^broken\.py, line \d+: the placement 'post' already exists \(ablate\.norms\.placements\.Post\)\. Choose "
            r"another name, such as my_post$",
        ),
    ],
)
def test_a_broken_file(folder, text, message):
    assert re.search(message, refused(folder, text))
    assert "damped" not in placements
    (folder / "broken.py").write_text(EXAMPLE)
    assert Experiment.from_mapping({"plugins": ["broken.py"], "norm": "damped"}).norm.kind == "damped"


def test_a_file_that_is_no_text(folder):
    (folder / "binary.py").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"binary\.py cannot be read"):
        Experiment.from_mapping({"plugins": ["binary.py", "."]})


def test_two_files_with_the_same_kind(folder):
    load()
    message = refused(folder, EXAMPLE, "second.py")
    assert re.match(
        r"second\.py, line \d+: the placement 'damped' already exists \(Damped in /\S*/my_norm\.py\)\. Choose", message
    )
    assert load({"norm": "damped"}).norm.kind == "damped"


def test_the_command_line_tells_all_broken_files_at_once(folder, capsys):
    (folder / "one.py").write_text("x = 1\n")
    (folder / "two.py").write_text("1 / 0\n")
    for words in (["train"], ["config"], ["list", "norms"], ["config", "--schema"]):
        assert main([*words, "plugins=[one.py, two.py]"]) == 2
        told = capsys.readouterr().err
        assert told.startswith(f"ablate {words[0]}: 2 problems")
        assert "Traceback" not in told
    assert main(["list", "norms", "plugin=one.py"]) == 2
    assert "plugin: unknown key. Accepted: plugins" in capsys.readouterr().err


# ------------------------------------------------------------------ runs and sweeps go on with the same file only


def test_an_interrupted_run_is_resumed_with_the_file_that_it_began_with(folder, tiny_settings):
    experiment = load(tiny_settings, {"norm": "damped"})
    steps = []
    hooks = Hooks(decide=lambda step, metrics: steps.append(step) or True, asked_to_stop=lambda: bool(steps))
    stopped = train(experiment, hooks=hooks)
    assert stopped.status == "interrupted"
    assert load_experiment(stopped.run_id, {}) == experiment
    (folder / "my_norm.py").write_text(f"{EXAMPLE}\n# changed\n")
    with pytest.raises(AblateError, match="A plugin has changed since run"):
        load_experiment(stopped.run_id, {})
    copy = tracking.client().download_artifacts(stopped.run_id, "my_norm.py")
    (folder / "my_norm.py").write_text(Path(copy).read_text())
    done = train(load_experiment(stopped.run_id, {}), Place(run_id=stopped.run_id))
    assert (done.status, done.step) == ("completed", 12)


@pytest.fixture
def spec(folder, tiny_settings):
    """A sweep with one arm and two trials, its plugin in the base experiment."""
    return Sweep.from_tree(
        {
            "name": "own",
            "experiment": {**tiny_settings, "plugins": "my_norm.py"},
            "arms": {"damped": {"norm": "damped"}},
            "search": {"optimizer.lr": [1e-3, 1e-2]},
            "sampler": "grid",
        }
    )


def test_a_sweep_goes_on_with_the_file_that_it_began_with(folder, spec, capsys):
    run_here(spec)
    assert main(["status", "own"]) == 0
    (folder / "my_norm.py").write_text(f"{EXAMPLE}\n# changed\n")
    with pytest.raises(SweepError, match=r"my_norm\.py: SHA-256 [0-9a-f]{64} -> [0-9a-f]{64}\nRestore it"):
        run.sweep(spec, console=Console(quiet=True))
    fresh = run_here(spec, fresh=True)
    assert fresh.title == "own@2"
    (folder / "my_norm.py").unlink()
    assert main(["status", "own"]) == 0
    assert main(["report", "own"]) == 0


def test_a_file_that_changes_while_a_sweep_runs_stops_it(folder, spec, monkeypatch):
    def edit_and_go_on(worker):
        (folder / "my_norm.py").write_text(f"{EXAMPLE}\n# changed\n")
        return False

    monkeypatch.setattr(Worker, "_must_stop", edit_and_go_on)
    with pytest.raises(SweepError, match="A plugin was changed while own runs"):
        run_here(spec)


def test_a_sweep_takes_plugins_at_its_top_in_its_experiment_in_an_arm_and_on_the_command_line(folder):
    tree = {"name": "own", "search": {"optimizer.lr": [1e-3]}, "arms": {"a": {"norm": "damped"}}}
    file = folder / "own.yaml"
    for more in ({"plugins": "my_norm.py"}, {"experiment": {"plugins": ["my_norm.py"]}}):
        file.write_text(yaml.safe_dump({**tree, **more}))
        spec = Sweep.load(file, {"norm.layer": "meanabs"})
        assert spec.plugin_files == spec.base("a").plugins == ("my_norm.py",)
        assert Sweep.from_tree(spec.to_tree()) == spec
    file.write_text(yaml.safe_dump({**tree, "arms": {"a": {"norm": "damped", "plugins": ["my_norm.py"]}}}))
    assert Sweep.load(file).plugin_files == ("my_norm.py",)
    file.write_text(yaml.safe_dump(tree))
    assert Sweep.load(file, {"plugins": "my_norm.py"}).base("a").norm.kind == "damped"
    with pytest.raises(ConfigError, match=r"plugins: there is no file none\.py"):
        Sweep.load(file, {"plugins": "none.py"})


def test_copies_keep_their_place_beside_the_configuration(folder):
    (folder / "norms").mkdir()
    (folder / "my_norm.py").rename(folder / "norms" / "my_norm.py")
    assert plugins.read_copies(["norms/my_norm.py"]) == {"norms/my_norm.py": EXAMPLE}
    assert plugins.read_copies([f"../{folder.name}/norms/my_norm.py"]) == {f"{folder.name}/norms/my_norm.py": EXAMPLE}
