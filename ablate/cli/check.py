"""`ablate check`: test that what a plugin registers does what it says."""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import asdict

from ablate.cli.arguments import Verbs, add_json, add_verb
from ablate.cli.output import build_console, build_table, print_json
from ablate.config.formatting import count_noun, join_words
from ablate.config.lazy import postpone_imports
from ablate.config.yaml import parse_overrides

with postpone_imports():
    from ablate.diagnostics import checks

_EXAMPLE = """\
ablate check my_norm.py
  ablate check my_model.py norm.qk=rmsnorm
  ablate check my_task.py data=my_data data.seq_len=32 --json
  ablate check placement:deepnorm"""
_WHAT = "a Python file that registers kinds, or PART:KIND for one that comes with Ablate, such as placement:deepnorm"
_WORDS = {True: "passed", False: "FAILED", None: "not checked"}


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    text = "test that the kinds of a plugin do what they say"
    parser = add_verb(verbs, "check", text, _EXAMPLE, run)
    parser.add_argument("what", metavar="FILE.py", help=_WHAT)
    parser.add_argument("words", nargs="*", metavar="key=value", help="settings for the experiments of the checks")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print a table of all checks and return 1 if one has failed."""
    settings = parse_overrides(options.words)
    console = build_console(stderr=options.json)
    findings = []
    with console.status("checking") as status:
        for finding in checks.check(options.what, settings):
            findings.append(finding)
            status.update(f"{finding.part} {finding.kind}: {finding.check}")
    counts = Counter(finding.passed for finding in findings)
    if options.json:
        print_json([asdict(finding) for finding in findings])
    else:
        rows = [[f"{f.part} {f.kind}", f.check, _WORDS[f.passed], f.reason] for f in findings]
        console.print(build_table(["kind", "check", "result", "reason or measured value"], rows))
        told = [f"{counts[passed]} {word.lower()}" for passed, word in _WORDS.items() if counts[passed]]
        console.print(f"{count_noun(len(findings), 'check')}: {join_words(told)}.")
    return 1 if counts[False] else 0
