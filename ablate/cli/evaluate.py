"""`ablate evaluate`: score trained language models on downstream tasks."""

from __future__ import annotations

import argparse
import logging
import os
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ablate import tracking
from ablate.cli.arguments import (
    Verbs,
    add_json,
    add_plugins,
    add_storage,
    add_trust,
    add_verb,
    parse_names,
    parse_positive,
    parse_whole,
    take_plugins,
)
from ablate.cli.output import build_console, build_table, print_json
from ablate.config.errors import SweepError
from ablate.config.lazy import postpone_imports

if TYPE_CHECKING:
    from rich.console import Console

with postpone_imports():
    from ablate.addons.evaluation import run as evaluation
    from ablate.scheduler import donors, storage
    from ablate.sweeps.spec import references
    from ablate.training import runs, trained

_log = logging.getLogger(__name__)

_EXAMPLE = """\
ablate evaluate RUN_ID --tasks arc_easy,piqa
  ablate evaluate sweep:demo --tasks arc_easy,boolq --task-data tasks --limit 200
  ablate evaluate sweep:demo/pre hf:gpt2 --tasks lambada_openai --json"""
_MODELS = (
    "a run's id, the path of its last.ckpt, sweep:NAME/ARM, sweep:NAME for every arm, or hf: and a model of "
    "transformers (a folder or a name on the hub)"
)


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    text = "score trained language models on downstream tasks (needs the extra eval)"
    parser = add_verb(verbs, "evaluate", text, _EXAMPLE, run)
    parser.add_argument("models", nargs="+", metavar="MODEL", help=_MODELS)
    text = "comma-separated tasks of lm-evaluation-harness"
    parser.add_argument("--tasks", type=parse_names, required=True, metavar="A,B,...", help=text)
    parser.add_argument("--task-data", metavar="FOLDER", help="local files of the tasks (default: the hub)")
    text = "solved examples before each question (default: the task's own)"
    parser.add_argument("--shots", type=parse_whole, metavar="N", help=text)
    text = "the first N questions of each task (default: all)"
    parser.add_argument("--limit", type=parse_positive, metavar="N", help=text)
    text = "answers at a time (default: 16)"
    parser.add_argument("--batch-size", type=parse_positive, default=16, metavar="N", help=text)
    parser.add_argument("--output", metavar="FILE", help="write all results, with each question, as JSON")
    add_trust(parser, "an hf: model")
    add_storage(parser)
    add_json(parser, "print the scores as JSON")
    add_plugins(parser)


def run(options: argparse.Namespace) -> int:
    """Score the models, and print the scores."""
    (names,) = take_plugins(options.words, options.models)
    models = [model for name in names for model in resolve_models(name, options.storage)]
    if not models:
        raise SweepError(f"{' '.join(names)}: there is no model to evaluate.")
    settings = {name: getattr(options, name) for name in ("task_data", "shots", "limit", "batch_size")}
    asked = evaluation.Options(options.tasks, **settings, trust_remote_code=options.trust_remote_code)
    evaluated = evaluation.evaluate(models, asked)
    if options.output:
        evaluation.write(evaluated, options.output)
    if options.json:
        print_json(evaluation.to_dict(evaluated))
    else:
        render(evaluated, build_console())
    return 0


def resolve_models(name: str, url: str | None) -> Iterator[tuple[str, str]]:
    """Yield (label, run or checkpoint or `hf:NAME`) for each model that `name` selects: `sweep:NAME` selects, of every
    arm, the fresh seeds with a kept checkpoint, or else the trial that represents the arm. An arm that diverged on all
    of its fresh seeds has no model."""
    if not name.startswith(references.PREFIX) or "/" in name:
        yield name, donors.resolve_run(name, url)
        return
    record = storage.read_sweep(name.removeprefix(references.PREFIX), url)
    for arm in record.arms:
        seeds = [t for t in record.fresh(arm) if t.status == "completed" and t.run_id and _is_kept(t.run_id)]
        label = f"{references.PREFIX}{record.title}/{arm}"
        ended = [t for t in record.fresh(arm) if t.status in ("completed", "diverged")]
        if ended and all(t.status == "diverged" for t in ended):
            _log.warning("%s diverged on all of its %d fresh seeds: there is no model.", label, len(ended))
        elif seeds:
            yield from ((f"{label} seed {trial.params.get('seed')}", str(trial.run_id)) for trial in seeds)
        else:
            yield label, donors.resolve_run(label, url)


def _is_kept(run_id: str) -> bool:
    folder = tracking.store_path() / "runs" / run_id
    return any(os.path.exists(folder / name) for name in (runs.CHECKPOINT, trained.EXPORTED))


def render(evaluated: Sequence[evaluation.Evaluated], console: Console) -> None:
    """Print one row for each model and metric, and below them the questions that did not fit into the context."""
    differences, rows = evaluation.compare(evaluated), []
    for task in evaluated[0].scores:
        for metric in evaluated[0].scores[task].metrics:
            for one in evaluated:
                score, paired = one.scores[task], differences.get((one.name, task, metric))
                error = score.stderr.get(metric)
                interval = f"{paired.mean:+.4f} [{paired.low:+.4f}, {paired.high:+.4f}]" if paired else "-"
                numbers = f"{len(score.questions):,}", str(score.shots), f"{score.metrics[metric]:.4g}"
                stderr = "-" if error is None else f"{error:.4f}"
                rows.append((task, metric, _shorten(one.name), *numbers, stderr, interval))
    right = ("questions", "shots", "score", "stderr", "difference to the first")
    console.print(build_table(("task", "metric", "model", *right), rows, right))
    if len(evaluated) > 1:
        first = _shorten(evaluated[0].name)
        console.print(
            f"difference to the first: to {first}, paired over the questions, 95 % bootstrap interval. It holds for "
            "these models only: the questions do not show the variation between seeds. ablate report compares arms "
            "over their seeds."
        )
    for task in evaluated[0].scores:
        for one in evaluated:
            score = one.scores[task]
            if score.cut:
                console.print(
                    f"{one.name}: {score.cut} questions of {task} are longer than the context; their beginning was cut "
                    "off."
                )
            if score.long:
                console.print(f"{one.name}: {score.long} questions of {task} have answers longer than the context.")


def _shorten(name: str) -> str:
    """Return a model's name with a run's id shortened to its first digits, so that the row fits a terminal."""
    return name[:8] if re.fullmatch("[0-9a-f]{32}", name) else name
