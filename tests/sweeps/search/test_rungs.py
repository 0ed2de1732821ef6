"""Rungs in a sweep file: sizes, lengths and tokens written out by hand, and every refusal."""

from __future__ import annotations

import itertools
import random

import pytest

from ablate.config.errors import ConfigError
from ablate.experiment.tree import Experiment
from ablate.sweeps.search.methods import Rung, methods
from ablate.sweeps.search.rungs import Standing, climb, decide, rank_reached, rank_settings
from ablate.sweeps.spec.sweep import Sweep
from ablate.verdict.outcomes import Outcome, choose_candidate

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
        (
            {"trainer.batch_size": [8, 16]},
            {"trainer": {"max_tokens": 10**6}},
            "search.trainer.batch_size",
            "equally long",
        ),
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


DIVERGED = Outcome("diverged")


def trained(value):
    return Outcome("trained", value)


def stuck(value):
    return Outcome("stuck", value)


def test_settings_that_learned_come_before_those_that_did_not():
    ended = {0: stuck(3.1), 1: trained(3.2), 2: DIVERGED, 3: trained(2.0), 4: stuck(3.0)}
    assert rank_settings(ended) == [3, 1, 4, 0]
    assert rank_settings({0: trained(0.4), 1: trained(0.9)}, maximize=True) == [1, 0]
    assert rank_settings({0: stuck(0.1), 1: stuck(0.2), 2: trained(0.05)}, maximize=True) == [2, 1, 0]


def test_ties_go_to_the_first():
    assert rank_settings({4: trained(2.0), 1: trained(2.0), 3: trained(2.0)}) == [1, 3, 4]


@pytest.mark.parametrize("maximize", [False, True])
def test_the_first_is_the_one_that_a_verdict_would_choose(maximize):
    """The rule by which candidates are chosen on selection seeds, which is written elsewhere."""
    draw = random.Random(5)
    for _ in range(200):
        endings = draw.choices(["trained", "trained", "stuck"], k=4)
        ended = {number: Outcome(ending, draw.uniform(1, 3)) for number, ending in enumerate(endings)}
        first = choose_candidate([0.0] * 4, [{0: outcome} for outcome in ended.values()], maximize)
        ranked = rank_settings(ended, maximize)
        if ended[first].trained:
            assert ranked[0] == first
        assert sorted(ranked) == [0, 1, 2, 3]


NINE = (9, 3, 1)
LOSSES = [2.9, 2.1, 2.5, 2.2, 2.8, 2.4, 2.7, 2.6, 2.3]  # the best at the first rung: 1, 3, 8


def test_nobody_goes_on_before_all_have_ended_the_rung():
    standings = {number: Standing((trained(loss),)) for number, loss in enumerate(LOSSES)}
    waiting = {**standings, 4: Standing()}
    assert decide(waiting, NINE).train == [4]
    assert decide(waiting, NINE).stop == []
    unasked = {number: one for number, one in standings.items() if number != 4}  # not begun: a further one will be
    assert decide(unasked, NINE) == decide({}, NINE)
    done = decide(standings, NINE)
    assert done.train == [1, 3, 8]
    assert done.stop == [0, 2, 4, 5, 6, 7]


def test_the_share_of_the_rung_goes_on_however_far_the_others_are():
    """One of three has ended the second rung: the others are waited for; then one trains to the end."""
    standings = {number: Standing((trained(loss),)) for number, loss in enumerate(LOSSES)}
    standings[3] = Standing((trained(2.2), trained(1.9)))
    assert decide(standings, NINE).train == [1, 8]
    standings[1] = Standing((trained(2.1), trained(1.8)))
    standings[8] = Standing((trained(2.3), stuck(3.0)))
    last = decide(standings, NINE)
    assert last.train == [1]
    assert last.stop == [0, 2, 4, 5, 6, 7, 3, 8]
    standings[1] = Standing((trained(2.1), trained(1.8), trained(1.5)))
    assert decide(standings, NINE).train == []
    assert 1 not in decide(standings, NINE).stop


def test_what_diverged_does_not_go_on_even_where_places_are_left():
    standings = {number: Standing((DIVERGED,)) for number in range(9)}
    assert decide(standings, NINE).train == []
    standings[5] = Standing((stuck(3.2),))
    assert decide(standings, NINE).train == [5]
    standings[5] = Standing((stuck(3.2), trained(2.0)))
    assert decide(standings, NINE).train == [5]


def test_where_few_have_learned_nobody_is_left_out():
    """The order of the others is chance; what diverged has nothing to go on from. The next rung is judged as usual."""
    standings = {number: Standing((stuck(loss),)) for number, loss in enumerate(LOSSES)}
    standings[7] = Standing((DIVERGED,))
    assert decide(standings, NINE).train == [0, 1, 2, 3, 4, 5, 6, 8]
    assert decide(standings, NINE).stop == [7]
    later = {n: Standing((stuck(loss), trained(loss))) for n, loss in enumerate(LOSSES) if n != 7}
    assert decide({**later, 7: standings[7]}, NINE).train == [1]
    standings[4] = Standing((trained(3.0),))  # one of three places
    assert decide(standings, NINE).train == [0, 1, 2, 3, 4, 5, 6, 8]
    standings[6] = Standing((trained(3.1),))  # two
    assert decide(standings, NINE).train == [1, 4, 6]


def test_a_failed_setting_is_not_waited_for_and_may_come_late():
    standings = {number: Standing((trained(loss),)) for number, loss in enumerate(LOSSES)}
    standings[3] = Standing(failed=True)
    assert decide(standings, NINE).train == [1, 5, 8]
    moved = {**standings, **{n: Standing((trained(LOSSES[n]), trained(2.0))) for n in (1, 8, 5)}}
    moved[3] = Standing((trained(2.2),))  # repaired: among the best three of the first rung
    assert decide(moved, NINE).train == [3]
    assert 5 not in decide(moved, NINE).stop  # what has gone on is compared where it is
    moved[3] = Standing((trained(2.75),))
    assert 3 in decide(moved, NINE).stop


def test_the_order_of_trials_and_processes_does_not_matter():
    standings = {number: Standing((trained(loss),)) for number, loss in enumerate(LOSSES)}
    expected = decide(standings, NINE)
    for order in itertools.islice(itertools.permutations(standings), 0, 4000, 97):
        decided = decide({number: standings[number] for number in order}, NINE)
        assert sorted(decided.train) == sorted(expected.train)
        assert sorted(decided.stop) == sorted(expected.stop)


def test_a_climb_trains_what_the_plan_says_and_ends_with_the_best():
    rungs = [Rung(9, 44, 40, 0), Rung(3, 132, 119, 0), Rung(1, 400, 360, 0)]
    asked = []

    def train(number, rung):
        asked.append((number, rung))
        return DIVERGED if number == 1 and rung == 1 else Outcome("trained", LOSSES[number] - rung)

    standings = climb(rungs, train)
    assert [sum(rung == at for _, at in asked) for rung in range(3)] == [9, 3, 1]
    assert len(set(asked)) == len(asked)
    assert {number for number, rung in asked if rung == 1} == {1, 3, 8}
    assert standings[3].ended[-1].value == pytest.approx(0.2)
    assert rank_reached(rungs, standings) == [3, 8]  # the last rung, then the one before; 1 diverged in it
