"""What is written down of the data before a sweep runs."""

import math

import optuna
import pytest

from ablate import tracking
from ablate.config.errors import AblateError
from ablate.data import Corpus, Topics
from ablate.scheduler.preparation import open_sweep
from ablate.scheduler.storage import open_storage, read_sweep, storage_url
from ablate.scheduler.studies import name_study
from ablate.sweeps.spec.scale import scale_sweep
from ablate.sweeps.spec.sweep import Sweep


@pytest.fixture
def spec(tiny_settings):
    def build(**more):
        tree = {
            "name": "small", "experiment": tiny_settings, "arms": {"pre": {"norm": "pre"}, "post": {"norm": "post"}},
            "search": {"optimizer.lr": [1e-3]}, "budget": {"trials": 1}, **more,
        }  # fmt: skip
        return Sweep.from_tree(tree)

    return build


@pytest.fixture
def counted(monkeypatch):
    """The corpora whose trivial loss was counted."""
    corpora, plain = [], Corpus.measure_trivial_loss
    monkeypatch.setattr(Corpus, "measure_trivial_loss", lambda self: corpora.append(self) or plain(self))
    return corpora


def open_again(spec):
    open_sweep(spec, storage_url(), False, None)
    return read_sweep(spec.name)


def load_arm(arm, name="small"):
    return optuna.load_study(study_name=name_study(name, 1, arm), storage=open_storage(storage_url()))


def test_the_trivial_loss_is_counted_once_and_stored_for_each_arm(store, spec, counted, tiny_settings, tmp_path):
    record = open_again(spec())
    data = {key: value for key, value in tiny_settings["data"].items() if key != "kind"}
    expected = Topics(**data).load(tmp_path).measure_trivial_loss()
    assert len(counted) == 2  # the sweep's and the test's
    assert record.trivial_loss == expected
    assert 2 < expected < record.initial_loss == pytest.approx(math.log(256))
    assert [load_arm(arm).user_attrs["trivial_loss"] for arm in ("pre", "post")] == [expected] * 2
    assert open_again(spec(budget={"trials": 2})).trivial_loss == expected
    assert len(counted) == 2


def test_an_arms_run_that_was_deleted_is_restored_before_the_sweep_goes_on(store, spec):
    parents = open_again(spec()).parents
    tracking.client().delete_run(parents["post"])
    with pytest.raises(AblateError, match=f"mlflow runs restore --run-id {parents['post']}"):
        open_again(spec())
    tracking.client().restore_run(parents["post"])
    assert open_again(spec()).parents == parents


ARMS = {"short": {"data.val_fraction": 0.02}, "long": {"data.val_fraction": 0.3}}


def test_a_store_of_earlier_has_none_until_it_goes_on(store, spec, counted, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Corpus, "measure_trivial_loss", lambda self: None)
        assert open_again(spec()).trivial_loss is None
    assert "trivial_loss" not in load_arm("pre").user_attrs
    assert read_sweep("small").trivial_loss is None
    assert 2 < open_again(spec()).trivial_loss < math.log(256)
    assert len(counted) == 1


def test_of_arms_on_different_data_it_is_the_largest(store, spec, counted):
    record = open_again(spec(arms=ARMS, factor="data"))
    losses = [load_arm(arm).user_attrs["trivial_loss"] for arm in ARMS]
    assert len(counted) == len(set(losses)) == 2
    assert record.trivial_loss == max(losses)


@pytest.mark.parametrize("unknown", list(ARMS))
def test_where_that_of_one_arm_is_not_known_there_is_none(store, spec, monkeypatch, unknown):
    """And it is asked for again: a stream may be out of reach for a while."""
    plain, sweep = Corpus.measure_trivial_loss, spec(arms=ARMS, factor="data")
    base = sweep.base(unknown)
    items = base.validation.count_samples(len(base.data.load(store).val))
    with monkeypatch.context() as patch:
        patch.setattr(Corpus, "measure_trivial_loss", lambda self: None if len(self.val) == items else plain(self))
        assert open_again(sweep).trivial_loss is None
    assert [arm for arm in ARMS if "trivial_loss" not in load_arm(arm).user_attrs] == [unknown]
    assert open_again(sweep).trivial_loss is not None


def test_a_scaled_sweep_goes_on_with_another_note_of_the_changed_settings(store, spec):
    before = scale_sweep(spec(), 0.5)
    open_again(before)
    scale = before.scale.model_copy(update={"changed": {"budget.trials": "2 instead of 9"}})
    now = open_again(before.model_copy(update={"scale": scale}))
    assert now.spec.scale == scale
    assert read_sweep("small-scale0.5").spec.scale == scale
