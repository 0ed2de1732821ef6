"""YAML files and `key=value` words: which values they give, and what is said about those that cannot be read."""

import json
import re
import shlex
import time

import pytest

from ablate.config.errors import ConfigError
from ablate.config.yaml import MOST_LEVELS, dump_yaml, parse_json, parse_overrides, parse_yaml, read_yaml, split_words
from ablate.experiment.tree import Experiment


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E3", 1000.0),
        ("-2.5e+4", -25000.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("12", 12),
        ("1_000", 1000),
        ("0.25", 0.25),
        ("true", True),
        ("null", None),
        ("", None),
        ("1e", "1e"),
        ("e5", "e5"),
        ("llama-71m", "llama-71m"),
        ("1.2.3", "1.2.3"),
        ("2024-13-45", "2024-13-45"),  # PyYAML's own rule makes a date of it, or fails
        ("00:30:00", "00:30:00"),
        ("1:99", "1:99"),
        ("0x10", 16),
        ("07", 7),  # octal or not
        ("'0100'", "0100"),
        ("=", "="),
        ("{a: &x {b: 1}, c: {<<: *x, d: 2}}", {"a": {"b": 1}, "c": {"b": 1, "d": 2}}),
        ("[1e-3, a]", [0.001, "a"]),
        ("{low: 1e-4}", {"low": 0.0001}),
        ("'1e-3'", "1e-3"),
    ],
)
def test_numbers(text, value):
    found = parse_yaml(text, "text")
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{metric: mean(a, b,c), direction: minimize}", {"metric": "mean(a, b, c)", "direction": "minimize"}),
        ("[{source: x, metric: mean(a, b)}]", [{"source": "x", "metric": "mean(a, b)"}]),
        ("{metric: 'mean(a', b: }", {"metric": "mean(a", "b": None}),  # quoted, as in YAML
        ("{metric: mean(a, b: 1}", {"metric": "mean(a", "b": 1}),
        ("{a: mean, b: , c: 1}", {"a": "mean", "b": None, "c": 1}),
        ("metric: mean(a,\n  b)", {"metric": "mean(a, b)"}),
    ],
)
def test_a_comma_in_parentheses_does_not_end_a_value_in_braces(text, value):
    assert parse_yaml(text, "text") == value


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        ("0100", "64", "100"),
        ("-017", "-15", "-17"),
        ("08", "text", "8"),
        ("0_100", "64", "100"),
        ("0o17", "text", "15"),
        ("1:30", "90", "text"),
        ("12:30:00", "45000", "text"),
        ("1:30.5", "90.5", "text"),
    ],
)
def test_a_number_that_versions_of_yaml_read_differently_is_refused(text, old, new):
    message = f"'{text}' is {old} in YAML 1.1 and {new} in YAML 1.2. Write the number in plain digits or, if it is "
    message += f"text, in quotes: '{text}'"
    with pytest.raises(ConfigError) as caught:
        parse_yaml(f"seed: {text}\nsearch: {{seed: [1, {text}]}}\n", "s.yaml")
    assert [(p.path, p.message) for p in caught.value.problems] == [("s.yaml:1:7", message), ("s.yaml:2:20", message)]
    with pytest.raises(ConfigError) as caught:
        parse_overrides([f"seed={text}", "norm=mix", f"optimizer.lr=[{text}]"])
    assert [p.path for p in caught.value.problems] == ["seed", "optimizer.lr"]
    assert all(p.message.endswith(message) for p in caught.value.problems)


@pytest.mark.parametrize(
    "text", ["1e3", "1e-3", ".5", "0o17", "0100", "08", "1:30", "yes", "2024-01-31", "=", "null", "pre"]
)
def test_text_is_written_so_that_it_is_read_as_text(text):
    tree = {"data": {"root": text, "seq_len": 8, "lr": [1e-5, 1000.0, True, None]}}
    assert parse_yaml(dump_yaml(tree), "text") == tree


def test_overrides_from_the_command_line():
    words = ["model=llama-9m", "norm=mix", "norm.alpha=0.5", "optimizer.lr=1e-3", "trainer.compile=false", "seed=3"]
    found = parse_overrides(words)
    assert found == {
        "model": "llama-9m",
        "norm": "mix",
        "norm.alpha": 0.5,
        "optimizer.lr": 0.001,
        "trainer.compile": False,
        "seed": 3,
    }
    assert list(parse_overrides(["norm={kind: mix, alpha: 1e-1}"]).values()) == [{"kind": "mix", "alpha": 0.1}]
    assert parse_overrides(["data.root=a=b"]) == {"data.root": "a=b"}


@pytest.mark.parametrize("word", ["norm", "=3", "--norm"])
def test_a_word_that_is_no_override(word):
    with pytest.raises(ConfigError, match="expected key=value, given"):
        parse_overrides([word])


def test_all_words_that_cannot_be_read_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        parse_overrides(["norm=[1", "seed=3", "foo", "base.yaml", "data.root=\0"])
    assert str(caught.value).splitlines() == [
        "4 problems in the command line:",
        "  norm: not a YAML value: expected ',' or ']', but got the end (while parsing a flow sequence) (given: '[1')",
        "  expected key=value, given 'foo'",
        "  expected key=value, given 'base.yaml'; a file must come first",
        "  data.root: not a YAML value: the character '\\x00' is not allowed in YAML (given: '\\x00')",
    ]


def test_a_file_may_stand_before_the_settings(tmp_path):
    bare = tmp_path / "bare"
    bare.touch()
    assert split_words(["base.yaml", "seed=3"]) == ("base.yaml", {"seed": 3})
    assert split_words([str(bare)]) == (str(bare), {})
    assert split_words(["seed=3"]) == (None, {"seed": 3})
    assert split_words([]) == (None, {})
    with pytest.raises(ConfigError, match=r"expected FILE.yaml or key=value, given 'foo'"):
        split_words(["foo", "seed=3"])


MISPLACED = (
    "s.yaml:2:8: key: value is not allowed here. Check the indentation of this line and the one above; text that has a "
    "colon and a space needs quotation marks"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 1\nnorm: a: b\n", MISPLACED),
        ("- a\nb: 3\n", "s.yaml:2:1: the indentation does not fit that of the lines above"),
        ("norm: [1\n", "s.yaml:2:1: expected ',' or ']', but got the end (while parsing a flow sequence)"),
        ("a: 1\nb: \0", "s.yaml:2:4: the character '\\x00' is not allowed in YAML"),
        ("a:\n\tb: 1", "s.yaml:2:1: a tab is not allowed here: use blanks"),
        ("a: !own 1", "s.yaml:1:4: could not determine a constructor for the tag '!own'"),
        ("a: *b", "s.yaml:1:4: found undefined alias 'b'"),
        ("a: 0b_", "s.yaml:1:4: '0b_' cannot be read as int"),
        ("[" * 5000, "s.yaml: nested too deeply"),
        ("a: 1\n2: b", "s.yaml:2:1: a key must be text, in quotes: '2' is read as a number"),
        ("arms: {on: {norm: pre}}", "s.yaml:1:8: a key must be text, in quotes: 'on' is read as true or false"),
        ("a:\n  ~: 1", "s.yaml:2:3: a key must be text, in quotes: '~' is read as null"),
        (
            "!!timestamp 2026-11-22: 1",
            "s.yaml:1:1: a key must be text, in quotes: '2026-11-22' is read as something else",
        ),
        ("? [a]\n: 1", "s.yaml:1:3: a key must be text, found a list"),
        ("? {a: b}\n: 1", "s.yaml:1:3: a key must be text, found a mapping"),
        ("a: 1\nb: &x [1, *x]", "s.yaml:2:11: the anchor 'x' contains itself"),
        ("a: &x {b: &y {c: *x}}", "s.yaml:1:18: the anchor 'x' contains itself"),
        ("a: &x {b: 1, <<: *x}", "s.yaml:1:18: the anchor 'x' contains itself"),
        ("a: !!int ''", "s.yaml:1:4: '' cannot be read as int"),
        ("a: !!bool maybe", "s.yaml:1:4: 'maybe' cannot be read as bool"),
        ("a: !!timestamp soon", "s.yaml:1:4: 'soon' cannot be read as timestamp"),
    ],
)
def test_a_mistake_in_yaml_is_told_with_its_place(text, message):
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "s.yaml")
    assert str(caught.value) == f"1 problem in s.yaml:\n  {message}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"norm: [1\n", r"bad\.yaml:2:1: expected"),
        (b"- a\n", "expected key: value lines, found list"),
        (b"5\n", "expected key: value lines, found int"),
        (b"norm: \xff\n", "is not UTF-8"),
    ],
)
def test_a_file_that_is_no_configuration(tmp_path, content, message):
    file = tmp_path / "bad.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        Experiment.load(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(("name", "message"), [("a" * 300, "File name too long"), ("a\0b", "embedded null byte")])
def test_a_path_that_can_be_none(name, message):
    with pytest.raises(ConfigError, match=rf"{name[:90]}.*\.yaml:.*\n  cannot be read: {message}"):
        Experiment.load(f"{name}.yaml")
    with pytest.raises(ConfigError, match=r"expected FILE.yaml or key=value, given 'a"):
        split_words([name])
    with pytest.raises(ConfigError, match=rf"plugins: {name[:90]}.* cannot be read: {message}"):
        Experiment.from_mapping({"plugins": name})


def test_a_missing_file_names_one_that_is_there(tmp_path):
    (tmp_path / "baseline.yaml").touch()
    with pytest.raises(ConfigError, match=r"there is no file .*base_line\.yaml\. Did you mean baseline\.yaml\?"):
        Experiment.load(tmp_path / "base_line.yaml")
    with pytest.raises(ConfigError, match=r"there is no file"):
        Experiment.load(tmp_path / "nowhere" / "base.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        Experiment.load(tmp_path)


def bomb(levels, width, opening="["):
    """A few bytes that stand for width**levels values."""
    lines = ["a0: &a0 {x: 1}" if opening == "{" else "a0: &a0 [1]"]
    for n in range(1, levels + 1):
        aliases = ", ".join([f"*a{n - 1}"] * width)
        lines.append(f"a{n}: &a{n} {{<<: [{aliases}]}}" if opening == "{" else f"a{n}: &a{n} [{aliases}]")
    return "\n".join(lines)


@pytest.mark.parametrize("opening", ["[", "{"])
def test_aliases_that_expand_without_end_are_refused_at_once(opening):
    text = bomb(9, 9, opening)
    assert len(text) < 600
    begin = time.perf_counter()
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "s.yaml")
    assert time.perf_counter() - begin < 2
    message = r"s.yaml:\d+:\d+: with the alias 'a\d' the aliases expand to more than 100,000 values; write the values"
    assert re.search(message, str(caught.value))
    with pytest.raises(ConfigError, match="data: not a YAML value: with the alias"):
        parse_overrides(["data={" + text.replace("\n", ", ") + "}"])


def test_aliases_and_merge_keys_may_be_used():
    text = "base: &base {lr: 1.0e-3, betas: [0.9, 0.99]}\na: {<<: *base, lr: 1}\nb: [*base, *base]"
    base = {"lr": 1e-3, "betas": [0.9, 0.99]}
    assert parse_yaml(text, "s.yaml") == {"base": base, "a": {**base, "lr": 1}, "b": [base, base]}
    assert parse_yaml(bomb(4, 9), "s.yaml")["a1"] == [[1]] * 9


def test_a_long_file_without_aliases_is_read():
    assert len(parse_yaml("a: [" + "1," * 100_001 + "]", "s.yaml")["a"]) == 100_001


def test_all_keys_that_are_no_text_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        parse_yaml("1: a\nb:\n  2.5: c\n'3': d", "s.yaml")
    assert [problem.path for problem in caught.value.problems] == ["s.yaml:1:1", "s.yaml:3:3"]
    with pytest.raises(
        ConfigError, match="a: not a YAML value: a key must be text, in quotes: '1' is read as a number"
    ):
        parse_overrides(["a={1: 2}"])


def test_a_key_that_stands_twice_is_refused():
    with pytest.raises(ConfigError, match=r"s\.yaml:3:3: the key 'pre' appears twice"):
        parse_yaml("arms:\n  pre: {norm: pre}\n  pre: {norm: post}\n", "s.yaml")


def test_a_name_with_a_star_is_answered_with_quotation_marks(tmp_path):
    with pytest.raises(ConfigError, match=r"needs quotation marks: 'data.files=\"\*.txt\"'"):
        parse_overrides(["data.files=*.txt"])
    (word,) = shlex.split("'data.files=\"*.txt\"'")  # what the shell makes of the advice
    assert parse_overrides([word]) == {"data.files": "*.txt"}
    (tmp_path / "a.yaml").write_text("data:\n  files: *.txt\n")
    with pytest.raises(ConfigError, match=r"a.yaml:2:.*A name with \* needs quotation marks"):
        read_yaml(tmp_path / "a.yaml")


def test_several_files_without_a_list_are_answered_with_one():
    with pytest.raises(ConfigError, match=r"given 'b.txt'; several values of data.files are a list: data.files=\["):
        parse_overrides(["data.files=a.txt", "b.txt"])


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
