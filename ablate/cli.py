"""The command line: parsing and printing only. Whatever is heavy is imported by the verb that needs it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ablate import ranks, slurm
from ablate.errors import AblateError

if TYPE_CHECKING:
    from rich.console import Console

    from ablate.sweeping.spec import Sweep

_EXAMPLES = """\
examples:
  ablate train norm=mix norm.alpha=0.25 optimizer.lr=3e-3
  ablate train model=vit-digits norm=post trainer.max_steps=500
  ablate train data=text data.files='books/*.txt' data.tokenizer=tokenizer.json model=llama-9m
  ablate sweep sweeps/demo.yaml --workers 2
  ablate report demo
  ablate ladder sweeps/demo-ladder.yaml --workers 2
  ablate ui

exit status: 0 done, 1 some trials failed, 2 a mistake in what was given or a store that is away, 130 stopped by Ctrl-C
"""
_OVERRIDES = "key=value: a dotted path of the configuration and a YAML value, such as optimizer.lr=1e-3"
_PLUGINS = "Python files with kinds of your own, such as plugins=my_norm.py"
_SWEEP = """\
ablate sweep sweeps/demo.yaml --workers 2
  ablate sweep sweeps/mixln-table1.yaml --size 71m --scale 0.01
  ablate sweep --all --dry-run
  ablate sweep sweeps/demo.yaml --submit cluster=local --workers 2
  ablate sweep my.yaml --storage postgresql://me@db/ablate --submit slurm.partition=gpu timeout_min=600 --workers 32"""
_LADDER = """\
ablate ladder sweeps/demo-ladder.yaml --extrapolate 9m --workers 2
  ablate ladder sweeps/mixln-table1.yaml --sizes 9m,20m,35m,60m --tokens-per-parameter 20 --extrapolate 1b"""
_SIZES = "sizes of the file or of named models, such as 9m,20m,35m (default: all sizes of the file)"
_PER_PARAMETER = "tokens for each weight of the layers (default: as in the file)"
_SCALE = "run this share of the tokens, above 0 and at most 1; the report says so, and studies do not mix (default: 1)"
_SUBMIT = (
    "submit each worker as a job of a cluster, and return at once: parameters of submitit, such as "
    "slurm.partition=gpu timeout_min=600 gpus_per_node=1 cpus_per_task=8 mem_gb=32, or cluster=local"
)


def parser() -> argparse.ArgumentParser:
    """The verbs and their options."""
    raw = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(
        prog="ablate",
        description="Ablations and sweeps of Transformer normalisation, on language and on vision.",
        epilog=_EXAMPLES,
        formatter_class=raw,
    )
    top.add_argument("--version", action="store_true", help="print the version")
    verbs = top.add_subparsers(dest="verb", metavar="VERB")

    def verb(name: str, text: str, example: str) -> argparse.ArgumentParser:
        return verbs.add_parser(name, help=text, description=text, epilog=f"example:\n  {example}", formatter_class=raw)

    one = verb("train", "train one experiment", "ablate train norm=mix norm.alpha=0.25 trainer.max_steps=100")
    one.add_argument("words", nargs="*", metavar="[FILE.yaml] key=value", help=_OVERRIDES)
    one.add_argument("--json", action="store_true", help="print the result as JSON")
    one.add_argument("--resume", metavar="RUN_ID", help="continue an interrupted run from its last checkpoint")

    many = verb("sweep", "run or continue a sweep", _SWEEP)
    many.add_argument("file", nargs="?", metavar="FILE.yaml", help="the sweep file")
    many.add_argument("words", nargs="*", default=[], metavar="key=value", help=f"{_OVERRIDES}, or budget.trials=20")
    many.add_argument(
        "--size", metavar="SIZE", help="of a file with sizes: this one (default: all, the smallest first)"
    )
    many.add_argument("--scale", type=_share, default=1.0, metavar="X", help=_SCALE)
    many.add_argument("--scale-model", action="store_true", help="shrink the layers of the model by X as well")
    many.add_argument("--all", action="store_true", help="with --dry-run: check and plan every file of sweeps/")
    many.add_argument("--dry-run", action="store_true", help="print the plan and its cost, run nothing")
    many.add_argument("--workers", type=_positive, default=1, metavar="N", help="trials at a time (default: 1)")
    many.add_argument("--fresh", action="store_true", help="start anew; the old trials stay as an earlier generation")
    many.add_argument("--storage", metavar="URL", help="Optuna storage (default: SQLite under mlruns/)")
    many.add_argument("--submit", nargs="+", metavar="KEY=VALUE", help=_SUBMIT)

    steps = verb("ladder", "the arms of a sweep at several sizes, and whether their difference stays", _LADDER)
    steps.add_argument("file", metavar="FILE.yaml", help="the sweep file")
    steps.add_argument("words", nargs="*", default=[], metavar="key=value", help=f"{_OVERRIDES}, over every size")
    steps.add_argument("--sizes", type=_names, default=[], metavar="A,B,...", help=_SIZES)
    steps.add_argument("--tokens-per-parameter", type=_positive, metavar="N", help=_PER_PARAMETER)
    steps.add_argument("--extrapolate", metavar="SIZE", help="what the fits say of this size, and how surely")
    steps.add_argument("--dry-run", action="store_true", help="print the plan of each size, run nothing")
    steps.add_argument("--workers", type=_positive, default=1, metavar="N", help="trials at a time (default: 1)")
    steps.add_argument("--storage", metavar="URL", help="Optuna storage (default: SQLite under mlruns/)")
    steps.add_argument("--json", action="store_true", help="print what was found as JSON")

    state = verb("status", "trials done, running, pruned, diverged, failed; best so far", "ablate status demo")
    state.add_argument("sweep", nargs="?", metavar="SWEEP", help="name of a sweep (default: all)")
    state.add_argument("--storage", metavar="URL", help="Optuna storage (default: SQLite under mlruns/)")
    state.add_argument("--json", action="store_true", help="print as JSON")

    told = verb("report", "compare the arms of a sweep: table, figures, where it is in MLflow", "ablate report demo")
    told.add_argument("sweep", metavar="SWEEP", help="name of a sweep")
    told.add_argument("--storage", metavar="URL", help="Optuna storage (default: SQLite under mlruns/)")
    told.add_argument("--json", action="store_true", help="print as JSON")

    ui = verb("ui", "open the MLflow UI on this project's store, on loopback", "ablate ui --port 5000")
    ui.add_argument("--port", type=_port, default=5000, metavar="N", help="port (default: 5000)")
    ui.add_argument("--host", default="127.0.0.1", help="address to bind to (default: 127.0.0.1, this machine only)")

    known = verb("list", "what there is to choose from", "ablate list placements")
    choices = ["placements", "norms", "models", "data", "sweeps"]
    known.add_argument("what", choices=choices, metavar=f"{{{','.join(choices)}}}")
    known.add_argument("words", nargs="*", default=[], metavar="plugins=FILE.py", help=_PLUGINS)
    known.add_argument("--json", action="store_true", help="print as JSON")

    resolved = verb("config", "print the resolved configuration as YAML", "ablate config model=llama-71m norm=lns")
    resolved.add_argument("words", nargs="*", metavar="[FILE.yaml] key=value", help=_OVERRIDES)

    schema = verb("schema", "print the JSON schema of the configuration, for editors", "ablate schema > ablate.json")
    schema.add_argument("words", nargs="*", default=[], metavar="plugins=FILE.py", help=_PLUGINS)
    schema.add_argument("--sweep", action="store_true", help="of a sweep file instead of an experiment")
    return top


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
    return ranks.led(lambda: _run(given))


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


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, given {text}")
    return int(text)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"must be a number above 0 and at most 1, given {text}")
    return share


def _port(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"must be a number from 1 to 65535, given {text}")
    return int(text)


def _console(stderr: bool = False) -> Console:
    from rich.console import Console

    class Pipe(Console):
        def on_broken_pipe(self) -> None:  # rich would exit with 1, which means failed trials here
            raise BrokenPipeError

    return Pipe(stderr=stderr, soft_wrap=True, highlight=False)


# ---------------------------------------------------------------------------------------------------- the verbs


def _train(given: argparse.Namespace) -> int:
    from ablate import tracking
    from ablate.config import Experiment
    from ablate.launch import launch
    from ablate.reading import file_and_overrides
    from ablate.training.foreground import train_in_foreground
    from ablate.training.trainer import to_launch

    file, overrides = file_and_overrides(given.words)
    if not given.resume and (before := slurm.remembered(tracking.store())):
        given.resume, file, overrides = before, None, {}
    if given.resume:
        from ablate.training.train import stored_experiment

        experiment = stored_experiment(given.resume, overrides if file is None else {"FILE.yaml": file})
    else:
        experiment = Experiment.load(file, overrides)
    if devices := to_launch(experiment.trainer):
        return launch(devices)
    console = _console(stderr=given.json)
    result = train_in_foreground(experiment, console, given.resume)
    if given.json:
        print(json.dumps(result.to_dict(), indent=2))
    return 130 if result.status == "interrupted" else 0


def _sweep(given: argparse.Namespace) -> int:
    from ablate.reading import parse_overrides
    from ablate.sweeping.files import load_sweeps

    if given.all:
        return _all(given)
    if given.file is None:
        raise _mistake("", "expected the sweep file, FILE.yaml, or --all --dry-run")
    overrides = parse_overrides(given.words)
    specs = load_sweeps(
        given.file, overrides, size=given.size, factor=given.scale, model=_model_scaled(given.scale, given.scale_model)
    )
    if given.submit:
        from ablate.sweeping.submit import checked, submit

        words = parse_overrides(given.submit)
        if not given.dry_run:
            for spec in specs:
                print(submit(spec, words, workers=given.workers, storage=given.storage, fresh=given.fresh))
            return 0
        checked(words, given.storage)
    if given.dry_run:
        from ablate.sweeping.plan import plan

        print("\n\n".join(plan(spec, given.workers, given.storage, given.fresh) for spec in specs))
        return 0
    return _run_sweeps(specs, given)


def _run_sweeps(specs: Sequence[Sweep], given: argparse.Namespace) -> int:
    """Runs or continues one sweep after another until Ctrl-C; the worst exit status."""
    worst = 0
    for spec in specs:
        worst = max(worst, _run_sweep(spec, given))
        if worst == 130:
            break
    return worst


def _run_sweep(spec: Sweep, given: argparse.Namespace) -> int:
    """Runs or continues one sweep and prints its report; the exit status."""
    from ablate.reporting.report import report
    from ablate.reporting.tables import render
    from ablate.sweeping.run import sweep
    from ablate.words import plural

    console, command = _console(), _command(given.verb)
    try:
        record = sweep(spec, workers=given.workers, storage=given.storage, fresh=given.fresh, console=console)
    except KeyboardInterrupt as stop:
        print(f"\nStopped. What was running will go on from its last checkpoint with:\n  {command}", file=sys.stderr)
        if told := slurm.requeue(stop.args):
            print(told, file=sys.stderr)
        return 130
    render(report(record.title, storage=given.storage), console)
    failed = record.failed()
    if failed:
        print(f"{plural(failed, 'trial')} failed. The same command tries them again:\n  {command}", file=sys.stderr)
    return 1 if failed else 0


def _command(verb: str) -> str:
    """The command that was given, without what starts anew."""
    return " ".join([ranks.command(), verb, *(word for word in sys.argv[2:] if word != "--fresh")])


def _all(given: argparse.Namespace) -> int:
    """Checks every file of sweeps/ and prints what each would do; 2 where one is not in order."""
    from ablate.reading import parse_overrides
    from ablate.sweeping.plan import plans

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
    from ablate.errors import ConfigError, Problem

    return ConfigError([Problem(path, text)], "the command line")


def _ladder(given: argparse.Namespace) -> int:
    from pathlib import Path

    from ablate.reading import parse_overrides
    from ablate.recipes.ladder import ladder, parameters_of, rungs
    from ablate.recipes.ladder_report import render, report_ladder
    from ablate.sweeping.plan import outline
    from ablate.sweeping.run import sweep

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
    from ablate.sweeping.status import render, statuses

    found = statuses(given.sweep, given.storage)
    if given.json:
        print(json.dumps(found, indent=2))
    else:
        render(found, _console())
    return 0


def _report(given: argparse.Namespace) -> int:
    from ablate.reporting.report import report

    made = report(given.sweep, storage=given.storage)
    if given.json:
        print(json.dumps(made.to_dict(), indent=2))
    else:
        from ablate.reporting.tables import render

        render(made, _console())
    return 0


def _ui(given: argparse.Namespace) -> int:
    from ablate.ui import serve

    return serve(given.host, given.port)


def _list(given: argparse.Namespace) -> int:
    from ablate.catalogue import catalogue, render

    found = catalogue(given.what, _plugins(given.words))
    if given.json:
        print(json.dumps(found, indent=2))
    else:
        render(found, _console())
    return 0


def _plugins(words: Sequence[str]) -> list[str]:
    """The files of `plugins=FILE.py` words, the only ones that a verb without a configuration takes."""
    from ablate.errors import ConfigError, Problem
    from ablate.plugins import named
    from ablate.reading import parse_overrides

    overrides = parse_overrides(words)
    if unknown := [key for key in overrides if key != "plugins"]:
        problems = [Problem(key, "unknown key. Accepted: plugins", overrides[key]) for key in unknown]
        raise ConfigError(problems, "the command line")
    return [str(file) for file in named(overrides.get("plugins"))]


def _config(given: argparse.Namespace) -> int:
    from ablate.config import Experiment
    from ablate.reading import file_and_overrides

    file, overrides = file_and_overrides(given.words)
    print(Experiment.load(file, overrides).to_yaml(), end="")
    return 0


def _schema(given: argparse.Namespace) -> int:
    from ablate.config import Experiment, json_schema
    from ablate.plugins import load
    from ablate.sweeping.spec import Sweep

    load(_plugins(given.words), source="the command line")
    print(json.dumps(json_schema(Sweep if given.sweep else Experiment), indent=2))
    return 0
