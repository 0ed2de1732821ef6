"""The verbs of the command line and their options."""

from __future__ import annotations

import argparse
from typing import Literal

_EXAMPLES = """\
examples:
  ablate train norm=mix norm.alpha=0.25 optimizer.lr=3e-3
  ablate train model=vit-digits norm=post trainer.max_steps=500
  ablate train data=text data.files='books/*.txt' data.tokenizer=tokenizer.json model=llama-9m
  ablate sweep sweeps/demo.yaml --workers 2
  ablate report demo
  ablate ladder sweeps/demo-ladder.yaml --workers 2
  ablate plan model=llama-7b model.vocab_size=32000 data.seq_len=2048 --devices 8
  ablate export RUN_ID --to hf --output exported
  ablate diagnose sweep:demo/pre sweep:demo/post
  ablate wordsim RUN_ID --pairs SimLex-999.txt
  ablate evaluate RUN_ID --tasks arc_easy,piqa
  ablate align RUN_ID --method dpo --pairs preferences.json
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
  ablate sweep sweeps/demo.yaml --workers-per-gpu auto
  ablate sweep my.yaml --storage postgresql://me@db/ablate --submit slurm.partition=gpu timeout_min=600 --workers 32"""
_LADDER = """\
ablate ladder sweeps/demo-ladder.yaml --extrapolate 9m --workers 2
  ablate ladder sweeps/mixln-table1.yaml --sizes 9m,20m,35m,60m --tokens-per-parameter 20 --extrapolate 1b"""
_SIZES = "sizes of the file or of named models, such as 9m,20m,35m (default: all sizes of the file)"
_PER_PARAMETER = "tokens for each weight of the layers (default: as in the file)"
_PER_GPU = "trials at a time on each GPU; auto: as many as the memory plan says fit"
_SCALE = "run this share of the tokens, above 0 and at most 1; the report says so, and studies do not mix (default: 1)"
_PLAN = """\
ablate plan model=llama-1b model.vocab_size=32000 trainer.batch_size=512
  ablate plan model=llama-7b model.vocab_size=32000 trainer.strategy=fsdp --gpu h100-80gb --devices 8
  ablate plan sweeps/demo.yaml --gpu rtx-4090"""
_EXPORT = "ablate export RUN_ID --to hf --output exported"
_SOURCE = "a run's id, the path or address (s3://...) of its folder or last.ckpt, or sweep:NAME/ARM"
_FORMS = "consolidated (torch), safetensors, hf (a folder for transformers), or timm (one for timm, of a ViT)"
_WORDSIM = "ablate wordsim RUN_ID sweep:reuse-570m/baseline --pairs SimLex-999.txt combined.csv"
_PAIRS = "word pairs with scores: SimLex-999 and WordSim-353 in their original formats, or word, word, score"
_NEIGHBOURS = "nearest tokens of each token that are compared with the first model's (default: 100)"
_DIAGNOSE = """\
ablate diagnose sweep:demo/pre sweep:demo/post sweep:demo/mix
  ablate diagnose RUN_ID init:RUN_ID --what gradients,variance
  ablate diagnose LLaMA-2=hf:meta-llama/Llama-2-7b-hf hf:bert-large-uncased --data texts.jsonl --tokens 256000
  ablate diagnose timm:vit_small_patch16_224 --data image_folder root=images"""
_MODELS = (
    "a run's id, the path of a checkpoint, sweep:NAME/ARM, init: before one of these for its first weights, hf:PATH or "
    "timm:NAME (a folder or a name on the hub); LABEL= before it names it in the figures"
)
_WHAT = "angular, pruning, gradients, jacobian, variance, with commas between (default: all)"
_DATA = (
    "text files, a kind of data, a YAML file or settings such as tokenizer=tokenizer.json seq_len=128 "
    "(default: the validation data of the model's own experiment)"
)
_EVALUATE = """\
ablate evaluate RUN_ID --tasks arc_easy,piqa
  ablate evaluate sweep:demo --tasks arc_easy,boolq --task-data tasks --limit 200
  ablate evaluate sweep:demo/pre hf:gpt2 --tasks lambada_openai --json"""
_SCORED = (
    "a run's id, the path of its last.ckpt, sweep:NAME/ARM, sweep:NAME for every arm, or hf: and a model of "
    "transformers (the code in a local folder is run)"
)
_ALIGN = """\
ablate align RUN_ID --method dpo --pairs preferences.json
  ablate align RUN_ID --method reward --pairs HuggingFaceH4/ultrafeedback_binarized --split train_prefs
  ablate align RUN_ID --method rloo --pairs preferences.json --reward REWARD_RUN_ID"""
_PREFERENCES = "pairs as in UltraFeedback: JSON, JSON lines, parquet or arrow, or a dataset (on the hub or a folder)"
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
        "--size",
        metavar="SIZE",
        help="this size or stage of a file (default: all, the smallest first or in order)",
    )
    many.add_argument("--scale", type=_share, default=1.0, metavar="X", help=_SCALE)
    many.add_argument("--scale-model", action="store_true", help="shrink the layers of the model by X as well")
    many.add_argument("--all", action="store_true", help="with --dry-run: check and plan every file of sweeps/")
    many.add_argument("--dry-run", action="store_true", help="print the plan and its cost, run nothing")
    many.add_argument("--workers", type=_positive, metavar="N", help="trials at a time (default: 1)")
    many.add_argument("--workers-per-gpu", type=_positive_or_auto, metavar="K", help=_PER_GPU)
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

    cost = verb("plan", "what an experiment or a sweep needs of GPUs: memory, FLOPs, time", _PLAN)
    cost.add_argument("words", nargs="*", default=[], metavar="[FILE.yaml] key=value", help=_OVERRIDES)
    cost.add_argument("--size", metavar="NAME", help="this size or stage of a sweep file")
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
    out.add_argument("source", metavar="CHECKPOINT_OR_RUN", help=_SOURCE)
    out.add_argument("--to", required=True, metavar="FORM", help=_FORMS)
    out.add_argument("--ema", action="store_true", help="the average of the weights (trainer.ema_decay)")
    out.add_argument("--output", required=True, metavar="FOLDER", help="a folder that does not exist yet")

    layers = verb("diagnose", "measure the layers of models: angular distance, layer removal and more", _DIAGNOSE)
    layers.add_argument("models", nargs="+", metavar="MODEL", help=_MODELS)
    layers.add_argument("--what", type=_names, default=[], metavar="A,B,...", help=_WHAT)
    layers.add_argument("--tokens", type=_positive, default=256_000, metavar="N", help="or images (default: 256000)")
    layers.add_argument("--data", nargs="+", default=[], metavar="FILE_OR_KEY=VALUE", help=_DATA)
    layers.add_argument(
        "--output", metavar="FOLDER", help="for figures and numbers (default: below mlruns/diagnostics)"
    )
    layers.add_argument(
        "--tasks", type=_names, default=[], metavar="A,B,...", help="score them without each layer, too"
    )
    layers.add_argument("--task-data", metavar="FOLDER", help="local files of the tasks (default: the hub)")
    layers.add_argument(
        "--limit", type=_positive, metavar="N", help="the first N questions of each task (default: all)"
    )
    layers.add_argument("--positions", default="all", metavar="all|last", help="tokens of the angular distance")
    layers.add_argument("--batch-tokens", type=_positive, default=2048, metavar="N", help="at once (default: 2048)")
    layers.add_argument("--device", metavar="NAME", help="such as cuda:1 (default: a GPU where there is one)")
    layers.add_argument("--dtype", default="float32", metavar="float32|bfloat16", help="of the weights")
    layers.add_argument("--trust-remote-code", action="store_true", help="run code that comes with an hf: model")
    layers.add_argument("--json", action="store_true", help="print as JSON")

    like = verb("wordsim", "word similarity of embedding and head, against what people say", _WORDSIM)
    like.add_argument("sources", nargs="+", metavar="CHECKPOINT_OR_RUN", help="as for export; several are compared")
    like.add_argument("--pairs", nargs="+", required=True, metavar="FILE", help=_PAIRS)
    like.add_argument("--neighbours", type=_positive, default=100, metavar="N", help=_NEIGHBOURS)
    like.add_argument("--json", action="store_true", help="print as JSON")

    asked = verb("evaluate", "score trained language models on downstream tasks (needs ablate[eval])", _EVALUATE)
    asked.add_argument("models", nargs="+", metavar="MODEL", help=_SCORED)
    asked.add_argument("--tasks", type=_names, required=True, metavar="A,B,...", help="of lm-evaluation-harness")
    asked.add_argument("--task-data", metavar="FOLDER", help="local files of the tasks (default: the hub)")
    asked.add_argument(
        "--shots", type=_whole, metavar="N", help="solved examples before each question (default: the task's own)"
    )
    asked.add_argument("--limit", type=_positive, metavar="N", help="the first N questions of each task (default: all)")
    asked.add_argument("--batch-size", type=_positive, default=16, metavar="N", help="answers at a time (default: 16)")
    asked.add_argument("--output", metavar="FILE", help="write everything, question by question, as JSON")
    asked.add_argument("--storage", metavar="URL", help="Optuna storage (default: SQLite under mlruns/)")
    asked.add_argument("--json", action="store_true", help="print the scores as JSON")

    pairs = verb("align", "align a language model by preference pairs (needs ablate[rlhf])", _ALIGN)
    pairs.add_argument("model", metavar="MODEL", help="a run's id, the path of its last.ckpt or sweep:NAME/ARM")
    pairs.add_argument("--method", required=True, choices=["dpo", "reward", "rloo"], help="reward: a reward model")
    pairs.add_argument("--pairs", required=True, metavar="FILE|DATASET", help=_PREFERENCES)
    pairs.add_argument("--split", default="train", help="of a dataset (default: train)")
    pairs.add_argument("--template", default="alpaca", choices=["alpaca", "plain"], help="as data.template")
    pairs.add_argument("--steps", type=_positive, default=500, metavar="N", help="updates (default: 500)")
    pairs.add_argument("--batch-size", type=_positive, default=16, metavar="N", help="of an update (default: 16)")
    pairs.add_argument("--lr", type=_above_zero, default=1e-6, metavar="X", help="peak learning rate (default: 1e-6)")
    pairs.add_argument("--beta", type=_above_zero, metavar="X", help="how strongly the start holds (default: TRL's)")
    pairs.add_argument(
        "--reward", metavar="RUN|FOLDER", help="a reward model, made by --method reward; for rloo needed"
    )
    pairs.add_argument("--answers", type=_positive, default=4, metavar="N", help="of rloo to a prompt (default: 4)")
    pairs.add_argument("--length", type=_positive, default=64, metavar="N", help="tokens of an answer (default: 64)")
    pairs.add_argument("--measured", type=_positive, default=64, metavar="N", help="held-out pairs (default: 64)")
    pairs.add_argument("--seed", type=_whole, default=0, metavar="N", help="of order and samples (default: 0)")
    pairs.add_argument("--storage", metavar="URL", help="Optuna storage (default: SQLite under mlruns/)")
    pairs.add_argument("--json", action="store_true", help="print the result as JSON")

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


def _positive(text: str, also: str = "") -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be {also}a whole number of at least 1, given {text}")
    return int(text)


def _positive_or_auto(text: str) -> int | Literal["auto"]:
    return "auto" if text == "auto" else _positive(text, "auto or ")


def _whole(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 0, given {text}")
    return int(text)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


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
