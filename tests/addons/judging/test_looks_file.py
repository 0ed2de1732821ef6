"""The file that counts the looks at a table."""

import json

import pytest

from ablate import AblateError
from ablate.addons.judging.judge import judge
from ablate.verdict.looks import Looks

PRE, POST = [2.10, 2.14, 2.11, 2.16, 2.12, 2.15], [2.13, 2.16, 2.15, 2.19, 2.16, 2.18]


@pytest.fixture
def look(tmp_path):
    """look(seeds): the verdict on a table of so many seeds, with the looks counted."""

    def call(seeds, post=POST, **more):
        table = {
            "arm": ["pre"] * seeds + ["post"] * seeds, "seed": [*range(seeds)] * 2,
            "val_loss": PRE[:seeds] + post[:seeds], "val_acc": post[:seeds] + PRE[:seeds],
        }  # fmt: skip
        given = {"value": "val_loss", "baseline": "pre", "looks_file": tmp_path / "runs.csv.looks.json", **more}
        return judge(table, **given)

    return call


def told(found):
    return " ".join(found.told)


def test_a_look_with_more_seeds_counts_and_the_same_one_does_not(look):
    assert look(3).compared["post"].looks == Looks((3,), 3)
    assert "Earlier looks" not in told(look(3))
    assert look(3, where="seed=1").compared["post"].family == 2  # a choice of rows is another comparison
    found = look(6)
    assert found.compared["post"].looks == Looks((3, 6), 3)
    assert found.compared["post"].versus.level < look(6, looks_file=None).compared["post"].versus.level
    assert "Earlier looks, counted in runs.csv.looks.json: at 3 seeds (" in told(found)
    assert "2 looks at 3 and 6 seeds" in found.verdict
    assert look(6).compared["post"].looks == Looks((3, 6), 3)


def test_seeds_that_were_planned(look):
    assert "a later one with more seeds has little of the error left" not in told(look(3, planned=6))
    assert look(6).compared["post"].looks == Looks((3, 6), 6)
    found = look(6, planned=9)
    assert found.compared["post"].looks == Looks((3, 6), 6)
    assert "9 seeds are planned now, and 6 were at the first look, which is what counts." in told(found)
    assert "(6 were planned)" in look(6, planned=6).verdict


def test_too_few_seeds_are_no_look(look, tmp_path):
    look(2)
    assert look(6).compared["post"].looks == Looks((6,), 6)
    assert list(tmp_path.iterdir()) == [tmp_path / "runs.csv.looks.json"]


def test_other_comparisons_of_the_table_share_the_error(look):
    look(5)
    found = look(5, value="val_acc")
    assert found.compared["post"].family == 2
    assert "1 other comparison of this table, made before, shares the error: post against pre by val_loss." in told(
        found
    )


def test_changed_values_and_effects_are_said(look):
    look(5, effect=0.01)
    assert "the values of post against pre by val_loss have changed, without a further seed" in told(
        look(5, [2.0] * 5, effect=0.01)
    )
    assert "The difference that matters was 0.01 at the first look and is 0.05 now" in told(look(5, effect=0.05))


def test_looks_that_are_told(look):
    assert look(6, looks_file=None, looks=[3, 5]).compared["post"].looks == Looks((3, 5, 6), 5)
    assert look(6, looks_file=None, looks=[3, 5, 8]).compared["post"].looks == Looks((3, 5, 6), 8)
    ahead = look(6, looks_file=None, looks=[5, 9])
    assert ahead.compared["post"].looks == Looks((5, 6), 9)
    assert "--looks names 9 seeds, and no arm has more than 6: that is taken as planned, and not as a look." in (
        told(ahead)
    )
    assert "besides those at 5 seeds are not counted" in " ".join(ahead.limits)
    limits = " ".join(look(6, looks_file=None, looks=[3, 5]).limits)
    assert "Looks at these results besides those at 3 and 5 seeds are not counted." in limits


def test_a_file_that_is_damaged_or_cannot_be_written(look, tmp_path):
    file = tmp_path / "runs.csv.looks.json"
    for text in ("{", '{"comparisons": {"post": {}}}', '{"comparisons": []}'):
        file.write_text(text)
        with pytest.raises(AblateError, match="does not have the looks that ablate judge wrote"):
            look(5)
    assert "cannot be written" in " ".join(look(5, looks_file=tmp_path / "none" / "looks.json").notes)


def test_the_file_is_in_words(look, tmp_path):
    look(5)
    content = json.loads((tmp_path / "runs.csv.looks.json").read_text())
    assert "every look shares the error of 5 %" in content["about"]
    assert [*content["comparisons"]] == ["post against pre by val_loss"]
