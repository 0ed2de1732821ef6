"""Studies that somebody has deleted from the storage, as in Optuna's dashboard."""

import optuna
import pytest

from ablate.cli import main
from ablate.config.errors import SweepError
from ablate.reports.report import report
from ablate.scheduler import dry_run
from ablate.scheduler.preparation import open_sweep
from ablate.scheduler.storage import open_storage, read_sweep, storage_url
from ablate.scheduler.worker import Worker
from benchmarks.simulation.losses import Valley
from benchmarks.simulation.sweeps import simulate


@pytest.fixture
def ended(store, tiny_settings, spec):
    """A sweep with searches, candidates and fresh seeds; its losses are simulated."""
    rates = {"optimizer.lr": [1e-3, 3e-3]}
    arms = {"pre": {"norm": "pre"}, "post": {"norm": "post"}}
    sweep = spec(arms=arms, search=rates, sampler="grid", confirm={"seeds": 3})
    open_sweep(sweep, storage_url(), False, None)
    simulate(sweep, Valley({"pre": 2.0, "post": 2.1}), open_storage(storage_url()))
    return sweep


@pytest.mark.parametrize("kind", ["the baseline", "the other arm", "further seeds"])
def test_it_is_told_in_status_and_report_and_ends_the_sweep(kind, ended, capsys):
    names = optuna.get_all_study_names(storage_url())
    ends = {"the baseline": "/pre", "the other arm": "/post", "further seeds": "/post/seeds"}
    deleted = next(name for name in names if name.endswith(ends[kind]))
    optuna.delete_study(study_name=deleted, storage=storage_url())
    sentence = f"The study {deleted} was deleted from the storage, with all results."
    assert main(["status", "small"]) == 0
    assert sentence in " ".join(capsys.readouterr().out.split())
    content = report("small", write=False)
    assert content.notes[0].startswith(sentence)
    assert content.record.arms == ["pre", "post"]  # also the one that is gone
    for start in (
        lambda: open_sweep(ended, storage_url(), False, None),
        lambda: dry_run.plan(ended, 1, None),
        lambda: Worker("small", storage_url()),
    ):
        with pytest.raises(SweepError, match=rf"{deleted} was deleted .* ablate sweep --fresh .* kept as small@1"):
            start()
    assert deleted not in optuna.get_all_study_names(storage_url())
    assert open_sweep(ended, storage_url(), True, None)[0].full_name == "small@2"
    assert read_sweep("small@1").deleted == [deleted]


def test_what_is_left_of_deleted_searches_is_not_taken_for_that_of_new_ones(ended):
    for arm in ("pre", "post"):
        optuna.delete_study(study_name=f"small@1/{arm}", storage=storage_url())
    assert read_sweep("small").deleted == ["small@1/post", "small@1/pre"]
    with pytest.raises(SweepError, match="The studies small@1/post and small@1/pre were deleted"):
        open_sweep(ended, storage_url(), False, None)


def test_a_sweep_that_was_killed_while_its_studies_were_made_goes_on(ended):
    """What was never there was not deleted."""
    for name in optuna.get_all_study_names(storage_url()):
        if name != "small@1/pre":
            optuna.delete_study(study_name=name, storage=storage_url())
    optuna.load_study(study_name="small@1/pre", storage=storage_url()).set_user_attr("studies", [])
    assert read_sweep("small").deleted == []
    assert open_sweep(ended, storage_url(), False, None)[0].full_name == "small@1"


def test_a_study_that_is_deleted_while_the_sweep_runs_ends_it_with_a_sentence(ended):
    queue, _ = open_sweep(ended, storage_url(), False, None)
    optuna.delete_study(study_name="small@1/pre", storage=storage_url())
    with pytest.raises(SweepError, match="The study small@1/pre was deleted while the sweep runs"):
        queue.take()
