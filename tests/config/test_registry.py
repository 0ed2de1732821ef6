"""Registries: the kinds of one part of the configuration, by name."""

from typing import Annotated, Literal

import pytest
from pydantic import ValidationError

import ablate.sweeps.spec.sweep  # noqa: F401 - with it all registries are in the list
from ablate.config.base import Config, Kind
from ablate.config.registry import NameTaken, Registry


class Shape(Kind):
    """A shape."""

    kind: str
    colour: str = "red"
    """Shared by all shapes."""


class Circle(Shape):
    """Round."""

    kind: Literal["circle"] = "circle"
    radius: float = 1.0
    """From the centre."""


class Square(Shape):
    """Four corners."""

    kind: Literal["square"] = "square"
    side: int = 2
    """Of any of them."""


@pytest.fixture
def shapes(registries):
    shapes = Registry("test shape", Shape, default="circle")
    shapes.register(Circle)
    shapes.register(Square)
    shapes.preset("big", "circle", radius=100.0)
    return shapes


@pytest.fixture
def picture(shapes):
    class Picture(Config):
        shape: Annotated[Shape, shapes]

    return Picture


def test_names(shapes):
    assert list(shapes) == ["circle", "square"]
    assert shapes.names == ["circle", "square", "big"]
    assert shapes["circle"] is Circle
    assert "square" in shapes
    assert "big" not in shapes
    assert dict(shapes.presets) == {"big": {"kind": "circle", "radius": 100.0}}
    assert shapes.slug == "test_shape"
    assert Registry.all["test shape"] is shapes


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("square", Square()),
        ("big", Circle(radius=100.0)),
        ({"kind": "square", "side": 5}, Square(side=5)),
        ({"kind": "square", "colour": "blue"}, Square(colour="blue")),
        ({"radius": 3}, Circle(radius=3.0)),
        ({}, Circle()),
        (Square(side=9), Square(side=9)),
    ],
)
def test_what_is_accepted(picture, given, expected):
    found = picture(shape=given).shape
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("given", "place", "message"),
    [
        ("sqare", ("shape",), "unknown test shape 'sqare'. Accepted: circle, square, big. Did you mean square?"),
        ("zzz", ("shape",), "unknown test shape 'zzz'. Accepted: circle, square, big."),
        ({"kind": "bigg"}, ("shape",), "unknown test shape 'bigg'. Accepted: circle, square, big. Did you mean big?"),
        ({"kind": 3}, ("shape",), "unknown test shape 3. Accepted: circle, square, big."),
        (3, ("shape",), "expected the name of a test shape or a mapping"),
        (None, ("shape",), "expected the name of a test shape or a mapping"),
        ({"kind": "square", "radius": 3}, ("shape", "radius"), "Extra inputs are not permitted"),
    ],
)
def test_what_is_refused(picture, given, place, message):
    with pytest.raises(ValidationError) as caught:
        picture(shape=given)
    assert [(e["loc"], e["msg"]) for e in caught.value.errors()] == [(place, message)]


def test_without_a_default_a_kind_is_needed(registries):
    shapes = Registry("bare shape", Shape)
    shapes.register(Circle)
    with pytest.raises(Exception, match=r"unknown bare shape null\. Accepted: circle"):
        shapes.parse({"colour": "blue"})
    assert shapes.kind_of({"colour": "blue"}) is None


def test_a_name_is_given_once(shapes):
    other = type("Other", (Shape,), {"__annotations__": {"kind": Literal["square"]}, "kind": "square"})
    with pytest.raises(ValueError, match=r"the test shape 'square' already exists \(\S*Square\)\. Choose another name"):
        shapes.register(other)
    assert shapes["square"] is Square
    shapes.register(Square)  # a file that is read twice is no conflict


def test_a_preset_takes_no_name_that_is_there_and_a_kind_none_of_a_preset(shapes):
    with pytest.raises(NameTaken, match=r"the test shape 'square' already exists \(\S*Square\)"):
        shapes.preset("square", "circle")
    shapes.preset("round", "circle")
    shapes.preset("round", "circle", colour="red")  # by the same file: it is read twice
    exec('shapes.preset("flat", "circle")', {"__name__": "my_plugin", "shapes": shapes})
    with pytest.raises(NameTaken, match=r"the test shape 'flat' already exists \(a preset of my_plugin\)"):
        shapes.preset("flat", "circle")
    taken = type("Round", (Shape,), {"__annotations__": {"kind": Literal["round"]}, "kind": "round"})
    with pytest.raises(NameTaken, match=r"the test shape 'round' already exists \(a preset of"):
        shapes.register(taken)
    shapes.forget("my_plugin")
    assert "flat" not in shapes.names


def test_the_same_class_name_in_another_file_is_a_conflict(shapes):
    """A plugin that calls its class Square must not replace ours in silence."""
    theirs = type(
        "Square",
        (Shape,),
        {
            "__annotations__": {"kind": Literal["square"]},
            "kind": "square",
            "__module__": "my_plugin",
            "__qualname__": "Square",
        },
    )
    assert theirs.__qualname__ == Square.__qualname__
    with pytest.raises(ValueError, match="already exists"):
        shapes.register(theirs)


def test_a_class_without_a_kind_says_what_it_needs(shapes):
    class Nameless(Shape):
        """It forgot its kind."""

    with pytest.raises(TypeError, match=r'Nameless needs a line such as: kind: Literal\["nameless"\]'):
        shapes.register(Nameless)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("square", Square),
        ("big", Circle),
        ({"kind": "square", "nonsense": 1}, Square),
        ({"radius": "not yet validated"}, Circle),
        ({"kind": "nothing"}, None),
        ("nothing", None),
        ({"kind": ["square"]}, None),
        (Square(), Square),
        (None, Circle),
    ],
)
def test_kind_of_what_is_not_yet_validated(shapes, given, expected):
    assert shapes.kind_of(given) is expected


def test_a_kind_registered_later_is_accepted(picture, shapes):
    class Triangle(Shape):
        kind: Literal["triangle"] = "triangle"

    with pytest.raises(ValidationError):
        picture(shape="triangle")
    shapes.register(Triangle)
    assert isinstance(picture(shape="triangle").shape, Triangle)


def test_dumped_with_the_fields_of_its_own_class(picture):
    dumped = picture(shape="big").model_dump(mode="json")
    assert dumped == {"shape": {"kind": "circle", "colour": "red", "radius": 100.0}}
    assert picture.model_validate(dumped) == picture(shape="big")


def test_frozen_and_closed():
    circle = Circle()
    with pytest.raises(ValidationError, match="frozen"):
        circle.radius = 3.0
    with pytest.raises(ValidationError, match="Extra inputs"):
        Circle(diameter=2)
    for odd in (float("nan"), float("inf")):
        with pytest.raises(ValidationError, match="finite"):
            Circle(radius=odd)


def test_json_schema_has_every_kind(shapes):
    schema = shapes.json_schema()
    assert schema["anyOf"][0] == {"type": "string", "enum": ["circle", "square", "big"]}
    assert [kind["description"] for kind in schema["anyOf"][1:]] == ["Round.", "Four corners."]
    assert schema["anyOf"][1]["properties"]["radius"]["description"] == "From the centre."


@pytest.mark.parametrize("name", Registry.all)
def test_every_kind_of_ablate_is_described(name):
    registry = Registry.all[name]
    assert registry.default is None or registry.default in registry
    assert set(registry.presets).isdisjoint(registry)
    for kind in registry:
        cls = registry[kind]
        assert issubclass(cls, registry.base)
        assert cls.__doc__
        assert cls.__doc__ != registry.base.__doc__
        assert cls.model_fields["kind"].default == kind
        for field, info in cls.model_fields.items():
            assert field == "kind" or info.description, f"{cls.__name__}.{field} has no docstring"
    for preset in registry.presets:
        assert registry.parse(preset).kind == registry.presets[preset]["kind"]


def test_a_class_with_two_names_is_refused(shapes):
    """As a copy of which only one name was changed."""

    class Copy(Shape):
        """A copy."""

        kind: Literal["copy"] = "circle"

    with pytest.raises(TypeError, match="Copy has two names: kind is Literal\\['copy'\\] and by default 'circle'"):
        shapes.register(Copy)
