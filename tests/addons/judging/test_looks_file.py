"""The file that counts the looks at a table."""

import json
import math
from itertools import pairwise, permutations

import pytest

from ablate import AblateError
from ablate.addons.judging.judge import judge
from ablate.addons.judging.looks_file import Look, add_looks, split_looks
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
    found = look(5, [*POST[:4], 2.17], effect=0.01)
    assert "Not every earlier look at post against pre by val_loss leads to this one by further seeds" in told(found)
    assert "2 looks at 5 and 5 seeds" in found.verdict
    assert "The difference that matters was 0.01 at the first look and is 0.05 now" in told(look(5, effect=0.05))


@pytest.mark.parametrize("unpaired", [False, True])
@pytest.mark.parametrize("planned", [None, 5, 8])
@pytest.mark.parametrize("status", ["state=crashed", "state"])
def test_values_that_turn_into_failures_and_back(tmp_path, status, planned, unpaired):
    """The first look is at a table in which a crash is no failure, or at one without a status."""
    table = {
        "arm": ["pre"] * 5 + ["post"] * 5, "seed": [*range(5)] * 2, "val_loss": PRE[:5] + POST[:5],
        "state": [*["finished"] * 8, "crashed" if "=" in status else "diverged", "finished"],
    }  # fmt: skip
    plain = table if "=" in status else {key: own for key, own in table.items() if key != "state"}
    given = {"baseline": "pre", "looks_file": tmp_path / "looks.json", "planned": planned, "unpaired": unpaired}
    levels, looks = [], []
    for own in ({}, {"status": status}, {}, {"status": status}):
        found = judge(table if own else plain, **given, **own).compared["post"]
        levels.append(found.versus.level * found.family / 0.05)
        looks.append(found.looks)
    assert (levels[2:], looks[2:]) == (levels[:2], looks[:2])  # the same values have the same level again
    spent = [one.share_spent()[-1] for one in looks[:2]]
    assert 0 < sum(spent if looks[1].before else spent[1:]) < 1  # of nested looks the last has what all spent
    assert len(looks[1].taken) == 2


def place(earlier, values, told=(), planned=5):
    """Return all looks, those of them that lead to one at `values`, and the shares of the error."""
    now = Look(len(values), " ".join(values))
    taken = add_looks(earlier, now, (size for size in told if size < now.seeds))
    before, since = split_looks(taken, now)
    sizes, earlier_sizes = (tuple(look.seeds for look in part) for part in (since, before))
    return taken, since, Looks(sizes, planned, earlier_sizes).share_spent()


@pytest.mark.parametrize("planned", [3, 5, 9])
@pytest.mark.parametrize("told", [(), (4,), (2, 4)])
def test_looks_in_any_order_spend_at_most_all(planned, told):
    """Of five tables: three that grow, one of them with a changed value, and one with a pair left out. `told` are looks
    that the first counts. Nested looks share one test from look to look, all others have their own."""
    for tables in permutations(("abc", "abcde", "abcdefg", "abcdX", "bcde")):
        earlier, shares = [], {}
        for values in (*tables, *tables):  # each a second time, when all others are known
            known = [look.values for look in earlier]
            earlier, since, spent = place(earlier, values, told if not earlier else (), planned)
            assert all({*a.values.split()} <= {*b.values.split()} and a.seeds < b.seeds for a, b in pairwise(since))
            assert shares.setdefault(values, spent) == spent
            assert len(earlier) == len(known) or " ".join(values) not in known
        own = [spent[-1] - (0.0, *spent)[-2] for spent in shares.values()]
        first = (0.0, *shares[tables[0]])[-2]  # of the looks that were told
        assert min(own) > 0
        assert first + sum(own) < 1


def test_seeds_that_are_added_between_others_come_after_them(tmp_path):
    """A run that failed, of a seed before the others: 4 pairs were looked at first, and not 3."""
    table = {"arm": ["pre"] * 5 + ["post"] * 5, "seed": [*range(5)] * 2, "val_loss": PRE[:5] + POST[:5]}
    first = {key: [*own[:6], *own[7:]] for key, own in table.items()}
    given = {"baseline": "pre", "looks_file": tmp_path / "looks.json"}
    assert judge(first, **given).compared["post"].looks == Looks((4,), 4)
    table["val_loss"][6] = math.nan
    found = judge(table, **given).compared["post"]
    assert found.looks == Looks((4, 5), 4)
    # the same four differences: no pair is new, so all that is spent up to the second look is its level
    assert found.versus.level == pytest.approx(0.9 * 0.05, rel=1e-3)


def test_seeds_that_are_taken_away(look):
    look(6)
    found = look(4).compared["post"]
    assert found.looks == Looks((4,), 6, (6,))
    assert found.versus.level == pytest.approx(0.1 * 0.05, rel=1e-2)
    assert "Not every earlier look" in told(look(4))
    again = look(6)
    assert again.compared["post"].looks == Looks((6,), 6)
    assert "Not every" not in told(again)
    assert look(5).compared["post"].looks == Looks((4, 5), 6, (6,))


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
