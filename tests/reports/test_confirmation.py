"""What is said of confirmed arms: the numbers are the statistics', the sentence claims no more than they show."""

import dataclasses
import json

from ablate.reports import confirmation
from ablate.sweeps.spec.parts import Confirm
from ablate.verdict.intervals import correct_p_values, count_seeds_needed, estimate, estimate_difference

PRE = {8: 2.10, 9: 2.14, 10: 2.11, 11: 2.16, 12: 2.12}  # what the fixture `confirmed` writes
MIX = {8: 2.05, 9: 2.10, 10: 2.06, 11: 2.12, 12: 2.07}
POST = {8: 2.40, 9: 2.00, 11: 2.10}


def test_the_numbers_are_those_of_the_statistics(confirmed):
    found = confirmation.compare_arms(confirmed)
    assert found["pre"].difference is None
    assert found["mix"].estimate == estimate(list(MIX.values()))
    assert (found["post"].estimate.n, found["post"].diverged, found["post"].target) == (3, 2, 5)
    expected = correct_p_values({"mix": estimate_difference(MIX, PRE), "post": estimate_difference(POST, PRE)})
    assert found["mix"].difference == expected["mix"]
    assert found["post"].difference == expected["post"]
    assert found["mix"].params == confirmed.best("mix").params
    json.dumps([c.to_dict() for c in found.values()])


def test_the_verdict_claims_what_is_shown(confirmed):
    text = confirmation.describe_confirmed(confirmed, confirmation.compare_arms(confirmed))
    assert "mix beats pre by 0.0460 +- 0.0068 nats (n = 5, p = 9.5e-05)." in text
    assert "post and pre: no difference that 3 seeds can show; n >= " in text
    assert "post diverged on 2 of 5 seeds, which its figures leave out." in text
    assert "p is corrected for 2 comparisons (Holm)." in text


def test_the_effect_that_matters_sets_the_number_of_seeds(confirmed):
    spec = confirmed.spec.model_copy(update={"confirm": Confirm(seeds=5, effect=0.3)})
    sought = dataclasses.replace(confirmed, spec=spec)
    found = confirmation.compare_arms(sought)
    needed = count_seeds_needed(found["post"].difference.estimate.sd, 0.3, 2)
    assert f"n >= {needed} would be needed for one of 0.3 nats" in confirmation.describe_confirmed(sought, found)


def test_another_baseline_and_direction_turn_the_words(confirmed):
    objective = confirmed.spec.objective.model_copy(update={"direction": "maximize"})
    spec = confirmed.spec.model_copy(update={"baseline": "mix", "objective": objective})
    turned = dataclasses.replace(confirmed, spec=spec)
    assert "pre beats mix by 0.0460" in confirmation.describe_confirmed(turned, confirmation.compare_arms(turned))


def test_without_fresh_seeds_nothing_is_claimed(record):
    assert confirmation.compare_arms(record) == {}
    assert confirmation.describe_confirmed(record, {}) == ""
