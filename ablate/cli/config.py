"""`ablate config`: print an experiment with all defaults filled in, or the JSON schema of the configuration."""

from __future__ import annotations

import argparse

import ablate
from ablate.cli.arguments import COMMAND_LINE, OVERRIDES, Verbs, add_json, add_verb, build_error, parse_plugins
from ablate.cli.output import print_json
from ablate.config.lazy import postpone_imports
from ablate.config.yaml import split_words

with postpone_imports():
    from ablate.config import building, plugins

_EXAMPLE = """\
ablate config model=llama-71m norm=lns
  ablate config --schema > ablate-schema.json"""


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    parser = add_verb(verbs, "config", "print the resolved configuration as YAML, or its schema", _EXAMPLE, run)
    parser.add_argument("words", nargs="*", metavar="[FILE.yaml] key=value", help=OVERRIDES)
    text = "print the JSON schema of an experiment instead, for editors; of the settings it takes plugins=FILE.py alone"
    parser.add_argument("--schema", action="store_true", help=text)
    parser.add_argument("--sweep", action="store_true", help="with --schema: the schema of a sweep file")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print the experiment as YAML, or the schema."""
    if options.schema:
        experiment, sweep = ablate.Experiment, ablate.Sweep  # samplers and pruners stand in the definitions of either
        plugins.load(parse_plugins(options.words), source=COMMAND_LINE)
        print_json(building.json_schema(sweep if options.sweep else experiment))
        return 0
    if options.sweep:
        raise build_error("--sweep", "is for --schema. ablate sweep FILE.yaml --dry-run checks a sweep file")
    file, overrides = split_words(options.words)
    experiment_read = ablate.Experiment.load(file, overrides)
    if options.json:
        print_json(experiment_read.to_tree())
    else:
        print(experiment_read.to_yaml(), end="")
    return 0
