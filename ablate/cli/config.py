"""`ablate config`: print an experiment with all defaults filled in."""

from __future__ import annotations

import argparse

import ablate
from ablate.cli.arguments import OVERRIDES, Verbs, add_json, add_verb
from ablate.cli.output import print_json
from ablate.config.yaml import split_words


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    text, example = "print the resolved configuration as YAML", "ablate config model=llama-71m norm=lns"
    parser = add_verb(verbs, "config", text, example, run)
    parser.add_argument("words", nargs="*", metavar="[FILE.yaml] key=value", help=OVERRIDES)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print the experiment as YAML."""
    file, overrides = split_words(options.words)
    experiment = ablate.Experiment.load(file, overrides)
    if options.json:
        print_json(experiment.to_tree())
    else:
        print(experiment.to_yaml(), end="")
    return 0
