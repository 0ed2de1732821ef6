"""Checks of initialisations: the weights have the standard deviations that are declared."""

from __future__ import annotations

import math

import torch

from ablate.config.errors import ConfigError
from ablate.diagnostics.checks.base import CheckFailedError, Settings, add_check
from ablate.diagnostics.checks.subject import Subject, build_subject
from ablate.models import Model

PART = "initialisation"
_WIDE = {"model.hidden": 64, "model.layers": 3, "model.heads": 4}
_FAMILIES = ("llama", "vit")


def _build(kind: str, settings: Settings) -> list[Subject]:
    """Return a subject of each family that takes the initialisation."""
    subjects, refused = [], None
    for family in _FAMILIES:
        try:
            subjects.append(build_subject({**_WIDE, "model.kind": family, "init": kind}, settings))
        except ConfigError as error:
            refused = error
    if not subjects and refused:
        raise refused
    return subjects


def _start(subject: Subject, seed: int = 0) -> Model:
    torch.manual_seed(seed)
    return subject.experiment.build_model(subject.corpus.classes, subject.corpus.shape)


@add_check(PART, "standard deviations")
def check_deviations(kind: str, settings: Settings) -> str:
    """Check that each projection has the standard deviation of `std_of`, with a placement that has no gains."""
    largest = 0.0
    for subject in _build(kind, settings):
        experiment = subject.experiment
        stack = experiment.model.stack()
        for projection in _start(subject).projections():
            declared = experiment.init.draw_std(projection, stack)
            measured, count = float(projection.weight.detach().std()), projection.weight.numel()
            if not (math.isfinite(declared) and declared > 0):
                raise CheckFailedError(f"std_of is {declared:g} for {projection.role} in layer {projection.layer}")
            off = abs(measured / declared - 1)
            if off > 6 / math.sqrt(2 * count):  # six standard errors of a standard deviation
                place = "" if projection.layer is None else f" in layer {projection.layer + 1}"
                raise CheckFailedError(
                    f"{projection.role}{place} of {experiment.model.kind} has the standard deviation {measured:.4g}, "
                    f"and std_of says {declared:.4g}"
                )
            largest = max(largest, off)
    return f"at most {largest:.1%} off"


@add_check(PART, "seeds")
def check_seeds(kind: str, settings: Settings) -> None:
    """Check that the same seed gives the same weights, and another seed others."""
    for subject in _build(kind, settings):
        first, again, other = (_start(subject, seed).state_dict() for seed in (0, 0, 1))
        for name, tensor in first.items():
            if not torch.equal(tensor, again[name]):
                raise CheckFailedError(f"the same seed gives {name} of {subject.experiment.model.kind} other values")
        if all(torch.equal(tensor, other[name]) for name, tensor in first.items()):
            raise CheckFailedError(f"another seed gives {subject.experiment.model.kind} the same weights")
