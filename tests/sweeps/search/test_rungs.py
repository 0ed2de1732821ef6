"""Rungs in a sweep file: sizes, lengths and tokens written out by hand, and every refusal."""

import pytest

from ablate.config.errors import ConfigError
from ablate.experiment.tree import Experiment
from ablate.sweeps.search.methods import methods
from ablate.sweeps.spec.sweep import Sweep

WSD = {"kind": "wsd", "warmup_steps": 12, "decay_fraction": 0.1}
RATES = {"low": 1e-4, "high": 1e-1, "log": True, "num": 9}


def build(search=None, experiment=None, **more):
    """A sweep of two arms with rungs."""
    base = {"schedule": WSD, "trainer": {"max_steps": 400, "batch_size": 8}, **(experiment or {})}
    arms = {"pre": {"norm": "pre"}, "post": {"norm": "post"}}
    space = {"method": "rungs", "optimizer.lr": RATES, **(search or {})}
    return Sweep.from_tree({"name": "rungs", "experiment": base, "arms": arms, "search": space, **more})


def list_problems(**more):
    """Path -> message and given value, of what is refused."""
    with pytest.raises(ConfigError) as caught:
        build(**more)
    return {problem.path: (problem.message, problem.given) for problem in caught.value.problems}


def test_sizes_lengths_and_tokens_follow():
    spec = build()
    assert spec.sampler.kind == "grid"
    assert {**spec.search}.keys() == {"optimizer.lr"}
    rungs = spec.plan_rungs("pre")
    assert [(r.settings, r.updates, r.shared) for r in rungs] == [(9, 44, 40), (3, 132, 119), (1, 400, 360)]
    # nine runs of 44; three from update 40, to 132 with their decay; one from update 119 to the end
    assert [r.trained for r in rungs] == [9 * 44, 3 * (132 - 40), 400 - 119]
    assert spec.find_share("pre") == pytest.approx((396 + 276 + 281) / 3600)


@pytest.mark.parametrize(("settings", "keep", "share"), [(9, 0.33, 0.267), (16, 0.25, 0.191)])
def test_the_shares_of_long_runs(settings, keep, share):
    """The arithmetic of the decays: a rung costs its length, less what it shares with the one before."""
    long = {"schedule": {**WSD, "warmup_steps": 100}, "trainer": {"max_steps": 100_000}}
    spec = build({"keep": keep, "optimizer.lr": {**RATES, "num": settings}}, long)
    first = max(keep**2, 0.09)  # no shorter than that unless it is asked for
    second = first**0.5
    by_hand = settings * first + round(settings * keep) * (second - 0.9 * first) + 1 - 0.9 * second
    assert spec.find_share("pre") == pytest.approx(by_hand / settings, abs=1e-4)
    assert round(spec.find_share("pre"), 3) <= share


def test_the_first_rung_can_be_longer():
    rungs = build({"keep": 0.25, "first": 0.09, "optimizer.lr": {**RATES, "num": 16}}).plan_rungs("pre")
    assert [r.updates for r in rungs] == [36, 120, 400]
    assert [r.settings for r in rungs] == [16, 4, 1]
    shorter = build({"keep": 0.25, "first": 0.0625, "optimizer.lr": {**RATES, "num": 16}}).plan_rungs("pre")
    assert [r.updates for r in shorter] == [25, 100, 400]


def test_with_cosine_each_rung_is_a_whole_short_run():
    rungs = build(experiment={"schedule": "cosine"}).plan_rungs("pre")
    assert [r.shared for r in rungs] == [0, 0, 0]
    assert [r.trained for r in rungs] == [9 * 44, 3 * 132, 400]


def test_a_file_reads_as_it_was_written():
    spec = build({"keep": 0.4, "rungs": 2})
    assert Sweep.from_tree(spec.to_tree()) == spec
    assert build().method.kind == "rungs"
    assert Sweep.from_tree({"name": "plain", "search": {"optimizer.lr": RATES}}).method.kind == "trials"


def test_ranges_take_random_points():
    spec = build({"optimizer.lr": {"low": 1e-4, "high": 1e-1, "log": True}}, budget={"trials": 9})
    assert spec.sampler.kind == "random"
    assert [r.settings for r in spec.plan_rungs("post")] == [9, 3, 1]


def test_the_command_line_sets_them(tmp_path):
    file = tmp_path / "rungs.yaml"
    file.write_text(build().to_yaml())
    assert Sweep.load(file, {"search.method": "rungs", "search.keep": 0.5}).method.keep == 0.5


@pytest.mark.parametrize("kind", methods)
def test_every_method_costs_at_most_the_grid(kind):
    share = methods.parse(kind).find_share(9, Experiment.from_mapping({"schedule": WSD}))
    assert 0 < share <= 1


def test_everything_is_refused_at_once():
    problems = list_problems(
        search={"keep": 0.05}, sampler="tpe", pruner="median",
        budget={"trials": 9},
        experiment={"schedule": "constant"},
    )  # fmt: skip
    assert problems.keys() == {
        "search.keep", "sampler", "pruner", "experiment.schedule",
    }  # fmt: skip
    message, given = problems["search.keep"]
    assert "leaves nobody for rung 2" in message
    assert "keep 0.33 gives 9, 3, 1" in message
    assert given == 0.05
    assert "Accepted: wsd with a decay, cosine" in problems["experiment.schedule"][0]
    assert "Accepted: grid, random" in problems["sampler"][0]


def test_a_keep_that_its_suggestion_mends():
    message, _ = list_problems(search={"optimizer.lr": {**RATES, "num": 20}, "rungs": 4, "keep": 0.1})["search.keep"]
    keep = float(message.partition("keep ")[2].partition(" ")[0])
    rungs = build({"optimizer.lr": {**RATES, "num": 20}, "rungs": 4, "keep": keep}).plan_rungs("pre")
    assert rungs[0].settings == 20
    assert rungs[-1].settings >= 1


@pytest.mark.parametrize(
    ("search", "experiment", "path", "text"),
    [
        ({"optimizer.lr": [1e-3, 1e-2]}, {}, "search.keep", "3 rungs need at least 3 settings"),
        ({}, {"schedule": {**WSD, "warmup_steps": 40}}, "search.rungs", "shorter than the warm-up"),
        ({}, {"schedule": {**WSD, "decay_fraction": 0.01}}, "search.rungs", "decay of the first rung"),
        ({}, {"schedule": {**WSD, "decay_fraction": 0.0}}, "experiment.schedule", "has no decay"),
        ({"rungs": 4, "keep": 0.5}, {"trainer": {"max_steps": 8}}, "experiment.trainer.max_steps", "too short"),
        ({"trainer.max_steps": [100, 200]}, {}, "search.trainer.max_steps", "equally long"),
        ({"schedule.decay_fraction": [0.1, 0.2]}, {}, "search.schedule.decay_fraction", "equally long"),
        ({"keeps": 0.3}, {}, "search.keeps", "Did you mean search.keep?"),
        ({"method": "rung"}, {}, "search.method", "Did you mean rungs?"),
        ({"keep": 1.0}, {}, "search.keep", "less than 1"),
        ({"rungs": 1}, {}, "search.rungs", "2"),
    ],
)
def test_what_cannot_be_judged_is_refused(search, experiment, path, text):
    warm = {} if "trainer" not in experiment else {"schedule": {**WSD, "warmup_steps": 0}}
    problems = list_problems(search=search, experiment={**warm, **experiment})
    assert text in problems[path][0]


def test_arms_train_equally_much():
    arms = {"pre": {"norm": "pre"}, "mix": {"norm": "mix", "search": {"norm.alpha": [0.25, 0.5]}}}
    tree = {**build().to_tree(), "arms": arms}
    with pytest.raises(ConfigError, match="pre has 9 and mix has 18"):
        Sweep.from_tree(tree)
    equal = Sweep.from_tree({**tree, "sampler": "random", "budget": {"trials": 9}})
    assert equal.plan_rungs("pre") == equal.plan_rungs("mix")


def test_a_size_has_a_method_of_its_own(tmp_path):
    file = tmp_path / "sizes.yaml"
    tree = build().to_tree()
    tree["sizes"] = {"small": {"search": {"method": "rungs", "keep": 0.4, "optimizer.lr": RATES}}, "large": {}}
    import yaml

    file.write_text(yaml.safe_dump(tree))
    assert Sweep.load(file, size="small").method.keep == 0.4
    assert Sweep.load(file, size="large").method.keep == 0.33
