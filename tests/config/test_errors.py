"""Messages are short and are made in a time that is linear in what was given."""

import pytest

from ablate.cli import main
from ablate.config.errors import AblateError, ConfigError, Problem, shorten_values
from ablate.experiment.tree import Experiment

LONG = "x" * 1_000_000
SPACED = "x y " * 250_000


@pytest.mark.parametrize("value", [LONG, SPACED, "/a" * 500_000, "?" * 1_000_000, [LONG, LONG], {"a": SPACED}])
@pytest.mark.parametrize("path", ["norm", "optimizer.lr", "data.files", "plugins", "seed", "model.layers", "nothing"])
def test_a_value_is_repeated_up_to_200_letters(path, value, capsys):
    with pytest.raises(ConfigError) as told:
        Experiment.from_mapping({path: value})
    for line in str(told.value).splitlines():
        assert len(line) < 1500
        assert max(line.count("x"), line.count("?"), line.count("/a")) <= 210


@pytest.mark.parametrize("word", [LONG[:100_000], SPACED[:100_000]])
@pytest.mark.parametrize("verb", ["config", "sweep", "report", "verify", "export", "list"])
def test_a_word_of_the_command_line_is_repeated_up_to_200_letters(verb, word, capsys, store):
    words = [verb, word, *(["--to", "hf", "--output", "out"] if verb == "export" else [])]
    try:
        status = main(words)
    except SystemExit as error:
        status = error.code
    assert status == 2
    assert 0 < len(capsys.readouterr().err) < 3000


def test_a_path_that_exists_stands_whole_so_that_a_command_can_be_typed(tmp_path):
    folder = tmp_path / "/".join("ab" * 40 for _ in range(4))
    folder.mkdir(parents=True)
    command = f"MLFLOW_TRACKING_URI=sqlite:///{folder} mlflow experiments restore"
    assert shorten_values(command) == command
    assert len(shorten_values(command.replace("abab", "nope"))) < 260


def test_a_long_key_is_repeated_up_to_200_letters():
    with pytest.raises(ConfigError) as told:
        Experiment.from_mapping({LONG: 1})
    assert str(told.value).count("x") <= 210


def test_what_is_accepted_is_listed_once_for_thousands_of_unknown_keys():
    for prefix in ("key", "norm.key", "trainer.key"):
        with pytest.raises(ConfigError) as told:
            Experiment.from_mapping({f"{prefix}{number}": 1 for number in range(3000)})
        text = str(told.value)
        assert len(told.value.problems) == 3000
        assert len(text.splitlines()) == 3001
        assert len(text) < 3000 * 80
        assert text.count("trainer, warm_start") <= 1
    assert f"{prefix}2999: unknown key" in text


def test_what_is_accepted_is_listed_anew_where_it_is_another():
    names, others = ", ".join(f"name{k}" for k in range(40)), ", ".join(f"other{k}" for k in range(40))
    texts = (f"no such. Accepted: {names}. Did you mean name1?", f"no such. Accepted: {names}.", f"Accepted: {others}.")
    error = ConfigError([Problem(f"p{k}", text) for k, text in enumerate([*texts[:2], texts[0], f"x. {texts[2]}"])])
    lines = str(error).splitlines()[1:]
    assert lines == [
        f"  p0: {texts[0]}",
        "  p1: no such. Accepted: as above.",
        "  p2: no such. Accepted: as above. Did you mean name1?",
        f"  p3: x. {texts[2]}",
    ]


def test_text_of_ours_stays_whole():
    text = "It doesn't fit: " + "a word, " * 300 + "and 'a name' isn't \"another\". Run: ablate sweep 'my file.yaml'"
    assert shorten_values(text) == text
    assert str(AblateError(text)) == text
    assert str(AblateError(f"'{'a b ' * 100}' is no name.")).endswith("' (402 characters) is no name.")
