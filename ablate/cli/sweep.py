"""`ablate sweep`: plan the sweeps of a file, run them here, or submit them to a cluster."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import ablate
from ablate.cli import report
from ablate.cli.arguments import (
    COMMAND_LINE,
    OVERRIDES,
    Verbs,
    add_json,
    add_storage,
    add_verb,
    build_error,
    parse_above_zero,
    parse_names,
    parse_positive,
    parse_positive_or_auto,
    parse_share,
)
from ablate.cli.output import build_console, interrupt_on_signals, print_json, repeat_command
from ablate.config.errors import AblateError, ConfigError, Problem
from ablate.config.formatting import count_noun, format_settings, join_words
from ablate.config.lazy import postpone_imports
from ablate.config.logs import print_wrapped
from ablate.config.yaml import parse_overrides
from ablate.distributed import ranks, slurm

if TYPE_CHECKING:
    from ablate.addons.scaling.over_sizes import SizesReport
    from ablate.reports.report import Report
    from ablate.scheduler.executors.executor import Executor
    from ablate.sweeps.records import SweepRecord
    from ablate.sweeps.spec.sweep import Sweep

with postpone_imports():
    from ablate.reports import terminal
    from ablate.scheduler import devices, dry_run
    from ablate.scheduler import run as sweep_run
    from ablate.scheduler.executors import ray as ray_executor
    from ablate.scheduler.executors import slurm as slurm_executor
    from ablate.sweeps.spec import files, library, references, scale

_EXECUTOR = "where workers run: this machine, or tasks of a Ray cluster (default: local; jobs of Slurm: --submit)"
_ADDRESS = (
    "of the Ray cluster: HOST:PORT on one of its nodes, ray://HOST:PORT elsewhere, or auto, the cluster of this "
    "machine (default: RAY_ADDRESS, else auto)"
)
_CPUS = "CPUs of each worker on Ray, and threads of a trial (default: 1)"
_GPUS = (
    "GPUs of each worker on Ray: 1, 0, or a part, such as 0.25 for four workers on each (default: 1 if there are any)"
)


def add_executor(parser: argparse.ArgumentParser) -> None:
    """Add --executor and the options of each executor."""
    parser.add_argument("--executor", choices=("local", "ray"), default="local", help=_EXECUTOR)
    parser.add_argument("--address", metavar="ADDRESS", help=_ADDRESS)
    parser.add_argument("--cpus-per-worker", type=parse_above_zero, metavar="X", help=_CPUS)
    parser.add_argument("--gpus-per-worker", type=parse_gpus, metavar="Y", help=_GPUS)


def parse_gpus(text: str) -> float:
    """Return a number from 0 to 1."""
    try:
        gpus = float(text)
    except ValueError:
        gpus = -1.0
    if not 0 <= gpus <= 1:
        reason = "a worker is one process, which trains on one GPU"
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 1, given {text}: {reason}")
    return gpus


def check_executor(options: argparse.Namespace) -> None:
    """Raise ConfigError with all options that cannot be combined."""
    problems = []
    if options.executor == "local":
        for name in ("address", "cpus_per_worker", "gpus_per_worker"):
            if (value := getattr(options, name)) is not None:
                problems.append(Problem(f"--{name.replace('_', '-')}", "needs --executor ray", value))
    else:
        if options.submit:
            problems.append(Problem("--submit", "cannot be combined with --executor ray: choose one"))
        if options.workers_per_gpu:
            text = "cannot be combined with --executor ray: give --gpus-per-worker, such as 0.25, and --workers"
            problems.append(Problem("--workers-per-gpu", text))
        if ranks.world_size() > 1:
            problems.append(Problem("--executor", "ray cannot be used in a group of torchrun: omit torchrun"))
    if problems:
        raise ConfigError(problems, COMMAND_LINE)


@contextlib.contextmanager
def open_executor(options: argparse.Namespace) -> Iterator[Executor | None]:
    """Return where workers run; None: on this machine."""
    if options.executor == "local":
        yield None
        return
    with ray_executor.open_cluster(
        options.address, options.cpus_per_worker, options.gpus_per_worker, options.storage
    ) as cluster:
        yield cluster


_EXAMPLE = """\
ablate sweep demo --workers 2
  ablate sweep my.yaml --dry-run
  ablate sweep sweeps/mixln-table1.yaml --size 71m --scale 0.01
  ablate sweep sweeps/demo-ladder.yaml --size xs,s,m
  ablate sweep --all --dry-run
  ablate sweep sweeps/demo.yaml --submit cluster=local --workers 2
  ablate sweep sweeps/demo.yaml --workers-per-gpu auto
  ablate sweep my.yaml --executor ray --address 10.0.0.1:6379 --workers 8 --gpus-per-worker 0.5
  ablate sweep my.yaml --storage postgresql://me@db/ablate --submit slurm.partition=gpu timeout_min=600 --workers 32"""
_FILE = "the sweep file, or the name of one that comes with Ablate"
_PER_GPU = "trials at a time on each GPU; auto: as many as fit according to the memory plan"
_SCALE = (
    "run with this share of the tokens, above 0 and at most 1; the report states it, and the studies of different "
    "shares are separate (default: 1)"
)
_SUBMIT = (
    "submit each worker as a job of a cluster, and return at once: parameters of submitit, such as "
    "slurm.partition=gpu timeout_min=600 gpus_per_node=1 cpus_per_task=8 mem_gb=32, or cluster=local"
)


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    parser = add_verb(verbs, "sweep", "run or continue a sweep", _EXAMPLE, run)
    parser.add_argument("file", nargs="?", metavar="FILE.yaml", help=_FILE)
    parser.add_argument("words", nargs="*", default=[], metavar="key=value", help=f"{OVERRIDES}, or budget.trials=20")
    parser.add_argument(
        "--size",
        type=parse_names,
        metavar="A,B,...",
        help="run only these sizes or stages of a file (default: all; sizes from the smallest, stages in order)",
    )
    parser.add_argument("--scale", type=parse_share, default=1.0, metavar="X", help=_SCALE)
    parser.add_argument(
        "--scale-model", action="store_true", help=("also shrink the layers of the model by the factor X")
    )
    parser.add_argument("--all", action="store_true", help="with --dry-run: check and plan every file of sweeps/")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and its cost without running it")
    parser.add_argument("--workers", type=parse_positive, metavar="N", help="trials at a time (default: 1)")
    parser.add_argument("--workers-per-gpu", type=parse_positive_or_auto, metavar="K", help=_PER_GPU)
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="start from the beginning, on seeds of its own; the old trials are kept as an earlier generation",
    )
    add_storage(parser)
    add_json(parser, "print the reports, or with --dry-run the plans, as JSON")
    add_executor(parser)
    parser.add_argument("--submit", nargs="+", metavar="KEY=VALUE", help=_SUBMIT)


def run(options: argparse.Namespace) -> int:
    """Plan, run or submit the sweeps of a file, and print their reports."""
    check_executor(options)
    if options.all:
        return _plan_all(options)
    if options.file is None:
        raise build_error("", "expected the sweep file, FILE.yaml, or --all --dry-run")
    if options.workers_per_gpu and (options.workers or options.submit):
        other = "--workers, which is the total over all GPUs" if options.workers else "--submit: a job is one worker"
        raise build_error("--workers-per-gpu", f"cannot be combined with {other}")
    overrides, model = parse_overrides(options.words), _scales_model(options)
    options.file, part = library.find_sweep_file(options.file)
    specs = files.load_sweeps(
        options.file, overrides, size=options.size or ([part] if part else None), factor=options.scale, model=model
    )
    if options.submit:
        words = parse_overrides(options.submit)
        if {name for spec in specs for name in references.list_earlier_sweeps(spec)} & {spec.name for spec in specs}:
            text = "the stages of a file depend on each other: submit one at a time with --size STAGE"
            raise build_error("--submit", text)
        if not options.dry_run:
            workers = options.workers or 1
            where = {"storage": options.storage, "fresh": options.fresh}
            jobs = [str(slurm_executor.submit(spec, words, workers=workers, **where)) for spec in specs]
            if options.json:
                print_json({"submitted": jobs})
            else:
                print("\n".join(jobs))
            return 0
        slurm_executor.check_parameters(words, options.storage)
    requested = {spec.name for spec in specs}
    staged = files.add_earlier_sweeps(options.file, specs, overrides, factor=options.scale, model=model)
    title, known = files.list_sizes(options.file, overrides)
    suffix = scale.format_suffix(options.scale, model)
    sizes = {spec.name: known[spec.name.removesuffix(suffix)] for spec in specs if known}
    if options.dry_run:
        by_size = {sizes[spec.name]: spec for spec in specs if sizes}
        notes = report.note_plan(title, by_size) if len(sizes) > 1 else []
        return _plan(staged, requested, options, notes)
    with interrupt_on_signals(), open_executor(options) as executor:  # also while a sweep is prepared
        return _run(staged, sizes or dict.fromkeys(requested, ""), f"{title}{suffix}", options, executor)


def _plan_all(options: argparse.Namespace) -> int:
    """Check every file of sweeps/, print the plan of each, and return 2 if one has an error."""
    if not options.dry_run or options.submit or options.size:
        raise build_error("--all", "needs --dry-run, and cannot be combined with --submit or --size")
    words = [options.file, *options.words] if options.file else options.words
    model, broken, plans = _scales_model(options), 0, []
    for file, texts, error in dry_run.plan_files("sweeps", parse_overrides(words), factor=options.scale, model=model):
        plans.append({"file": str(file), "plans": texts, "problem": str(error) if error else None})
        if not options.json:
            print("\n\n".join([f"{file}", *texts]) + "\n")
        if error:
            broken += 1
            print(f"ablate sweep: {error}\n", file=sys.stderr)
    if options.json:
        print_json({"files": plans})
    return 2 if broken else 0


def _scales_model(options: argparse.Namespace) -> bool:
    """Return --scale-model, which needs --scale."""
    if options.scale_model and options.scale == 1:
        raise build_error("--scale-model", "needs --scale, whose factor it also applies to the model")
    return bool(options.scale_model)


def _plan(specs: Sequence[Sweep], requested: Collection[str], options: argparse.Namespace, notes: Sequence[str]) -> int:
    """Print the plan of each sweep and `notes` on all of them; return 2 where data is missing without which a sweep
    cannot start."""
    missing: dict[str, None] = {}
    plans = []
    for spec in specs:
        is_requested = spec.name in requested
        fresh = options.fresh and is_requested
        text, lacking = dry_run.plan_or_outline(spec, _count_workers(spec, options), options.storage, fresh)
        text = text if is_requested else f"{_announce(spec, specs, options)}\n{text}"
        missing |= {lacking: None} if lacking else {}
        plans.append({"sweep": spec.name, "plan": text})
        if not options.json:
            print(f"{text}\n" if spec is not specs[-1] else text, flush=True)
    if options.json:
        print_json({"sweeps": plans, **({"notes": notes} if notes else {})})
    else:
        for note in notes:
            print(f"\nNote: {note}")
    for message in missing:
        print(f"ablate sweep: this sweep cannot start here. {message}", file=sys.stderr)
    return 2 if missing else 0


def _run(
    specs: Sequence[Sweep],
    requested: Mapping[str, str],
    title: str,
    options: argparse.Namespace,
    executor: Executor | None,
) -> int:
    """Run or continue one sweep after another until Ctrl-C, then compare the sizes of the file `title`, and return the
    worst exit status. `requested`: name of a sweep -> its size, or ''; others train the models that these start
    from."""
    worst = 0
    reports: dict[str, Report] = {}
    console, command = build_console(stderr=options.json), repeat_command(options.verb)
    for spec in specs:
        if spec.name not in requested:
            print(_announce(spec, specs, options))
        workers = _count_workers(spec, options)
        fresh = options.fresh and spec.name in requested
        try:
            record = sweep_run.sweep(
                spec, workers=workers, storage=options.storage, fresh=fresh, console=console, executor=executor
            )
        except KeyboardInterrupt as stop:
            _tell_stopped(spec, command, stop)
            worst = 130
            break
        reports[spec.name] = ablate.report(record, storage=options.storage)
        terminal.render(reports[spec.name].document, console)
        if failed := len(record.runs.select(status="failed")):
            print(f"{count_noun(failed, 'trial')} failed. The same command retries them:\n  {command}", file=sys.stderr)
            worst = 1
    records = {requested[name]: content.record for name, content in reports.items() if requested.get(name)}
    together = _report_sizes(title, records, options) if len(records) > 1 and worst != 130 else None
    if options.json:
        sizes = {"over_sizes": together.to_dict()} if together else {}
        print_json({"sweeps": [content.to_dict() for content in reports.values()], **sizes})
    return worst


def _report_sizes(title: str, records: Mapping[str, SweepRecord], options: argparse.Namespace) -> SizesReport | None:
    """Return the report on the sizes of a file, which is printed; None after a line that says why there is none."""
    console = build_console(stderr=options.json)
    try:
        together = report.report_sizes(title, records)
    except AblateError as error:
        print_wrapped(console, f"The sizes are not compared with each other: {error}")
        return None
    terminal.render(together.document, console)
    return together


def _announce(spec: Sweep, specs: Sequence[Sweep], options: argparse.Namespace) -> str:
    """Return the sentences on an earlier sweep: which ones start from it, and which settings apply to it too."""
    after = [other.name for other in specs if spec.name in references.list_earlier_sweeps(other)]
    lines = [f"{spec.name} runs first: {join_words(after)} start{'' if after[1:] else 's'} from its trials."]
    overrides = parse_overrides(options.words)
    name = spec.name.removesuffix(scale.format_suffix(options.scale, options.scale_model))
    passed = files.select_passed_on(options.file, name, overrides)
    given = {word: word.removeprefix("experiment.") for word in overrides}
    own = [word for word, path in given.items() if not any(f"{known}.".startswith(f"{path}.") for known in passed)]
    lines += [f"  Passed on to it: {format_settings(passed, {})}"] if passed else []
    lines += [f"  Not passed on: {join_words(own)}"] if own else []
    return "\n".join(lines)


def _tell_stopped(spec: Sweep, command: str, stop: KeyboardInterrupt) -> None:
    """Print how a sweep that was stopped goes on."""
    has_checkpoints = all(spec.base(arm).resumes for arm in spec.all_arms)
    way_on = "resume from their last checkpoints" if has_checkpoints else "start again"
    print(f"\nStopped. Running trials will {way_on} with:\n  {command}", file=sys.stderr)
    if message := slurm.requeue(stop.args):
        print(message, file=sys.stderr)


def _count_workers(spec: Sweep, options: argparse.Namespace) -> int:
    """Return how many trials are trained at a time."""
    if options.workers_per_gpu:
        return devices.count_workers(spec, options.workers_per_gpu)
    return options.workers or 1
