"""Groups of ranks that train what a test gives them."""

import json
import subprocess

import pytest

from ablate.tasks import Task

SCRIPT = """
import json, sys
from pathlib import Path

from ablate.distributed import groups
from ablate.experiment.tree import Experiment
from ablate.training.runs import stored_experiment
from ablate.training.train import Hooks, Place, train

trees, stopped = json.loads(Path(sys.argv[1]).read_text())


def everything():
    found = {}
    for name, tree in trees.items():
        asked = iter(range(1, 1000))
        result = train(Experiment.from_mapping(tree), hooks=Hooks(asked_to_stop=lambda: next(asked) == 7))
        if name not in stopped:
            result = train(stored_experiment(result.run_id, {}), Place(run_id=result.run_id))
        found[name] = result.to_dict()
    Path(sys.argv[2]).write_text(json.dumps(found))
    return 0


sys.exit(groups.lead(everything))
"""


@pytest.fixture
def trained_by_two(torchrun, tmp_path):
    """trained_by_two({name: tree}, stopped): name -> result of two ranks. Each is stopped after 7 updates and, but for
    those in `stopped`, gone on with."""

    def run(trees, stopped=()):
        file, given, out = tmp_path / "everything.py", tmp_path / "given.json", tmp_path / "out.json"
        file.write_text(SCRIPT)
        given.write_text(json.dumps([trees, list(stopped)]))
        command = torchrun(str(file), str(given), str(out))
        done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return json.loads(out.read_text())

    return run


@pytest.fixture
def begun(monkeypatch):
    """The weights before the first update of each training that follows."""
    seen = []
    plain = Task.on_train_start

    def note(self):
        plain(self)
        seen.append({name: value.clone() for name, value in self.model.state_dict().items()})

    monkeypatch.setattr(Task, "on_train_start", note)
    return seen
