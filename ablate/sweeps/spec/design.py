"""The arms that a sweep makes: those of `components` and `design`, with the contrasts of a factorial; and the cells of
`confirm: {at: grid}`, each arm at each point of its grid."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ablate.config.base import Config
from ablate.config.errors import Problem, did_you_mean
from ablate.config.formatting import format_setting, format_settings, shorten_paths
from ablate.experiment.tree import Experiment
from ablate.sweeps.search.space import Choice, Entry, list_cells
from ablate.sweeps.spec.parts import Arm
from ablate.verdict.effects import Contrast, Level

DesignKind = Literal["one-at-a-time", "leave-one-out", "factorial", "main-effects"]
FACTORIALS = ("factorial", "main-effects")
"""The designs that combine every level of a component with every level of the others."""
MOST_ARMS = 64
"""Maximum number of arms of a design: six components of two levels in a factorial."""
REFERENCE, FULL = "reference", "full"


class Component(Config):
    """A part of the recipe with two levels or more, the first of which is the reference. A list alone is `levels`."""

    setting: str | None = None
    """The dotted path of the experiment that the levels are values of. None: the component's name, where that is a
    path; else each level is a mapping of settings."""
    levels: Annotated[list[Any] | dict[str, Any], Field(min_length=2)]
    """The values; or name -> value, or name -> mapping of settings."""


def _wrap_levels(value: Any) -> Any:
    return {"levels": value} if isinstance(value, list) else value


Components = dict[
    str, Annotated[Component, BeforeValidator(_wrap_levels, json_schema_input_type=Component | list[Any])]
]


@dataclass(frozen=True)
class Design:
    """The arms and contrasts that `components` make."""

    arms: dict[str, Arm]
    """The reference first."""
    cells: dict[str, dict[str, str]]
    """Arm -> component -> level."""
    contrasts: dict[str, Contrast]
    """For a factorial, by name: the main effects, then the interactions. Empty for other designs: each arm is compared
    with the reference."""


def find_setting(name: str, component: Component) -> str | None:
    """Return the path that the levels are values of; None where each of them is a mapping of settings."""
    return component.setting or (name if name.partition(".")[0] in Experiment.model_fields else None)


def list_levels(name: str, component: Component) -> dict[str, dict[str, Any]]:
    """Return name of the level -> settings; levels of one name leave fewer than were given."""
    setting, levels = find_setting(name, component), component.levels
    named = levels if isinstance(levels, dict) else {_name_level(level): level for level in levels}
    return {_clean(level): dict(value) if setting is None else {setting: value} for level, value in named.items()}


def list_paths(components: Mapping[str, Component]) -> tuple[str, ...]:
    """Return the paths that any level of valid components sets, each once."""
    levels = (settings for name, one in components.items() for settings in list_levels(name, one).values())
    return tuple(dict.fromkeys(path for settings in levels for path in settings))


def build_design(
    components: Mapping[str, Component],
    kind: DesignKind,
    within: str | None = None,
) -> Design:
    """Return the arms of valid components (see `check_components`), with the contrasts of those that combine every
    level; `within` as in a sweep.

    one-at-a-time: the first levels, and for each further level of a component the same with that level.
    leave-one-out: the last levels, and for each component the same with its first level.
    factorial, main-effects: every combination; the first is that of the first levels, the last component changes
    fastest.
    """
    levels = {name: list_levels(name, component) for name, component in components.items()}
    names = {name: [*own] for name, own in levels.items()}
    short = {name: _clean(text) for name, text in shorten_paths(components).items()}
    cells = {_name_arm(cell, changed, kind, short): cell for cell, changed in _list_cells(names, kind)}
    arms = {}
    for arm, cell in cells.items():
        settings: dict[str, Any] = {}
        for name, level in cell.items():
            settings |= levels[name][level]
        arms[arm] = Arm(settings=settings)
    paired = kind == "factorial" and within is None
    contrasts = _build_contrasts(cells, names, short, paired, within) if kind in FACTORIALS else {}
    return Design(arms, cells, contrasts)


def _list_cells(levels: Mapping[str, list[str]], kind: DesignKind) -> Iterator[tuple[dict[str, str], list[str]]]:
    """Yield component -> level of each arm, and the components in which it differs from the reference."""
    if kind in FACTORIALS:
        for combination in itertools.product(*levels.values()):
            yield dict(zip(levels, combination, strict=True)), list(levels)
        return
    last = kind == "leave-one-out"
    reference = {name: own[-1 if last else 0] for name, own in levels.items()}
    yield reference, []
    for name, own in levels.items():
        for level in own[:1] if last else own[1:]:
            yield {**reference, name: level}, [name]


def _name_arm(cell: Mapping[str, str], changed: list[str], kind: DesignKind, short: Mapping[str, str]) -> str:
    """Return 'reference' or 'full', or the named components with their levels: 'norm=lns qk_norm=true'."""
    told = " ".join(f"{short[name]}={cell[name]}" for name in changed)
    return told or (FULL if kind == "leave-one-out" else REFERENCE)


def _name_level(value: Any) -> str:
    """Return 'lns', 'true', 'none', '0.1', or of a part with a kind 'mix(alpha=0.25)'."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        fields = ", ".join(f"{key}={_name_level(inner)}" for key, inner in value.items() if key != "kind")
        return f"{value.get('kind', '')}({fields})" if fields else str(value.get("kind", "{}"))
    return format_setting(value)


def _clean(text: str) -> str:
    """Return a name without the signs that separate the parts of studies' names."""
    return "".join("_" if sign in "/@" or not sign.isprintable() else sign for sign in text)


# ------------------------------------------------------------------ contrasts


def _build_contrasts(
    cells: Mapping[str, Mapping[str, str]],
    levels: Mapping[str, list[str]],
    short: Mapping[str, str],
    interactions: bool,
    within: str | None,
) -> dict[str, Contrast]:
    """Return the main effect of each level but the first of a component, and the interactions of each two of them; or
    the main effects of `within`, and all of the other components' at each of its levels."""
    steps = [Level(short[name], level, own[0], name) for name, own in levels.items() for level in own[1:]]
    asked: list[tuple[Level, ...]] = [(step,) for step in steps if step.path != within]
    if interactions:
        pairs = itertools.combinations([step for (step,) in asked], 2)
        asked += [pair for pair in pairs if pair[0].path != pair[1].path]
    if within is None:
        contrasts = [_build_contrast(one, cells) for one in asked]
    else:
        contrasts = [_build_contrast((step,), cells) for step in steps if step.path == within]
        for level in levels[within]:
            those = {arm: cell for arm, cell in cells.items() if cell[within] == level}
            contrasts += [_build_contrast(one, those, f"{short[within]}={level}") for one in asked]
    return {contrast.name: contrast for contrast in contrasts}


def _build_contrast(steps: tuple[Level, ...], cells: Mapping[str, Mapping[str, str]], where: str = "") -> Contrast:
    """Return the weights of the cells: the product over the components of +1 at the level and -1 at the reference, over
    the number of combinations of the other components.
    `where`: the level of another component that all of `cells` have."""
    signs = {
        arm: math.prod(1 if cell[step.path] == step.level else -1 for step in steps)
        for arm, cell in cells.items()
        if all(cell[step.path] in (step.level, step.reference) for step in steps)
    }
    share = 2 ** len(steps) / len(signs)
    return Contrast(steps, {arm: sign * share for arm, sign in signs.items()}, where)


# ------------------------------------------------------------------ checks


def check_components(
    components: Mapping[str, Component], kind: DesignKind | None, within: str | None = None
) -> Iterator[Problem]:
    """Yield the problems for which `components` make no arms, or no contrasts at the levels of `within`."""
    if kind is None:
        yield Problem("design", "is required with components. Accepted: one-at-a-time, leave-one-out, factorial")
    if not components:
        yield Problem("components", "is empty. Name a component, or remove it")
    for name, component in components.items():
        yield from _check_component(name, component, kind)
    if within is not None and within not in components:
        text = f"is not a component. Accepted: {', '.join(components)}.{did_you_mean(within, components)}"
        yield Problem("within", text, within)
    elif within is not None and len(components) == 1:
        yield Problem("within", "is the only component: there is no other whose effects could be compared", within)
    owners: dict[str, str] = {}
    for name, component in components.items():
        for path in _list_paths(name, component):
            if (other := owners.setdefault(path, name)) != name:
                yield Problem(f"components.{name}", f"sets {path}, which {other} also sets")
    counts = [len(component.levels) for component in components.values()]
    count = math.prod(counts) if kind in FACTORIALS else 1 + sum(count - 1 for count in counts)
    if kind is not None and count > MOST_ARMS:
        product = " x ".join(map(str, counts))
        text = (
            f"makes {count} arms{f' ({product})' if kind == 'factorial' else ''}, and a design has at most {MOST_ARMS}"
        )
        yield Problem("design", f"{text}: remove components or levels, or use one-at-a-time", kind)


def _list_paths(name: str, component: Component) -> dict[str, None]:
    """Return the paths that a component sets, valid or not."""
    setting, levels = find_setting(name, component), component.levels
    if setting is not None:
        return {setting: None}
    values = levels.values() if isinstance(levels, dict) else levels
    return dict.fromkeys(str(path) for value in values if isinstance(value, Mapping) for path in value)


def _check_component(name: str, component: Component, kind: DesignKind | None) -> Iterator[Problem]:
    place = f"components.{name}"
    levels = component.levels
    if find_setting(name, component) is None:
        if not isinstance(levels, dict) or not all(isinstance(value, Mapping) for value in levels.values()):
            ends = [path for path in Experiment().flat() if path.rpartition(".")[2] == name]
            hint = f" Did you mean {ends[0]}?" if ends else did_you_mean(name, sorted(Experiment.model_fields))
            text = (
                "is not a setting of an experiment. Give setting: PATH, or levels: {NAME: {PATH: value, ...}, ...}, "
                "with a name and settings for each level."
            )
            yield Problem(place, text + hint)
        return
    names = [*levels] if isinstance(levels, dict) else [_name_level(level) for level in levels]
    if twice := [level for level in dict.fromkeys(map(_clean, names)) if [*map(_clean, names)].count(level) > 1]:
        yield Problem(
            place,
            f"has the level {twice[0]} twice; if different values have the same name, give levels: {{NAME: value}}",
        )
    if kind == "leave-one-out" and len(levels) > 2:
        text = "leave-one-out takes two levels, without and with the component"
        yield Problem(place, text, names)


@dataclass(frozen=True)
class Cell:
    """One arm at one point of its grid."""

    arm: str
    """Name of the arm in the file."""
    point: dict[str, Choice]
    """Dotted path -> value, of all that the arm searches."""
    shared: tuple[tuple[str, Choice], ...]
    """The values of the parameters that all arms search, at which cells are compared."""
    baseline: str
    """The cell of the baseline at the same values of the parameters that all arms search; "" if there is none."""


def list_grid(arms: Mapping[str, Arm], search: Mapping[str, Entry], baseline: str) -> dict[str, Cell]:
    """Return name -> cell, point by point, and at each point in the order of the arms. Raises ValueError for an entry
    that has no values.

    Args:
        arms: of the file.
        search: the search space of all arms.
        baseline: the arm that the others are compared with.
    """
    points = [(arm, point) for arm in arms for point in list_cells({**search, **arms[arm].search})]
    names = _name_cells(points)
    shared = [tuple((path, point[path]) for path in search) for _, point in points]
    bases: dict[tuple[tuple[str, Choice], ...], str] = {}
    for (arm, _), at, name in zip(points, shared, names, strict=True):
        if arm == baseline:
            bases.setdefault(at, name)
    order = {at: i for i, at in enumerate(dict.fromkeys(shared))}
    ranks = sorted(range(len(points)), key=lambda i: order[shared[i]])  # stable: the arms stay in their order
    return {names[i]: Cell(*points[i], shared[i], bases.get(shared[i], "")) for i in ranks}


def _name_cells(points: list[tuple[str, dict[str, Choice]]]) -> list[str]:
    """Return a name for each arm and point, such as 'pre lr=0.003'; in full if three digits give two the same name. No
    name has the signs that separate the parts of studies' names."""
    short = shorten_paths(path for _, point in points for path in point)
    names = [f"{arm} {format_settings(point, short)}".rstrip() for arm, point in points]
    if len({*names}) < len(names):
        full = [" ".join(f"{short[path]}={value}" for path, value in point.items()) for _, point in points]
        names = [f"{arm} {text}" for (arm, _), text in zip(points, full, strict=True)]
    names = ["".join("_" if sign in "/@" or not sign.isprintable() else sign for sign in name) for name in names]
    return names if len({*names}) == len(names) else [f"{name} ({i})" for i, name in enumerate(names)]
