"""What the report says of how soon arms are there, and of equal cost."""

import json

import pytest
from speed_records import BASE, FAST, SLOW, build_record

from ablate.reports.report import assemble


@pytest.fixture
def told(tmp_path):
    def tell(record):
        made = assemble(record, tmp_path, draw=False)
        assert "How soon each arm" in made.page()
        return made, " ".join(made.table().split()), json.loads(json.dumps(made.to_dict()))

    return tell


def test_the_first_sentences_say_what_is_claimed(told):
    made, text, plain = told(build_record({"base": BASE, "fast": FAST, "slow": SLOW}))
    clause = "fast reaches the final val/loss of base with 0.4779 times the tokens (0.4771 to 0.4787) and 0.4779"
    assert clause in made.summary
    assert clause in made.verdict
    assert "slow reaches" not in made.verdict
    assert "How soon each arm reaches the final val/loss of base" in text
    assert "not reached (1.000 or more)" in made.page()
    assert "Seconds are those of updates" in text
    arm = plain["arms"]["fast"]["speed"]
    assert arm["claimed"] == ["tokens", "flops"]
    assert arm["shares"]["tokens"]["value"] == pytest.approx(0.47, abs=0.01)
    assert plain["arms"]["base"]["speed"] is None
    assert plain["compare"]["at"] == "end"
    assert [figure.name for figure in made.drawings].count("speed") == 1


def test_failures_and_refused_seconds_are_told(told):
    curves = {"base": [*BASE, None], "fast": [None, *FAST[1:], FAST[0]]}
    _, text, plain = told(build_record(curves, {"fast": {"company": 1}}))
    assert "Failed, and left out of the mean curves: fast on 1 and base on 1 of 6." in text
    assert "Seconds are not compared: 5 of 10 runs shared their machine with other trainings." in text
    assert plain["arms"]["fast"]["speed"]["median"]["high"] is None  # infinite


def test_one_validation_says_nothing_of_how_soon(told):
    _, text, _ = told(build_record({"base": [{100: 2.0 + i / 9} for i in range(3)], "arm": [{100: 1.9}] * 3}))
    assert "One validation does not tell how soon: set trainer.val_check_interval" in text


def test_a_target_has_a_table_of_its_own(told):
    made, text, plain = told(build_record({"base": BASE, "fast": FAST}, target=3.5))
    assert "fast reaches a val/loss of 3.5 with 0.66 times the tokens (up to 0.66)" in made.summary
    assert "How soon each arm reaches a val/loss of 3.5" in text
    assert plain["arms"]["fast"]["target_speed"]["goal"] == 3.5
    made, text, _ = told(build_record({"base": BASE, "fast": FAST}, target=0.5))
    assert "The mean of fast and base does not reach it, so there is no share to state." in text


def test_equal_cost_is_told_beside_the_verdict(told):
    long = [{100: 1.9, 200: 1.5 + i / 10} for i in range(5)]
    made, _, plain = told(build_record({"base": BASE, "arm": long}, compare={"at": "tokens"}))
    assert "each arm at its chosen settings, at equal tokens: arm is better than base on a typical seed" in made.verdict
    assert (
        "All arms are compared at 1 k tokens, the most that every run has reached; interpolated between validations, "
        "and before the end of their schedule: arm after 50 % of its updates." in made.verdict
    )
    assert made.summary.startswith("Verdict at equal tokens against base: arm better")
    assert (plain["compare"]["cost"], plain["compare"]["read_early"]) == (1000, {"arm": 0.5})


def test_seconds_that_cannot_be_compared_are_refused_in_a_sentence(tmp_path):
    record = build_record({"base": BASE, "fast": FAST}, {"fast": {"company": 1}}, compare={"at": "seconds"})
    made = assemble(record, tmp_path, draw=False)
    assert (
        "Nothing is compared at equal seconds: 5 of 10 runs shared their machine with other trainings. Train again "
        "alone (one worker), or set compare.at." in made.verdict
    )
