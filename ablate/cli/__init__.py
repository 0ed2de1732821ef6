"""The command line: what each verb calls and prints. Whatever is heavy is imported by the verb that needs it."""

from __future__ import annotations

import argparse
import atexit
import gc
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ablate.cli.parser import parser
from ablate.config.errors import AblateError
from ablate.distributed import groups, slurm

if TYPE_CHECKING:
    from rich.console import Console

    from ablate.sweeps.spec.sweep import Sweep


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; the exit status."""
    top = parser()
    given, after_options = top.parse_known_args(arguments)
    if after_options:  # key=value words that stand behind an option, which argparse does not take
        if not hasattr(given, "words") or any(word.startswith("-") for word in after_options):
            top.error(f"unrecognized arguments: {' '.join(after_options)}")
        given.words += after_options
    if given.version:
        from ablate import __version__

        print(__version__)
        return 0
    if not given.verb:
        top.print_help()
        return 2
    atexit.register(gc.freeze)  # at its end Python looks for garbage among all that was imported, for two seconds
    return groups.led(lambda: _run(given))


def _run(given: argparse.Namespace) -> int:
    """The verb that is given; its errors in words."""
    try:
        status: int = globals()[f"_{given.verb}"](given)
        return status
    except AblateError as error:
        print(f"ablate {given.verb}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as head, has gone: nothing to tell, unless work was cut short
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141 if given.verb in ("train", "sweep") else 0


def _console(stderr: bool = False) -> Console:
    from rich.console import Console

    class Pipe(Console):
        def on_broken_pipe(self) -> None:  # rich would exit with 1, which means failed trials here
            raise BrokenPipeError

    return Pipe(stderr=stderr, soft_wrap=True, highlight=False)


# ---------------------------------------------------------------------------------------------------- the verbs


def _train(given: argparse.Namespace) -> int:
    from ablate import tracking
    from ablate.config.yaml import file_and_overrides
    from ablate.distributed.launching import launch
    from ablate.experiment.tree import Experiment
    from ablate.training.foreground import train_in_foreground
    from ablate.training.trainer import to_launch

    file, overrides = file_and_overrides(given.words)
    if not given.resume and (before := slurm.remembered(tracking.open_store())):
        given.resume, file, overrides = before, None, {}
    if given.resume:
        from ablate.training.runs import stored_experiment

        experiment = stored_experiment(given.resume, overrides if file is None else {"FILE.yaml": file})
    else:
        experiment = Experiment.load(file, overrides)
    if devices := to_launch(experiment.trainer):
        return launch(devices)
    from ablate.sweeps.donors import with_donors

    console, experiment = _console(stderr=given.json), with_donors(experiment)
    result = train_in_foreground(experiment, console, given.resume)
    if given.json:
        print(json.dumps(result.to_dict(), indent=2))
    return 130 if result.status == "interrupted" else 0


def _sweep(given: argparse.Namespace) -> int:
    from ablate.config.yaml import parse_overrides
    from ablate.sweeps.spec.files import load_sweeps, with_earlier

    if given.all:
        return _all(given)
    if given.file is None:
        raise _mistake("", "expected the sweep file, FILE.yaml, or --all --dry-run")
    if given.workers_per_gpu and (given.workers or given.submit):
        other = "--workers, which counts the workers of all GPUs" if given.workers else "--submit: a job is one worker"
        raise _mistake("--workers-per-gpu", f"goes without {other}")
    overrides, model = parse_overrides(given.words), _model_scaled(given.scale, given.scale_model)
    specs = load_sweeps(given.file, overrides, size=given.size, factor=given.scale, model=model)
    if given.submit:
        from ablate.sweeps.slurm_jobs import checked, submit
        from ablate.sweeps.spec.references import earlier

        words = parse_overrides(given.submit)
        if {name for spec in specs for name in earlier(spec)} & {spec.name for spec in specs}:
            raise _mistake("--submit", "the stages of a file follow each other: submit one at a time with --size STAGE")
        if not given.dry_run:
            for spec in specs:
                print(submit(spec, words, workers=given.workers or 1, storage=given.storage, fresh=given.fresh))
            return 0
        checked(words, given.storage)
    wanted = {spec.name for spec in specs}
    staged = with_earlier(given.file, specs, overrides, factor=given.scale, model=model)
    return (_plan_sweeps if given.dry_run else _run_sweeps)(staged, wanted, given)


def _plan_sweeps(specs: Sequence[Sweep], wanted: set[str], given: argparse.Namespace) -> int:
    """Prints what each sweep would do; without its data what can be told of it, and status 2 for it cannot start."""
    from ablate.config.errors import DataError
    from ablate.sweeps.plan import outline, plan

    missing: list[str] = []
    for spec in specs:
        try:
            text = plan(spec, _workers(spec, given), given.storage, given.fresh and spec.name in wanted)
        except DataError as error:
            text = outline(spec)
            missing += [str(error)] if str(error) not in missing else []
        print(f"{text}\n" if spec is not specs[-1] else text, flush=True)
    for message in missing:
        print(f"ablate sweep: {message}", file=sys.stderr)
    return 2 if missing else 0


def _run_sweeps(specs: Sequence[Sweep], wanted: set[str], given: argparse.Namespace) -> int:
    """Runs or continues one sweep after another until Ctrl-C, of which those `wanted` were asked for, and the others
    are what those start from; the worst exit status."""
    from ablate.config.formatting import join_words
    from ablate.sweeps.spec.files import is_shared
    from ablate.sweeps.spec.references import earlier

    worst = 0
    for spec in specs:
        if spec.name not in wanted:
            after = [other.name for other in specs if spec.name in earlier(other)]
            print(f"{spec.name} goes first: {join_words(after)} start{'' if after[1:] else 's'} from its best trials.")
            if words := [word for word in given.words if is_shared(word.partition("=")[0])]:
                print(f"  {' '.join(words)} holds for it too.")
        worst = max(worst, _run_sweep(spec, given, given.fresh and spec.name in wanted))
        if worst == 130:
            break
    return worst


def _run_sweep(spec: Sweep, given: argparse.Namespace, fresh: bool) -> int:
    """Runs or continues one sweep and prints its report; the exit status."""
    from ablate.config.formatting import count_noun
    from ablate.reports.report import report
    from ablate.reports.terminal import render
    from ablate.sweeps.run import sweep

    console, command, workers = _console(), _command(given.verb), _workers(spec, given)
    try:
        record = sweep(spec, workers=workers, storage=given.storage, fresh=fresh, console=console)
    except KeyboardInterrupt as stop:
        aligned = any(spec.base(arm).procedure == "alignment" for arm in spec.all_arms)  # which has no checkpoints
        how = "begin again" if aligned else "go on from its last checkpoint"
        print(f"\nStopped. What was running will {how} with:\n  {command}", file=sys.stderr)
        if told := slurm.requeue(stop.args):
            print(told, file=sys.stderr)
        return 130
    render(report(record.title, storage=given.storage), console)
    failed = record.failed()
    if failed:
        print(f"{count_noun(failed, 'trial')} failed. The same command tries them again:\n  {command}", file=sys.stderr)
    return 1 if failed else 0


def _workers(spec: Sweep, given: argparse.Namespace) -> int:
    """Trials at a time."""
    if given.workers_per_gpu:
        from ablate.sweeps.gpu_sharing import workers_on_gpus

        return workers_on_gpus(spec, given.workers_per_gpu)
    return given.workers or 1


def _command(verb: str) -> str:
    """The command that was given, without what starts anew."""
    return " ".join([groups.command(), verb, *(word for word in sys.argv[2:] if word != "--fresh")])


def _all(given: argparse.Namespace) -> int:
    """Checks every file of sweeps/ and prints what each would do; 2 where one is not in order."""
    from ablate.config.yaml import parse_overrides
    from ablate.sweeps.plan import plans

    if not given.dry_run or given.submit or given.size:
        raise _mistake("--all", "goes with --dry-run, and without --submit and --size")
    words = [given.file, *given.words] if given.file else given.words
    model, broken = _model_scaled(given.scale, given.scale_model), 0
    for file, texts, error in plans("sweeps", parse_overrides(words), factor=given.scale, model=model):
        print("\n\n".join([f"{file}", *texts]) + "\n")
        if error:
            broken += 1
            print(f"ablate sweep: {error}\n", file=sys.stderr)
    return 2 if broken else 0


def _model_scaled(factor: float, model: bool) -> bool:
    """--scale-model, which needs --scale."""
    if model and factor == 1:
        raise _mistake("--scale-model", "shrinks the model by the factor of --scale; give that too")
    return model


def _mistake(path: str, text: str) -> AblateError:
    from ablate.config.errors import ConfigError, Problem

    return ConfigError([Problem(path, text)], "the command line")


def _ladder(given: argparse.Namespace) -> int:
    from pathlib import Path

    from ablate.config.yaml import parse_overrides
    from ablate.scaling.ladder import ladder, parameters_of, rungs
    from ablate.scaling.report import render, report_ladder
    from ablate.sweeps.plan import outline
    from ablate.sweeps.run import sweep

    known = rungs(given.file, given.sizes, parse_overrides(given.words), given.tokens_per_parameter)
    if given.extrapolate:
        parameters_of(given.extrapolate, known)  # a mistake is told before anything is trained
    if given.dry_run:
        print("\n\n".join(outline(rung.spec) for rung in known))
        return 0
    console, records = _console(stderr=given.json), []
    for rung in known:
        console.print(f"{rung.spec.name}: {rung.parameters:,} parameters in the layers", style="bold")
        try:
            records.append(sweep(rung.spec, workers=given.workers, storage=given.storage, console=console))
        except KeyboardInterrupt:
            print(f"\nStopped. It goes on with:\n  {_command('ladder')}", file=sys.stderr)
            return 130
    name = f"{Path(given.file).stem.removesuffix('-ladder')}-ladder"
    made = report_ladder(ladder(name, known, records, given.extrapolate))
    if given.json:
        print(json.dumps(made.to_dict(), indent=2))
    else:
        render(made, _console())
    return 1 if any(record.failed() for record in records) else 0


def _status(given: argparse.Namespace) -> int:
    from ablate.cli.status import render
    from ablate.sweeps.status import statuses

    found = statuses(given.sweep, given.storage)
    if given.json:
        print(json.dumps(found, indent=2))
    else:
        render(found, _console())
    return 0


def _report(given: argparse.Namespace) -> int:
    from ablate.reports.report import report

    made = report(given.sweep, storage=given.storage)
    if given.json:
        print(json.dumps(made.to_dict(), indent=2))
    else:
        from ablate.reports.terminal import render

        render(made, _console())
    return 0


def _plan(given: argparse.Namespace) -> int:
    from ablate.config.yaml import file_and_overrides
    from ablate.estimate.gpus import gpu_of
    from ablate.estimate.plan import Assumed
    from ablate.sweeps.gpu_plan import plan_file

    gpu = gpu_of(given.gpu, given.gpu_memory, given.gpu_flops)
    file, overrides = file_and_overrides(given.words)
    found = plan_file(file, overrides, Assumed(gpu, given.devices, given.nodes, given.mfu), given.size)
    if given.json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        from ablate.cli.plan import render

        render(found, _console())
    return 0


def _export(given: argparse.Namespace) -> int:
    from ablate.export.run import export

    print(export(given.source, given.to, given.output, given.ema))
    return 0


def _wordsim(given: argparse.Namespace) -> int:
    from ablate.cli.tables import table
    from ablate.config.formatting import format_number
    from ablate.diagnostics.wordsim import to_dict, wordsim
    from ablate.sweeps.donors import resolved

    names = {resolved(source): source for source in given.sources}
    similarities, overlaps = wordsim(list(names), given.pairs, given.neighbours)
    if given.json:
        print(json.dumps(to_dict(similarities, overlaps), indent=2))
        return 0
    console, rows = _console(), []
    for s in similarities:
        rows.append([names[s.model], s.layer, s.pairs, format_number(s.correlation), str(s.used), str(s.dropped)])
    header, numbers = ["model", "layer", "pairs", "Spearman", "used", "dropped"], {"Spearman", "used", "dropped"}
    console.print(table(header, rows, numbers))
    console.print("dropped: pairs with a word that is not one token of the model's tokenizer")
    if overlaps:
        shared = [[names[o.models[0]], names[o.models[1]], o.layer, f"{100 * o.shared:.1f} %"] for o in overlaps]
        console.print(table(["model", "and", "layer", f"of {given.neighbours} neighbours shared"], shared))
    return 0


def _diagnose(given: argparse.Namespace) -> int:
    from ablate.diagnostics.run import diagnose
    from ablate.evaluation.layer_removal import Benchmarks

    found = diagnose(
        given.models,
        given.what,
        tokens=given.tokens,
        data=given.data,
        output=given.output,
        positions=given.positions,
        batch_tokens=given.batch_tokens,
        device=given.device,
        dtype=given.dtype,
        trust_remote_code=given.trust_remote_code,
        benchmarks=Benchmarks(given.tasks, given.task_data, given.limit) if given.tasks else None,
    )
    if given.json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        from ablate.cli.diagnose import render

        render(found, _console())
    return 0


def _evaluate(given: argparse.Namespace) -> int:
    from ablate.cli.evaluate import How, evaluate, render, to_dict, write

    how = How(given.tasks, given.task_data, given.shots, given.limit, given.batch_size)
    found = evaluate(given.models, how, given.storage)
    if given.output:
        write(found, given.output)
    if given.json:
        print(json.dumps(to_dict(found), indent=2))
    else:
        render(found, _console())
    return 0


def _align(given: argparse.Namespace) -> int:
    from dataclasses import fields

    from ablate.cli.align import How, align
    from ablate.config.building import build
    from ablate.experiment.align import AlignConfig

    words = {name: value for name in AlignConfig.model_fields if (value := getattr(given, name, None)) is not None}
    own = {field.name: getattr(given, field.name) for field in fields(How) if field.name != "align"}
    found = align(given.model, How(build(AlignConfig, words, source="the command line"), **own), given.storage)
    if given.json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        console = _console()
        console.print(found.told, highlight=False, markup=False)
        for name, value in found.metrics.items():
            console.print(f"{name}  {value:.4g}", highlight=False)
        console.print(f"run {found.run_id}; for transformers: {found.folder}", highlight=False, markup=False)
    return 0


def _ui(given: argparse.Namespace) -> int:
    from ablate.cli.ui import serve

    return serve(given.host, given.port)


def _list(given: argparse.Namespace) -> int:
    from ablate.cli.catalogue import catalogue, render

    found = catalogue(given.what, _plugins(given.words))
    if given.json:
        print(json.dumps(found, indent=2))
    else:
        render(found, _console())
    return 0


def _plugins(words: Sequence[str]) -> list[str]:
    """The files of `plugins=FILE.py` words, the only ones that a verb without a configuration takes."""
    from ablate.config.errors import ConfigError, Problem
    from ablate.config.plugins import merge_plugins
    from ablate.config.yaml import parse_overrides

    overrides = parse_overrides(words)
    if unknown := [key for key in overrides if key != "plugins"]:
        problems = [Problem(key, "unknown key. Accepted: plugins", overrides[key]) for key in unknown]
        raise ConfigError(problems, "the command line")
    return [str(file) for file in merge_plugins(overrides.get("plugins"))]


def _config(given: argparse.Namespace) -> int:
    from ablate.config.yaml import file_and_overrides
    from ablate.experiment.tree import Experiment

    file, overrides = file_and_overrides(given.words)
    print(Experiment.load(file, overrides).to_yaml(), end="")
    return 0


def _schema(given: argparse.Namespace) -> int:
    from ablate.config.plugins import load
    from ablate.config.schema import json_schema
    from ablate.experiment.tree import Experiment
    from ablate.sweeps.spec.sweep import Sweep

    load(_plugins(given.words), source="the command line")
    print(json.dumps(json_schema(Sweep if given.sweep else Experiment), indent=2))
    return 0
