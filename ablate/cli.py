"""The command line: parsing and printing only. Whatever is heavy is imported by the verb that needs it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ablate import ranks
from ablate.errors import AblateError

if TYPE_CHECKING:
    from rich.console import Console

_EXAMPLES = """\
examples:
  ablate train norm=mix norm.alpha=0.25 optimizer.lr=3e-3
  ablate train model=vit-digits norm=post trainer.max_steps=500
  ablate train data=text data.files='books/*.txt' data.tokenizer=tokenizer.json model=llama-9m
  ablate sweep sweeps/demo.yaml --workers 2
  ablate report demo
  ablate plan model=llama-7b model.vocab_size=32000 data.seq_len=2048 --devices 8
  ablate export RUN_ID --to hf --output exported
  ablate ui

exit status: 0 done, 1 some trials failed, 2 a mistake in what was given or a store that is away, 130 stopped by Ctrl-C
"""
_OVERRIDES = "key=value: a dotted path of the configuration and a YAML value, such as optimizer.lr=1e-3"
_PLUGINS = "Python files with kinds of your own, such as plugins=my_norm.py"
_SWEEP = """\
ablate sweep sweeps/demo.yaml --workers 2
  ablate sweep sweeps/demo.yaml --submit cluster=local --workers 2
  ablate sweep my.yaml --storage postgresql://me@db/ablate --submit slurm.partition=gpu timeout_min=600 --workers 32"""
_PLAN = """\
ablate plan model=llama-1b model.vocab_size=32000 trainer.batch_size=512
  ablate plan model=llama-7b model.vocab_size=32000 trainer.strategy=fsdp --gpu h100-80gb --devices 8
  ablate plan sweeps/demo.yaml --gpu rtx-4090"""
_EXPORT = "ablate export RUN_ID --to hf --output exported"
_FORMS = "consolidated (torch), safetensors, or hf (a folder for transformers)"
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
    many.add_argument("file", metavar="FILE.yaml", help="the sweep file")
    many.add_argument("words", nargs="*", default=[], metavar="key=value", help=f"{_OVERRIDES}, or budget.trials=20")
    many.add_argument("--dry-run", action="store_true", help="print the plan and its cost, run nothing")
    many.add_argument("--workers", type=_positive, default=1, metavar="N", help="trials at a time (default: 1)")
    many.add_argument("--fresh", action="store_true", help="start anew; the old trials stay as an earlier generation")
    many.add_argument("--storage", metavar="URL", help="Optuna storage (default: SQLite under mlruns/)")
    many.add_argument("--submit", nargs="+", metavar="KEY=VALUE", help=_SUBMIT)

    state = verb("status", "trials done, running, pruned, diverged, failed; best so far", "ablate status demo")
    state.add_argument("sweep", nargs="?", metavar="SWEEP", help="name of a sweep (default: all)")
    state.add_argument("--storage", metavar="URL", help="Optuna storage (default: SQLite under mlruns/)")
    state.add_argument("--json", action="store_true", help="print as JSON")

    told = verb("report", "compare the arms of a sweep: table, figures, where it is in MLflow", "ablate report demo")
    told.add_argument("sweep", metavar="SWEEP", help="name of a sweep")
    told.add_argument("--storage", metavar="URL", help="Optuna storage (default: SQLite under mlruns/)")
    told.add_argument("--json", action="store_true", help="print as JSON")

    cost = verb("plan", "what an experiment or a sweep needs of GPUs: memory, FLOPs, time", _PLAN)
    cost.add_argument("words", nargs="*", default=[], metavar="[FILE.yaml] key=value", help=_OVERRIDES)
    cost.add_argument("--gpu", default="h100-80gb", metavar="NAME", help="kind of GPU (default: h100-80gb)")
    cost.add_argument(
        "--devices", type=_positive, metavar="N", help="GPUs of one machine (default: trainer.devices, 1)"
    )
    cost.add_argument("--nodes", type=_positive, metavar="N", help="machines (default: trainer.nodes, 1)")
    cost.add_argument("--mfu", type=_share, metavar="SHARE", help="model FLOPs utilisation (default: by size)")
    cost.add_argument("--gpu-memory", type=_above_zero, metavar="GIB", help="memory of another kind of GPU")
    cost.add_argument("--gpu-flops", type=_above_zero, metavar="TFLOPS", help="its peak in the arithmetic that is used")
    cost.add_argument("--json", action="store_true", help="print as JSON, memory in bytes")

    out = verb("export", "write a trained model for other programs", _EXPORT)
    out.add_argument("source", metavar="CHECKPOINT_OR_RUN", help="a run's id, or the path of its last.ckpt")
    out.add_argument("--to", required=True, metavar="FORM", help=_FORMS)
    out.add_argument("--output", required=True, metavar="FOLDER", help="a folder that does not exist yet")

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


def _above_zero(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0, given {text}")
    return value


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
    from ablate.config import Experiment
    from ablate.reading import file_and_overrides
    from ablate.training.foreground import train_in_foreground

    file, overrides = file_and_overrides(given.words)
    if given.resume:
        from ablate.training.train import stored_experiment

        experiment = stored_experiment(given.resume, overrides if file is None else {"FILE.yaml": file})
    else:
        experiment = Experiment.load(file, overrides)
    console = _console(stderr=given.json)
    result = train_in_foreground(experiment, console, given.resume)
    if given.json:
        print(json.dumps(result.to_dict(), indent=2))
    return 130 if result.status == "interrupted" else 0


def _sweep(given: argparse.Namespace) -> int:
    from ablate.reading import parse_overrides
    from ablate.sweeping.spec import Sweep

    spec = Sweep.load(given.file, parse_overrides(given.words))
    console = _console()
    if given.submit:
        from ablate.sweeping.submit import checked, submit

        words = parse_overrides(given.submit)
        if not given.dry_run:
            print(submit(spec, words, workers=given.workers, storage=given.storage, fresh=given.fresh))
            return 0
        checked(words, given.storage)
    if given.dry_run:
        from ablate.sweeping.plan import plan

        print(plan(spec, given.workers, given.storage, given.fresh))
        return 0
    from ablate.reporting.tables import render
    from ablate.sweeping.run import sweep

    command = " ".join([ranks.command(), "sweep", *(word for word in sys.argv[2:] if word != "--fresh")])
    try:
        record = sweep(spec, workers=given.workers, storage=given.storage, fresh=given.fresh, console=console)
    except KeyboardInterrupt:
        print(f"\nStopped. What was running will go on from its last checkpoint with:\n  {command}", file=sys.stderr)
        return 130
    from ablate.reporting.report import report
    from ablate.words import plural

    render(report(record.title, storage=given.storage), console)
    failed = record.failed()
    if failed:
        print(f"{plural(failed, 'trial')} failed. The same command tries them again:\n  {command}", file=sys.stderr)
    return 1 if failed else 0


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


def _plan(given: argparse.Namespace) -> int:
    from ablate.planning.gpus import gpu_of
    from ablate.planning.plan import Assumed, plan_file
    from ablate.reading import file_and_overrides

    gpu = gpu_of(given.gpu, given.gpu_memory, given.gpu_flops)
    file, overrides = file_and_overrides(given.words)
    found = plan_file(file, overrides, Assumed(gpu, given.devices, given.nodes, given.mfu))
    if given.json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        from ablate.planning.tables import render

        render(found, _console())
    return 0


def _export(given: argparse.Namespace) -> int:
    from ablate.exporting.export import export

    print(export(given.source, given.to, given.output))
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
