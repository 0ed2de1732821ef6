"""`ablate align`: align a language model with preference pairs.

An option whose name has a dot in `dest` is a setting of the experiment: without the option, the default of the
experiment or of `ablate.addons.post_training.alignment.recipe` applies.
"""

from __future__ import annotations

import argparse

from ablate.cli.arguments import (
    COMMAND_LINE,
    Verbs,
    add_json,
    add_plugins,
    add_storage,
    add_verb,
    parse_above_zero,
    parse_positive,
    parse_whole,
    take_plugins,
)
from ablate.cli.output import build_console, print_json
from ablate.config.lazy import postpone_imports

with postpone_imports():
    from ablate.addons.post_training.alignment import recipe
    from ablate.config import building
    from ablate.experiment import parts
    from ablate.scheduler import donors

_EXAMPLE = """\
ablate align RUN_ID --method dpo --pairs preferences.json
  ablate align RUN_ID --method reward --pairs HuggingFaceH4/ultrafeedback_binarized --split train_prefs
  ablate align RUN_ID --method rloo --pairs preferences.json --reward REWARD_RUN_ID"""
_PAIRS = "pairs as in UltraFeedback: JSON, JSON lines, parquet or arrow, or a dataset (on the hub or a folder)"


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    text = "align a language model with preference pairs (needs the extra rlhf)"
    parser = add_verb(verbs, "align", text, _EXAMPLE, run)
    parser.add_argument("model", metavar="MODEL", help="a run's id, the path of its last.ckpt or sweep:NAME/ARM")
    text = "train a policy with dpo or rloo, or a reward model with reward"
    parser.add_argument("--method", dest="align.method", required=True, choices=["dpo", "reward", "rloo"], help=text)
    parser.add_argument("--pairs", required=True, metavar="FILE|DATASET", help=_PAIRS)
    parser.add_argument("--split", dest="data.train_split", metavar="SPLIT", help="split of a dataset (default: train)")
    text = "template of the prompts, as in data.template"
    parser.add_argument("--template", dest="data.template", choices=["alpaca", "plain"], help=text)
    for option, path, kind, metavar, about in (
        ("--steps", "trainer.max_steps", parse_positive, "N", "updates (default: 500)"),
        ("--batch-size", "trainer.batch_size", parse_positive, "N", "pairs or prompts per update (default: 16)"),
        ("--lr", "optimizer.lr", parse_above_zero, "X", "peak learning rate (default: 1e-6)"),
        ("--beta", "align.beta", parse_above_zero, "X", "penalty for leaving the initial model (default: TRL's)"),
        ("--reward", "align.reward", str, "RUN|FOLDER", "a model trained with --method reward; required for rloo"),
        ("--answers", "align.answers", parse_positive, "N", "answers sampled for each prompt by rloo (default: 4)"),
        ("--length", "align.length", parse_positive, "N", "length of a sampled answer in tokens (default: 64)"),
        ("--measured", "align.measured", parse_positive, "N", "held-out pairs for the evaluation (default: 64)"),
        ("--seed", "seed", parse_whole, "N", "seed of the data order and of the samples (default: 0)"),
    ):
        parser.add_argument(option, dest=path, type=kind, metavar=metavar, help=about)
    text, path = "run code that comes with --reward FOLDER", "align.trust_remote_code"
    parser.add_argument("--trust-remote-code", dest=path, action="store_true", default=None, help=text)
    add_storage(parser)
    add_json(parser, "print the result as JSON")
    add_plugins(parser)


def run(options: argparse.Namespace) -> int:
    """Align the model, and print the metrics on held-out pairs."""
    take_plugins(options.words)
    typed = {path: value for path, value in vars(options).items() if value is not None}
    settings = {path: value for path, value in typed.items() if "." in path or path == "seed"}
    prefix = "align."
    part = {path.removeprefix(prefix): value for path, value in settings.items() if path.startswith(prefix)}
    building.build(parts.AlignConfig, part, source=COMMAND_LINE)  # mistakes are reported in the words of the options
    if reward := settings.get("align.reward"):
        settings["align.reward"] = donors.resolve_run(reward, options.storage)
    start = donors.resolve_run(options.model, options.storage)
    aligned = recipe.align(options.model, start, options.pairs, settings)
    if options.json:
        print_json(aligned.to_dict())
        return 0
    console = build_console()
    lines = [aligned.told, *(f"{name}  {value:.4g}" for name, value in aligned.metrics.items())]
    console.print("\n".join([*lines, f"run {aligned.run_id}; for transformers: {aligned.folder}"]))
    return 0
