"""The seeds that a sweep keeps for itself, and those that are left for a later one."""

import pytest

from ablate.config.bounds import MOST_SEED
from ablate.config.errors import SweepError
from ablate.sweeps.seeds import draw_seeds, tabulate_seeds
from ablate.sweeps.spec.parts import TakenOver
from ablate.sweeps.spec.sweep import Sweep

RATES = {"optimizer.lr": [1e-3, 3e-3]}


def sweep(name="one", arms=("pre", "post"), seed=0, **more):
    tree = {"name": name, "experiment": {"seed": seed, "model.layers": 2}, "search": RATES, "confirm": {"seeds": 3}}
    settings = {**tree["experiment"], **more.pop("experiment", {})}
    return Sweep.from_tree({**tree, "arms": {arm: {"norm": arm} for arm in arms}, **more, "experiment": settings})


ONE = {"one@1": tabulate_seeds(sweep())}


def test_a_sweep_keeps_a_block_of_seeds_to_which_it_may_add():
    table = ONE["one@1"]
    assert (table.tuned, table.first, table.last, table.tests) == ([0], 1, 2000, 3)
    most = sweep(confirm={"seeds": 1000, "selection_seeds": 500})
    assert {*most.fresh_seeds(), *most.selection_seeds(most.confirm.most_selection_seeds)} == {
        *range(table.first, table.last + 1)
    }


def test_in_a_store_without_sweeps_the_first_seed_stays():
    assert draw_seeds(sweep(), {}) == sweep()
    assert draw_seeds(sweep(seed=7), {}).fresh_seeds() == [8, 9, 10]


@pytest.mark.parametrize(
    "later",
    [
        sweep(),
        sweep("another-name"),
        sweep(arms=("pre", "lns")),
        sweep(arms=("peri", "lns")),
        sweep(experiment={"trainer.max_steps": 77, "optimizer.weight_decay": 0.2, "schedule.warmup_fraction": 0.2}),
        sweep(search={"optimizer.lr": {"low": 1e-3, "high": 1e-2, "log": True}}, sampler="random"),
        sweep(search={}, confirm={"at": "grid", "seeds": 3}, sampler="grid"),
        sweep(search={"model.rope_base": [1e3, 1e4], **RATES}),
        sweep(experiment={"init.std": 0.01}),
    ],
    ids=["itself", "name", "an arm", "all arms", "training", "search", "no search", "model searched", "initialisation"],
)
def test_the_same_model_and_data_are_never_tested_on_a_seed_twice(later):
    drawn = draw_seeds(later, ONE)
    assert drawn.fresh_seeds() == [2001, 2002, 2003]
    assert drawn.selection_seeds()[:1] == [3001]
    assert drawn.spent.sweeps == ["one@1"]
    assert "An earlier sweep of this storage, one@1, trains the same model" in drawn.spent.describe()


@pytest.mark.parametrize("more", [{"model.layers": 3}, {"data.seq_len": 64}, {"model.hidden": 64, "model.heads": 2}])
def test_another_model_or_other_data_have_seeds_of_their_own(more):
    later = sweep("two", experiment=more)
    assert draw_seeds(later, ONE) == later


def test_all_later_ones_are_above_all_earlier_ones():
    tables, firsts = {}, []
    for i in range(4):
        drawn = draw_seeds(sweep(f"s{i}"), tables)
        tables[f"s{i}@1"] = tabulate_seeds(drawn)
        firsts.append(drawn.first_seed)
    assert firsts == [1, 2001, 4001, 6001]
    assert drawn.spent.sweeps == ["s0@1", "s1@1", "s2@1"]
    assert "3 earlier sweeps of this storage train the same model" in drawn.spent.describe()
    high = draw_seeds(sweep("high", seed=9000), tables)
    assert high.fresh_seeds() == [9001, 9002, 9003]


def test_a_sweep_that_says_itself_what_was_spent_is_not_tested_below():
    """The file of a bundle says so, and is run in another store."""
    tree = {**sweep().to_tree(), "spent": {"last": 2000, "sweeps": ["one@1"]}}
    assert draw_seeds(Sweep.from_tree(tree), {}).fresh_seeds() == [2001, 2002, 2003]
    both = draw_seeds(Sweep.from_tree({**tree, "spent": {"last": 6000, "sweeps": ["far@1"]}}), ONE)
    assert (both.first_seed, both.spent.sweeps) == (6001, ["far@1", "one@1"])


def test_no_sweep_is_tuned_on_a_seed_on_which_an_earlier_one_is_tested():
    with pytest.raises(SweepError, match=r"two would be tuned on the seed 3, and one@1, .* keeps the seeds 1 to 2000"):
        draw_seeds(sweep("two", seed=3), ONE)
    assert draw_seeds(sweep("two", seed=2001), ONE).fresh_seeds() == [2002, 2003, 2004]
    untested = {"one@1": tabulate_seeds(sweep(confirm={"seeds": 0}))}
    assert draw_seeds(sweep("two", seed=3), untested).fresh_seeds() == [2001, 2002, 2003]  # where it may be tested yet
    assert draw_seeds(sweep("two", seed=3, search={}, sampler="grid", confirm={"at": "grid", "seeds": 3}), ONE)


def test_settings_that_are_taken_over_are_not_tested_where_they_were_chosen():
    taken = TakenOver(sweep="small@1", settings={}, seeds=[0, 2002])
    later = sweep(search={}, sampler="grid", confirm={"at": "grid", "seeds": 3})
    drawn = draw_seeds(later.model_copy(update={"taken_over": taken}), ONE)
    assert drawn.fresh_seeds() == [2003, 2004, 2005]


def test_where_no_seeds_are_left_a_sentence_says_so():
    table = ONE["one@1"].model_copy(update={"first": MOST_SEED - 2500, "last": MOST_SEED - 501})
    with pytest.raises(SweepError, match="No seeds are left for one: those up to 4294966794"):
        draw_seeds(sweep(), {"one@1": table})
