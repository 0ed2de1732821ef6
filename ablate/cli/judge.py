"""`ablate judge`: the verdict on results that are already there."""

from __future__ import annotations

import argparse
from pathlib import Path

from ablate import tracking
from ablate.cli.arguments import (
    Verbs,
    add_json,
    add_verb,
    build_error,
    parse_above_zero,
    parse_names,
    parse_positive,
    parse_sizes,
)
from ablate.cli.output import build_console, print_json, repeat_command
from ablate.config.lazy import postpone_imports

with postpone_imports():
    from ablate.addons.judging import judge as judging
    from ablate.addons.judging import stores
    from ablate.reports import terminal

_EXAMPLE = """\
ablate judge runs.csv --baseline pre
  ablate judge runs.csv --arm method --seed seed --value val_loss --baseline adamw --effect 0.01 --markdown
  ablate judge runs.csv --baseline pre --by size --looks 3,5 -o verdict
  ablate judge runs.csv --baseline pre --plan --effect 0.02
  ablate judge mlflow:my-experiment --arm norm --value val_loss --baseline pre --write
  ablate judge optuna:sqlite:///study.db/my-study --arm norm --seed seed --baseline pre
  ablate judge runs --value val/loss --names '(?P<arm>.+)-s(?P<seed>[0-9]+)' --baseline pre
  ablate judge wandb --arm arm --value val/loss --baseline pre"""


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    text = "judge results that are already there: better, worse, equivalent or inconclusive for each arm"
    parser = add_verb(verbs, "judge", text, _EXAMPLE, run)
    parser.add_argument(
        "source",
        nargs="+",
        metavar="SOURCE",
        type=tracking.remember_address,
        help="files (CSV, TSV, JSON, JSON lines, parquet), a folder of event files of TensorBoard or of offline runs "
        "of W&B, mlflow:NAME (at MLFLOW_TRACKING_URI), optuna:URL/STUDY or wandb:ENTITY/PROJECT",
    )
    columns = parser.add_argument_group("columns", "guessed if not given; the output says how")
    columns.add_argument("--arm", metavar="COLUMN", help="which arm a run is of")
    columns.add_argument("--seed", metavar="COLUMN", help="its seed: runs of one seed are paired")
    columns.add_argument("--value", metavar="COLUMN", help="what is compared")
    columns.add_argument("--baseline", metavar="ARM", action="append", help="the arm that the others are compared with")
    side = columns.add_mutually_exclusive_group()
    side.add_argument("--higher-is-better", dest="maximize", action="store_true", default=None)
    side.add_argument("--lower-is-better", dest="maximize", action="store_false")
    columns.add_argument("--run", metavar="COLUMN", help="where rows are steps: which run a row is of")
    columns.add_argument("--step", metavar="COLUMN", help="where rows are steps: the step; none: each row is a run")
    columns.add_argument(
        "--status",
        metavar="COLUMN[=WORD,...]",
        help="how a run ended, and words that count as failed besides diverged, nan and inf",
    )
    columns.add_argument("--pair-by", type=parse_names, default=[], metavar="COLUMN,...", help="pair by these instead")
    columns.add_argument("--unpaired", action="store_true", help="pair no runs")
    columns.add_argument(
        "--by",
        type=parse_names,
        default=[],
        metavar="COLUMN,...",
        help="compare at each level, such as size; one family",
    )
    columns.add_argument(
        "--where", action="append", default=[], metavar="COLUMN=VALUE", help="judge these rows alone; repeatable"
    )
    columns.add_argument(
        "--names", metavar="PATTERN", help="a regular expression with (?P<arm>...) and (?P<seed>...), for names of runs"
    )
    rules = parser.add_argument_group("rules")
    rules.add_argument("--effect", type=parse_above_zero, metavar="X", help="the smallest difference that matters")
    rules.add_argument(
        "--trivial", type=parse_above_zero, metavar="LOSS", help="of a predictor that ignores its inputs: what is stuck"
    )
    rules.add_argument(
        "--looks", type=parse_sizes, default=[], metavar="N,...", help="seeds at which you looked before"
    )
    rules.add_argument(
        "--planned", type=parse_positive, metavar="N", help="seeds that were planned before the first look"
    )
    rules.add_argument(
        "--looks-file",
        metavar="FILE",
        help="counts the looks (default: beside a single file, FILE.looks.json; none: no file)",
    )
    shown = parser.add_argument_group("output")
    shown.add_argument("--plan", action="store_true", help="how many seeds find --effect, by the spread in the table")
    shown.add_argument("--markdown", action="store_true", help="print Markdown, for a pull request")
    shown.add_argument(
        "--output",
        "-o",
        type=Path,
        metavar="FOLDER",
        help="write verdict.html, verdict.md, verdict.json and the figure",
    )
    shown.add_argument(
        "--write", action="store_true", help="of mlflow:NAME: write verdict, figure and link into its description"
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print the verdict."""
    baselines = options.baseline or [None]
    if len(baselines) > 1:
        raise build_error("--baseline", f"given {len(baselines)} times ({', '.join(baselines)}); all arms have one")
    if options.write and not options.source[0].startswith("mlflow:"):
        raise build_error("--write", f"goes with mlflow:NAME, given {tracking.redact(' '.join(options.source))}")
    if options.json and options.markdown:
        raise build_error("--markdown", "cannot be combined with --json")
    if options.plan and options.effect is None:
        raise build_error("--plan", "needs the difference that is to be found: --effect X")
    rows = judging.read_source(options.source)
    asked = judging.Asked(
        options.arm, options.seed, options.value, baselines[0], options.maximize, options.run, options.step,
        options.status, options.pair_by, options.by, options.where, options.names, options.unpaired,
    )  # fmt: skip
    rows, columns, results = judging.read_results(rows, asked, options.trivial)
    if options.plan:
        document = judging.plan(rows, columns, results, options.effect)
        if options.json:
            table = document.answers[0].table if document.answers else None
            rows_of = [dict(zip(table.header, row, strict=True)) for row in table.rows] if table else []
            print_json({"summary": document.summary, "comparisons": rows_of})
        else:
            terminal.render(document, build_console())
        return 0
    rules = judging.Rules(options.effect, options.trivial, tuple(options.looks), options.planned)
    looks_file = judging.locate_looks(options.source, rows, options.looks_file)
    verdict = judging.assemble(rows, columns, results, rules, looks_file)
    document = verdict.document
    if options.output:
        files = verdict.save(options.output)
        document.places.append(f"{terminal.shorten_path(files[0])}: the page, for a browser")
        document.places.append(f"in the same folder: {', '.join(path.name for path in files[1:])}")
    if options.write:
        name = options.source[0].partition(":")[2]
        run_id = stores.write_to_mlflow(name, verdict.drawn, verdict.save)
        document.places.append(f'MLflow: description of the experiment "{name}", and its run "judge" ({run_id})')
    if options.json:
        print_json(verdict.to_dict())
    elif options.markdown:
        print(f"{verdict.to_markdown()}\n`{repeat_command('judge')}`")
    else:
        terminal.render(document, build_console())
    return 0
