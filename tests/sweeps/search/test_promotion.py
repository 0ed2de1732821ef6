"""Who goes on from a rung, against what is written out by hand."""

import itertools
import random

import pytest

from ablate.sweeps.search.methods import Rung
from ablate.sweeps.search.promotion import Standing, climb, decide, rank_reached, rank_settings
from ablate.verdict.outcomes import Outcome
from ablate.verdict.selection import choose_candidate

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
