"""The coordinate check of every placement, in both families, under each parametrisation.

    python benchmarks/coordinates.py --family llama
    python benchmarks/coordinates.py --family vit --widths 32,128,512 --depths 4,32 --seeds 4

Prints how much the RMS of the layers differs between sizes, the largest over the smallest: along the width and the
depth, of all sizes and without the smallest, the exponent, and the part that differs most. `ablate diagnose --what
coordinates` does the same for the recipe of a run.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

from ablate.cli.arguments import parse_positive, parse_sizes
from ablate.config.errors import ConfigError
from ablate.diagnostics.coordinates.check import LAYERS, CheckSettings, Coordinates, check_coordinates
from ablate.diagnostics.coordinates.recipes import Recipe
from ablate.experiment.tree import Experiment
from ablate.norms import placements
from ablate.optim.parametrizations import parametrizations

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model": {"kind": "llama", "hidden": 128, "heads": 8}, "data": {"kind": "topics", "seq_len": 32}},
    "vit": {"model": {"kind": "vit", "hidden": 128, "heads": 8}, "data": "digits"},
}
TOKENS = {"llama": 256, "vit": 32}
"""In a batch: tokens or images."""


def build_recipe(family: str, norm: str, kind: str, lr: float) -> Recipe | None:
    """Return the recipe; None for a placement that does not go with the parametrisation."""
    more = {"norm": norm, "parametrization.kind": kind, "optimizer.lr": lr, "trainer.batch_size": 32}
    try:
        return Recipe(f"{family} {norm} {kind}", Experiment.from_mapping(FAMILIES[family], more))
    except ConfigError:
        return None


def describe(check: Coordinates) -> str:
    """Return the ratios of a check in one line."""
    words = []
    for one in check.judged:
        if one.group == LAYERS:
            numbers = f"{one.ratio:7.2f} {one.ratio_without_smallest:7.2f} {one.exponent:+.2f}"
            words.append(f"{one.axis} {one.quantity} {numbers} {one.part}")
    return " | ".join(words)


def main() -> None:
    """Print a line for each placement and parametrisation."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--family", choices=FAMILIES, required=True)
    parser.add_argument("--kinds", default=",".join(parametrizations))
    parser.add_argument("--placements", default=",".join(kind for kind in placements if placements[kind].listed))
    parser.add_argument("--widths", type=parse_sizes, default=[])
    parser.add_argument("--depths", type=parse_sizes, default=[])
    parser.add_argument("--updates", type=parse_positive, default=5)
    parser.add_argument("--seeds", type=parse_positive, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    settings = CheckSettings(options.widths, options.depths, options.updates, options.seeds)
    for norm in options.placements.split(","):
        for kind in options.kinds.split(","):
            if recipe := build_recipe(options.family, norm, kind, options.lr):
                check = check_coordinates(recipe, settings, (), TOKENS[options.family], torch.device("cpu"))
                print(f"{recipe.label:32} {describe(check)}", flush=True)


if __name__ == "__main__":
    main()
