"""`ablate schema`: the JSON schema of an experiment or a sweep file."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import ablate
from ablate.cli.arguments import COMMAND_LINE, PLUGINS, Verbs, add_verb, parse_plugins
from ablate.cli.output import print_json
from ablate.config.lazy import LazyModule

if TYPE_CHECKING:
    from ablate.config import plugins
    from ablate.config import schema as schemas
else:
    plugins = LazyModule("ablate.config.plugins")
    schemas = LazyModule("ablate.config.schema")


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    text = "print the JSON schema of the configuration, for editors"
    parser = add_verb(verbs, "schema", text, "ablate schema > ablate.json", run)
    parser.add_argument("words", nargs="*", default=[], metavar="plugins=FILE.py", help=PLUGINS)
    parser.add_argument(
        "--sweep", action="store_true", help=("print the schema of a sweep file instead of an experiment")
    )


def run(options: argparse.Namespace) -> int:
    """Print the schema."""
    experiment, sweep = ablate.Experiment, ablate.Sweep  # both: samplers and pruners stand in the definitions of either
    plugins.load(parse_plugins(options.words), source=COMMAND_LINE)
    print_json(schemas.json_schema(sweep if options.sweep else experiment))
    return 0
