"""The coordinate check of one recipe: small models of it at several widths and depths, trained for a few updates,
whether the sizes of their activations, and of the change of these, are the same, and the figure of several checks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ablate.config.errors import AblateError
from ablate.config.formatting import count_noun, join_words
from ablate.data import Corpus
from ablate.data.progress import show_progress
from ablate.diagnostics.coordinates import NAME
from ablate.diagnostics.coordinates.recipes import AXES, Recipe, choose_sizes, resize
from ablate.diagnostics.measures import Layers
from ablate.diagnostics.measures.base import to_json_number
from ablate.diagnostics.measures.layers import take_first
from ablate.diagnostics.opening.base import load_data
from ablate.distributed import ranks
from ablate.experiment.tree import Experiment
from ablate.models import Model
from ablate.norms import Placement
from ablate.optim.optimizers import build_optimizer
from ablate.plots.figure import Axis, Entry, Figure, Panel, Part
from ablate.plots.marks import Line
from ablate.plots.style import pick_shade
from ablate.training.random_states import undisturbed
from ablate.training.runs import translate_errors

Course = Mapping[str, Sequence[tuple[float, float]]]
"""Part of the model -> (size of its activations, size of their change since initialisation), at initialisation and
after each update."""
EMBEDDING, FINAL_NORM, LOGITS = "embedding", "final norm", "logits"


def list_batches(experiment: Experiment, corpus: Corpus, items: int, count: int) -> list[tuple[Any, Any]]:
    """Return the first `count` batches of the experiment's order, of `items` items each."""
    return list(itertools.islice(corpus.train.batches(items, experiment.seed), count))


def train_and_record(
    experiment: Experiment, corpus: Corpus, batches: Sequence[tuple[Any, Any]], seed: int, device: torch.device
) -> Course:
    """Train the model of `experiment`, with initial weights by `seed`, for one update on each of `batches`, in float32
    at its constant learning rate: a warm-up would hide the change. Return the sizes of the outputs of the model's parts
    on the first batch. Raises OutOfMemory."""
    devices = [device] if device.type == "cuda" else []
    with translate_errors(), torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        model = experiment.build_model(corpus.classes, corpus.shape).to(device)
        batches = [pytree.tree_map(lambda tensor: tensor.to(device), batch) for batch in batches]
        probe = batches[0][0]
        experiment.norm.prepare(model, lambda: probe)
        optimizer = build_optimizer(experiment.optimizer, model)
        first = _read_activations(model, probe)
        course = {name: [(_measure(x), 0.0)] for name, x in first.items()}
        for inputs, targets in batches:
            optimizer.zero_grad()
            _compute_loss(experiment, corpus, model, inputs, targets).backward()
            if most := experiment.trainer.gradient_clip_val:
                ranks.clip_gradients(model.parameters(), most)
            optimizer.step()
            for name, x in _read_activations(model, probe).items():
                course[name].append((_measure(x), _measure(x - first[name])))
        return course


def _compute_loss(experiment: Experiment, corpus: Corpus, model: Model, inputs: Any, targets: Any) -> Tensor:
    """Return the mean over all targets but padding, as in training."""
    loss = experiment.task.compute_loss(model, inputs, targets)
    if corpus.padded:
        task = experiment.task
        targeted = task.count_targets(inputs, targets)
        loss = loss * torch.where(targeted > 0, task.count_positions(inputs, targets) / targeted, 0.0)
    return loss


def _read_activations(model: Model, inputs: Any) -> dict[str, Tensor]:
    """Return the outputs of the embedding, of each layer, of its attention and its MLP before anything multiplies or
    norms them, of the final norm, and the logits; the embedding with what follows it in front of the first layer."""
    layers = Layers(model)
    with (
        torch.no_grad(),
        undisturbed(model),
        layers.record_states() as states,
        layers.record_outputs() as parts,
        _record_final_norm(model) as normed,
    ):
        logits = take_first(model(inputs))
    activations = {EMBEDDING: states[0]}
    for index, (state, own) in enumerate(zip(states[1:], parts, strict=True), start=1):
        activations |= {f"layer {index} {name}": x for name, x in own.items()}
        activations[f"layer {index}"] = state
    return {**activations, **normed, LOGITS: logits}


@contextmanager
def _record_final_norm(model: Model) -> Iterator[dict[str, Tensor]]:
    """Yield a dictionary that contains, after a pass, the output of the final norm, where the model has one."""
    normed: dict[str, Tensor] = {}

    def keep(module: nn.Module, inputs: Any, output: Any) -> None:
        normed[FINAL_NORM] = output

    with ExitStack() as stack:
        for name in model.parts().get("final_norm", ()):
            if not isinstance(module := model.get_submodule(name), nn.Identity):
                stack.callback(module.register_forward_hook(keep).remove)
        yield normed


def _measure(x: Tensor) -> float:
    """Return the root mean square over all coordinates, of all tokens."""
    return x.float().square().mean().sqrt().item()


FLAT = 1.1
"""The largest ratio between the sizes of two models that counts as flat: 10 %."""
QUANTITIES = {"activation": "activations at initialisation", "change": "change since initialisation"}
LAYERS = "layers"
GROUPS = (LAYERS, "sublayers", LOGITS)


@dataclass(frozen=True)
class Flatness:
    """The difference of one quantity of one group of parts between the sizes along an axis."""

    axis: str
    """"width" or "depth"."""
    quantity: str
    """One of `QUANTITIES`: activations before the first update, or their change after the last one."""
    group: str
    """One of `GROUPS`: embedding, outputs of layers and of the final norm; outputs of attention and MLP; logits."""
    part: str
    """The part of the group that differs most."""
    ratio: float
    """Its largest value over its smallest."""
    ratio_without_smallest: float
    """The largest ratio of any part of the group without the smallest model; NaN if two sizes are compared."""
    exponent: float
    """Exponent of the power of the width or depth that fits that part: the slope of its logarithm."""

    @property
    def is_flat(self) -> bool:
        """Whether the largest ratio is at most `FLAT`."""
        return self.ratio <= FLAT

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; a number that is not finite is null."""
        numbers = {
            name: to_json_number(getattr(self, name)) for name in ("ratio", "ratio_without_smallest", "exponent")
        }
        words = {name: getattr(self, name) for name in ("axis", "quantity", "group", "part")}
        return {**words, **numbers, "flat": self.is_flat}


def judge(axis: str, courses: Mapping[int, Course]) -> list[Flatness]:
    """Return the flatness of each group and quantity along an axis. `courses`: size -> its course, the smallest size
    first."""
    parts = align(axis, courses)
    judged = []
    for group in GROUPS:
        own = {name: values for name, values in parts.items() if find_group(name) == group}
        if own:
            judged.append(_judge_group(axis, "activation", group, own, list(courses), lambda course: course[0][0]))
            judged.append(_judge_group(axis, "change", group, own, list(courses), lambda course: course[-1][1]))
    return judged


def find_group(part: str) -> str:
    """Return the group of a part."""
    return LOGITS if part == LOGITS else GROUPS[1] if part.endswith((" attention", " mlp")) else LAYERS


def align(axis: str, courses: Mapping[int, Course]) -> dict[str, list[Sequence[tuple[float, float]]]]:
    """Return part -> its course at each size. Widths have the same layers. Depths do not: the layer half way and the
    last one are compared, as any other layer has a different share of the layers below it."""
    if axis == "width":
        return {part: [course[part] for course in courses.values()] for part in next(iter(courses.values()))}
    parts = [EMBEDDING, *(f"{place}{own}" for place in (HALF_WAY, LAST) for own in _SUBLAYERS), FINAL_NORM, LOGITS]
    placed = {
        part: {
            depth: part.replace(HALF_WAY, f"layer {max(1, depth // 2)}").replace(LAST, f"layer {depth}")
            for depth in courses
        }
        for part in parts
    }
    return {
        part: [courses[depth][own] for depth, own in names.items()]
        for part, names in placed.items()
        if all(own in courses[depth] for depth, own in names.items())
    }


HALF_WAY, LAST = "layer half way", "last layer"
_SUBLAYERS = (" attention", " mlp", "")


def _judge_group(
    axis: str,
    quantity: str,
    group: str,
    parts: Mapping[str, Sequence[Sequence[tuple[float, float]]]],
    sizes: Sequence[int],
    read: Callable[[Sequence[tuple[float, float]]], float],
) -> Flatness:
    values = {part: [read(course) for course in own] for part, own in parts.items()}
    worst = max(values, key=lambda part: find_ratio(values[part]))
    rest = max(find_ratio(own[1:]) for own in values.values()) if len(sizes) > 2 else math.nan
    return Flatness(axis, quantity, group, worst, find_ratio(values[worst]), rest, find_exponent(sizes, values[worst]))


def find_ratio(values: Sequence[float]) -> float:
    """Return the largest of `values` over the smallest; infinite if one is not finite or only some are zero."""
    if not all(map(math.isfinite, values)):
        return math.inf
    return max(values) / min(values) if min(values) > 0 else 1.0 if max(values) == 0 else math.inf


def find_exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Return the slope of the logarithm of `values` over that of `sizes`, by least squares; NaN if a value has no
    logarithm."""
    if not all(0 < value < math.inf for value in values):
        return math.nan
    x, y = [math.log(size) for size in sizes], [math.log(value) for value in values]
    mean = math.fsum(x) / len(x)
    return math.fsum((a - mean) * b for a, b in zip(x, y, strict=True)) / math.fsum((a - mean) ** 2 for a in x)


@dataclass(frozen=True)
class CheckSettings:
    """The sizes and the length of a coordinate check."""

    widths: Sequence[int] = ()
    """Empty: those of `WIDTHS`, or the nearest ones that have whole heads."""
    depths: Sequence[int] = ()
    """Empty: those of `DEPTHS`."""
    updates: int = 10
    """Updates of each model, at the recipe's peak learning rate."""
    seeds: int = 3
    """Initialisations over which numbers are averaged."""

    def __post_init__(self) -> None:
        for name in ("widths", "depths"):
            if unfit := [value for value in getattr(self, name) if value < 1]:
                raise AblateError(f"--{name}: must be whole numbers of at least 1, given {unfit[0]}")
        for name in ("updates", "seeds"):
            if getattr(self, name) < 1:
                raise AblateError(f"--{name}: must be a whole number of at least 1, given {getattr(self, name)}")


@dataclass(frozen=True)
class Coordinates:
    """The coordinate check of one recipe."""

    courses: Mapping[str, Mapping[int, Course]]
    """Axis -> size -> means over seeds."""
    judged: Sequence[Flatness]
    facts: Mapping[str, Any]
    """The settings of the check."""
    data: str
    """One line about the data."""
    note: str = ""
    """A warning if models of some depths have other placements than the rest; '' if all have the same."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row for each axis, size, part of the model and number of updates."""
        return [
            {"axis": axis, "size": size, "layer": part, "update": update, "activation": activation, "change": change}
            for axis, courses in self.courses.items()
            for size, course in courses.items()
            for part, values in course.items()
            for update, (activation, change) in enumerate(values)
        ]

    def is_flat(self, axis: str) -> bool:
        """Return whether the layers' activations and their change are within 10 % of each other along an axis."""
        return all(one.is_flat for one in self.judged if (one.axis, one.group) == (axis, LAYERS))

    def describe_flatness(self, axis: str) -> str:
        """Return in words whether the layers are flat along an axis, all sizes or all but the smallest."""
        own = [one for one in self.judged if (one.axis, one.group) == (axis, LAYERS)]
        rest = max((one.ratio_without_smallest for one in own), default=math.nan)
        smallest = min(self.courses[axis])
        return "flat" if self.is_flat(axis) else f"flat without {axis} {smallest}" if rest <= FLAT else "not flat"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; a number that is not finite is null."""
        rows = [
            {key: to_json_number(value) if isinstance(value, float) else value for key, value in row.items()}
            for row in self.rows
        ]
        flat = {axis: self.is_flat(axis) for axis in self.courses}
        return {
            "flat": flat,
            "summary": [one.to_dict() for one in self.judged],
            "rows": rows,
            "facts": self.facts,
            "note": self.note,
        }


def check_coordinates(
    recipe: Recipe, settings: CheckSettings, data: Sequence[str], batch_tokens: int, device: torch.device
) -> Coordinates:
    """Return the coordinate check of `recipe`, on its own data or that of the `--data` words, in batches of at most
    `batch_tokens` tokens, or images. All models see the same batches. Raises AblateError."""
    sizes = choose_sizes(recipe.experiment.model, settings.widths, settings.depths)
    experiments = {size: resize(recipe.experiment, sizes, size) for size in sizes.all()}  # all mistakes before training
    experiment, corpus = load_data(recipe.experiment.to_tree(), data, "--data")
    items = max(1, min(experiment.trainer.batch_size, batch_tokens // experiment.items_per_sample))
    batches = list_batches(experiment, corpus, items, settings.updates)
    seeds = range(experiment.seed, experiment.seed + settings.seeds)
    trained = {}
    with show_progress(f"{recipe.label}: coordinates", len(experiments), "models") as advance:
        for done, (size, own) in enumerate(experiments.items()):
            advance(done)
            trained[size] = average([train_and_record(own, corpus, batches, seed, device) for seed in seeds])
    courses = {axis: {getattr(size, axis): trained[size] for size in sizes.of(axis)} for axis in AXES}
    judged = [one for axis in AXES for one in judge(axis, courses[axis])]
    facts = {
        "parametrization": experiment.parametrization.kind,
        "optimizer": experiment.optimizer.kind,
        "lr": experiment.optimizer.lr,
        "depth_of_widths": sizes.of("width")[0].depth,
        "width_of_depths": sizes.of("depth")[0].width,
        "updates": settings.updates,
        "seeds": settings.seeds,
        "batch": items,
    }
    note = describe_placements(experiment.norm, [size.depth for size in sizes.of("depth")])
    return Coordinates(
        courses, judged, facts, f"batches of {count_noun(items, experiment.task.sample)} of {corpus.description}", note
    )


def describe_placements(norm: Placement, depths: Sequence[int]) -> str:
    """Return a warning that names the placements of each depth if these differ; otherwise ''. Mix-LN of a quarter, for
    example, has no Post-LN layer among two, so that its depths are different models."""
    by_kinds: dict[str, list[str]] = {}
    for depth in depths:
        kinds = join_words(dict.fromkeys(norm.at(index, depth).kind for index in range(depth)))
        by_kinds.setdefault(kinds, []).append(str(depth))
    if len(by_kinds) < 2:
        return ""
    parts = [f"with {join_words(numbers)} layers {kinds}" for kinds, numbers in by_kinds.items()]
    return f"Different models over the depth: {'; '.join(parts)}. Choose --depths that all have the same."


def average(courses: Sequence[Course]) -> Course:
    """Return the means over seeds."""
    return {
        part: [
            (_mean([values[0] for values in same]), _mean([values[1] for values in same]))
            for same in zip(*(course[part] for course in courses), strict=True)
        ]
        for part in courses[0]
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if all(map(math.isfinite, values)) else math.nan


TITLE = "Coordinate check: flat where the settings hold at every size"
_ROWS = tuple((axis, quantity) for axis in AXES for quantity in (0, 1))


def draw(checks: Mapping[str, Coordinates]) -> Figure:
    """Return the figure of models by label: rows for activations at initialisation and for their change after the last
    update, over the width and then over the depth, each on one scale for all models."""
    panels = []
    updates = next(iter(checks.values())).facts["updates"]
    for axis, quantity in _ROWS:
        what = f"change after {updates} updates" if quantity else "activations at initialisation"
        for place, (label, check) in enumerate(checks.items()):
            title = label if (axis, quantity) == _ROWS[0] else ""
            name = f"RMS of {what}" if place == 0 else ""
            panels.append(_build_panel(check, axis, quantity, title, name, place == len(checks) - 1))
    return Figure(NAME, TITLE, [Part(panels, len(checks), share="y")])


def _build_panel(check: Coordinates, axis: str, quantity: int, title: str, label: str, is_last: bool) -> Panel:
    """Return a line for each part; parts inside of layers are in the table alone."""
    sizes = [*check.courses[axis]]
    lines = {
        part: [course[-1 if quantity else 0][quantity] for course in courses]
        for part, courses in align(axis, check.courses[axis]).items()
        if find_group(part) != "sublayers"
    }
    shades = {part: pick_shade(0.9 * place / max(1, len(lines) - 1)) for place, part in enumerate(lines)}
    dashes = {part: "--" if part == LOGITS else "-" for part in lines}
    marks = [Line(sizes, lines[part], shades[part], 1.3, dashes[part], marker="o", size=3.5) for part in lines]
    entries = [Entry(part, shades[part], "o", dashes[part]) for part in lines] if is_last else []
    across = Axis(axis, log=True, ticks={size: str(size) for size in sizes}, grid=False)
    log = any(value > 0 for values in lines.values() for value in values)
    return Panel(marks, across, Axis(label, log=log), title, entries=entries)
