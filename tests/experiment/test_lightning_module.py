"""A LightningModule as an experiment: its fields and settings, which import nothing."""

import subprocess
import sys

import pytest

from ablate.config.errors import ConfigError
from ablate.experiment import LightningExperiment
from ablate.experiment.tree import build_experiment, find_class

GIVEN = {"kind": "lightning", "module": "no_such.models.Net", "steps": 10, "optimizer.init_args.lr": 0.1}


def test_settings_stand_beside_the_fields():
    one = build_experiment(GIVEN, {"settings": {"depth": 2}}, {"trainer.precision": "bf16-mixed"})
    assert isinstance(one, LightningExperiment)
    assert find_class(GIVEN) is LightningExperiment
    assert one.settings == {"optimizer": {"init_args": {"lr": 0.1}}, "depth": 2}
    assert one.flat()["optimizer.init_args.lr"] == 0.1
    assert type(one).from_mapping(one.to_tree()) == one
    assert (one.length, one.resumes, one.describe_length()) == (10, True, "10 steps of Net")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"module": "Net"}, "module: must be PACKAGE.MODULE.CLASS, as in an import"),
        ({"data": "my_project/data.py"}, "data: must be PACKAGE.MODULE.CLASS, as in an import"),
        ({"steps": 0}, "steps"),
        ({"trainer": {"max_epochs": 3}}, "trainer.max_epochs: is not accepted: all runs train for experiment.steps"),
        ({"trainer": {"max_time": "00:01"}}, "trainer.max_time: is not accepted"),
        ({"trainer": {"default_root_dir": "x"}}, "trainer.default_root_dir: is not accepted: it is the folder of"),
        ({"trainer": {"devices": 2}}, "trainer.devices: must be 1, or a list with one number: a run has one device"),
        ({"for_data": 3}, "for_data: must be a mapping"),
        ({"seed": -1}, "seed"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_refused(given, problem):
    with pytest.raises(ConfigError) as error:
        build_experiment({**GIVEN, **given})
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("differing", "factor"),
    [
        (["lr"], ("lr",)),
        (["scheduler.init_args.factor", "scheduler", "scheduler.class_path"], ("scheduler",)),  # an object beside null
        (["scheduler.init_args.factor", "scheduler.class_path"], ()),
        (["scheduler", "schedulers"], ()),
        (["lr", "depth"], ()),
        ([], ()),
    ],
)
def test_one_setting_in_which_arms_differ_is_the_compared_factor(differing, factor):
    assert LightningExperiment.pick_factor(differing) == factor


def test_the_report_says_what_is_not_guaranteed():
    told = " ".join(build_experiment({**GIVEN, "trainer": {"precision": 32}}).describe_runs())
    assert "with precision=32" in told
    for word in ("need not see the same batches in the same order", "not bit for bit", "trains for 10 steps"):
        assert word in told


def test_sweeps_of_one_module_share_no_seeds_whatever_their_settings():
    one, other, third = (build_experiment({**GIVEN, **more}) for more in ({"x": 1}, {"steps": 20}, {"module": "a.b.C"}))
    assert one.identify() == other.identify() != third.identify()


def test_reading_a_file_imports_neither_torch_nor_the_module():
    code = (
        "import sys\nfrom ablate.experiment.tree import build_experiment\n"
        f"build_experiment({GIVEN!r})\n"
        "sys.exit(' '.join({'torch', 'lightning', 'no_such'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip() == ""
