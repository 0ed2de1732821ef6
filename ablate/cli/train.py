"""`ablate train`: train one experiment, or resume an earlier run."""

from __future__ import annotations

import argparse
import os

import ablate
from ablate import tracking
from ablate.cli.arguments import OVERRIDES, Verbs, add_json, add_verb, build_error
from ablate.cli.output import build_console, print_json
from ablate.config.lazy import postpone_imports
from ablate.config.logs import print_wrapped
from ablate.config.yaml import split_words
from ablate.distributed import launching, slurm

with postpone_imports():
    from ablate.cli import foreground
    from ablate.training import procedures, progress, runs, trainer


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    example = "ablate train norm=mix norm.alpha=0.25 trainer.max_steps=100"
    parser = add_verb(verbs, "train", "train one experiment", example, run)
    parser.add_argument("words", nargs="*", metavar="[FILE.yaml] key=value", help=OVERRIDES)
    add_json(parser, "print the result as JSON")
    parser.add_argument("--resume", metavar="RUN_ID", help="continue an interrupted run from its last checkpoint")


def run(options: argparse.Namespace) -> int:
    """Train, and print the result."""
    file, overrides = split_words(options.words)
    run_id = options.resume
    if run_id is not None and not run_id.strip():
        text = f"expected the id of a run, given {run_id!r}; ablate ui shows the runs. Omit --resume for a new run"
        raise build_error("--resume", text)
    if not run_id and (run_id := slurm.recall(tracking.open_store())):
        file, overrides = None, {}
    if run_id:
        experiment = runs.load_experiment(run_id, overrides if file is None else {"FILE.yaml": file})
    else:
        experiment = ablate.Experiment.load(file, overrides)
    experiment.data.check_files()  # before anything is announced and torch is imported
    console = build_console(stderr=options.json)
    if os.environ.get(launching.LAUNCHED) is None:  # else the process that started this one has said it
        print_wrapped(console, progress.describe_run(experiment, run_id))
    if devices := trainer.count_launches(experiment.trainer):
        return launching.launch(devices)
    with foreground.Foreground(experiment, console) as waiting:
        result = ablate.train(experiment, procedures.Place(run_id=run_id), waiting.hooks, progress=console)
    status = waiting.explain(result)
    if options.json:
        print_json(result.to_dict())
    return status
