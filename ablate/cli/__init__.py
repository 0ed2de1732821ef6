"""The command line: a module for each verb, with its parser, its call and its output.

A verb imports nothing heavy until it is called (`ablate.config.lazy`).
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import errno
import gc
import itertools
import os
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

import ablate
from ablate import tracking
from ablate.cli import (
    align,
    check,
    compare,
    completion,
    config,
    diagnose,
    evaluate,
    export,
    judge,
    plan,
    publish,
    report,
    status,
    sweep,
    train,
    ui,
    verify,
    work,
)
from ablate.cli import list as list_choices  # the module takes the place of the builtin in this file
from ablate.cli.output import replace_unprintable, reserve_stdout
from ablate.config.errors import AblateError, did_you_mean, shorten_values
from ablate.config.foreign import translate
from ablate.config.logs import log_to_stderr, wrap_for
from ablate.config.yaml import SUFFIXES
from ablate.distributed import groups

_DASHED = re.compile(r"--\w+\.[\w.]+=")  # a setting with dashes in front

VERBS = (
    train, sweep, work, status, report, judge, publish, verify, compare, plan, export, diagnose,
    evaluate, align, ui, list_choices, config, check,
)  # fmt: skip
"""In the order of `ablate --help`."""
_EXAMPLES = """\
examples:
  ablate train norm=mix norm.alpha=0.25 optimizer.lr=3e-3
  ablate train model=vit-digits norm=post trainer.max_steps=500
  ablate train data=text data.files='books/*.txt' data.tokenizer=tokenizer.json model=llama-9m
  ablate sweep demo --workers 2
  ablate report demo
  ablate sweep demo-ladder --workers 2
  ablate judge runs.csv --baseline pre
  ablate publish demo -o published/demo
  ablate verify published/demo
  ablate compare published/demo demo
  ablate plan model=llama-7b model.vocab_size=32000 data.seq_len=2048 --devices 8
  ablate export RUN_ID --to hf --output exported
  ablate diagnose sweep:demo/pre sweep:demo/mix
  ablate diagnose demo --what figure:removal
  ablate evaluate RUN_ID --tasks arc_easy,piqa
  ablate align RUN_ID --method dpo --pairs preferences.json
  ablate ui

exit status: 0 done, 1 some trials failed, 2 a mistake in the input, or an unreachable database or server,
130 stopped by Ctrl-C
"""


_DISK = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT}  # of permissions and full disks


class _Parser(argparse.ArgumentParser):
    """Reports a wrong argument in one line, like every other mistake, and not below the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {shorten_values(message.removeprefix('argument '))}\n")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser with all verbs."""
    parser = _Parser(
        prog="ablate",
        description="Ablations and sweeps of Transformer normalisation, on language and on vision.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    text = 'print the code that completes commands in a shell: eval "$(ablate --completion bash)" in ~/.bashrc'
    parser.add_argument("--completion", choices=completion.SHELLS, help=text)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    for verb in VERBS:
        verb.add_parser(verbs)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, print its errors as messages, and return its exit status."""
    parser = build_parser()
    completion.complete(parser)
    options = _parse(parser, arguments)
    if options.version:
        print(ablate.__version__)
        return 0
    if options.completion:
        completion.print_code(options.completion)
        return 0
    if not options.verb:
        parser.print_help()
        return 2
    atexit.register(gc.freeze)  # at its end Python looks for garbage among all that was imported, for two seconds
    replace_unprintable()
    with log_to_stderr(), groups.lead() as ending:
        try:
            with reserve_stdout() if getattr(options, "json", False) else contextlib.nullcontext():
                if ending.leads:
                    ending.status = options.call(options)
        except (AblateError, KeyboardInterrupt, OSError) as error:
            if (status := _explain(error, options.verb)) is None:
                raise
            ending.status = status
    return ending.status


def _parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options. Exits with status 2 for any other."""
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    verb = words[0] if words else ""
    names = [module.__name__.rpartition(".")[2] for module in VERBS]
    if verb and verb not in names and not verb.startswith("-"):
        hint = translate(verb, _name_file(words)) or did_you_mean(verb, names)
        parser.error(f"unknown verb {verb!r}. Accepted: {', '.join(names)}.{hint}")
    options, after_options = parser.parse_known_args(arguments)
    if after_options:  # key=value words that stand behind an option, which argparse does not take
        if not hasattr(options, "words") or any(word.startswith("-") for word in after_options):
            file, known = _name_file(words), verb if verb in names else "train"
            hints = [translate(word.partition("=")[0], file, verb=known) for word in after_options]
            hints += [f" Write {word[2:]}, without dashes." for word in after_options if _DASHED.match(word)]
            hint = next((f".{hint}" for hint in hints if hint), "")
            parser.error(tracking.redact(f"unrecognized arguments: {' '.join(after_options)}{hint}"))
        options.words += after_options
    return options


def _name_file(words: Sequence[str]) -> str:
    """Return the file that stands alone, or that an option such as --config-name of Hydra names, by its name in a
    command of ours."""
    for word, after in itertools.zip_longest(words, words[1:], fillvalue=""):
        option, _, value = word.partition("=")
        if option in ("--config", "--config-name", "-c") and (named := value or after):
            return named if named.endswith(SUFFIXES) else f"{named}.yaml"
    return next((word for word in words if word.endswith(SUFFIXES)), "FILE.yaml")


def _explain(error: BaseException, verb: str) -> int | None:
    """Print an error of the user or of the system as a message, and return the exit status; None for any other."""
    if isinstance(error, KeyboardInterrupt):
        print("stopped", file=sys.stderr)
        return 130
    if isinstance(error, BrokenPipeError):  # the reader, such as head, has gone: nothing to report, unless work was cut
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141 if verb in ("train", "sweep", "work") else 0
    if isinstance(error, AblateError):
        message = tracking.redact(str(error))
    elif isinstance(error, OSError) and error.errno in _DISK:
        place = f"{error.filename}: " if error.filename else "a file cannot be written: "
        message = f"{place}{error.strerror}."
    else:
        return None
    print(wrap_for(sys.stderr, f"ablate {verb}: {message}"), file=sys.stderr)
    return 2
