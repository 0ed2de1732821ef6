"""How a cell is trained again: compiled as it was, unless that is declined or cannot be."""

from dataclasses import replace

import pytest
from ledger.test_published import SHORTEST

from ablate.addons.ledger import retraining
from ablate.addons.ledger.bundles import read_bundle, restore_records
from ablate.addons.ledger.cells import list_cells
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
    cell = list_cells(restore_records(bundle, SHORTEST).values())[0]
    assert cell.run.facts["ablate.compile"] == "true"
    cell = replace(cell, run=replace(cell.run, params={**cell.run.params, "trainer.compile": how}))
    monkeypatch.setattr(retraining, "has_compiler", lambda: compiler)
    monkeypatch.setattr(retraining, "train", train)
    assert retraining.train_cell(cell, eager).value == 2.0
    assert [experiment.trainer.compile for experiment in trained] == [compiles]
