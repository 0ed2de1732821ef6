"""JSON of somebody else is read as far as what walks through it can go."""

import json

import pytest

from ablate.config.strict_json import MOST_LEVELS, parse_json


def test_json_is_read_as_python_does():
    value = {"a": [1, 2.5, None, True, "x", {"b": {}}], "c": []}
    assert parse_json(json.dumps(value)) == value
    assert parse_json("3") == 3
    assert parse_json("[" * MOST_LEVELS + "]" * MOST_LEVELS)


@pytest.mark.parametrize("depth", [MOST_LEVELS + 1, 500, 100_000])
@pytest.mark.parametrize(("opening", "end"), [("[", "]"), ('{"a":', "}")])
def test_what_is_nested_too_deeply_is_refused(depth, opening, end):
    inside = "" if opening == "[" else "1"
    with pytest.raises(ValueError, match="more than 100 levels"):
        parse_json(opening * depth + inside + end * depth)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000])
def test_numbers_that_json_does_not_have_are_refused(number):
    for text in (number, f'{{"a": [{number}]}}'):
        with pytest.raises(ValueError, match=r"not finite|digits"):
            parse_json(text)
