"""How a rerun is trained again: compiled as it was, unless that is declined or cannot be."""

from dataclasses import replace

import pytest
from bundles.test_published import SHORTEST

from ablate.addons.bundles import reruns
from ablate.addons.bundles.files import read_bundle, restore_records
from ablate.addons.bundles.reruns import list_reruns
from ablate.training.procedures import Result


@pytest.mark.parametrize(
    ("eager", "compiler", "compiles"), [(False, True, True), (True, True, False), (False, False, False)]
)
@pytest.mark.parametrize("how", [True, "auto"])
def test_a_compiled_cell_is_compiled_again_where_it_can_be(monkeypatch, eager, compiler, compiles, how):
    trained = []

    def train(experiment, *rest):
        trained.append(experiment)
        return Result("completed", {"val/loss": 2.0}, 108, None, 0.0)

    bundle = read_bundle(SHORTEST)
    rerun = list_reruns(restore_records(bundle, SHORTEST).values())[0]
    assert rerun.run.facts["ablate.compile"] == "true"
    rerun = replace(rerun, run=replace(rerun.run, params={**rerun.run.params, "trainer.compile": how}))
    monkeypatch.setattr(reruns, "has_compiler", lambda: compiler)
    monkeypatch.setattr(reruns, "train", train)
    assert reruns.train_again(rerun, eager).value == 2.0
    assert [experiment.trainer.compile for experiment in trained] == [compiles]
