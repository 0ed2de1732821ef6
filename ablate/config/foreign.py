"""Words of timm, Hydra, Lightning, nanoGPT and W&B for which Ablate has others: one table, which is asked wherever an
unknown key, kind, value, option or verb is reported."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ours:
    """What to write instead of a foreign word."""

    write: str
    """A setting or a command, with {given} for the value that was given and {verb} for the verb. Empty: nothing."""
    why: str = ""
    """A sentence that follows."""

    @property
    def path(self) -> str:
        """The setting's path; empty for a command."""
        return "" if self.write.startswith("ablate ") else self.write.partition("=")[0]


def _same(path: str, *words: str) -> dict[str, Ours]:
    """Return entries for words that take the value of our setting `path`."""
    return {word: Ours(f"{path}={{given}}") for word in words}


def _within(part: str, path: str, *words: str) -> dict[str, Ours]:
    """Return entries for words that take the value of `path`, inside `part` and without a part."""
    return _same(path, *(f"{part}.{word}" for word in words), *words)


_DEVICE = "GPUs are used if there are any; CUDA_VISIBLE_DEVICES= in front of the command hides them."
_UPDATES = "Length is counted in optimizer updates: an epoch has samples / trainer.batch_size of them."
_SEEDS = "A seed is not searched: a sweep tunes each arm, then tests it on that many fresh seeds."
_SEVERAL = "Several runs are a sweep: a file with arms, or with search: {optimizer.lr: [1e-3, 3e-3]}."
_FILE = "A file is the first word, and words key=value change it."
_LOGGER = "MLflow has every metric anyway; this is a logger beside it, by its name in Lightning."

FOREIGN: dict[str, Ours] = {
    **_within("model", "model.hidden", "d_model", "n_embd", "dim", "embed_dim", "hidden_size", "width"),
    **_within("model", "model.layers", "depth", "n_layer", "n_layers", "num_layers", "num_hidden_layers"),
    **_within("model", "model.heads", "n_head", "n_heads", "num_heads", "num_attention_heads"),
    **_within("model", "model.kv_heads", "n_kv_head", "n_kv_heads", "num_key_value_heads"),
    **_within("model", "model.mlp", "d_ff", "ffn_dim", "intermediate_size"),
    **_within("data", "data.seq_len", "block_size", "context_length", "max_seq_len", "sequence_length"),
    **_within("optimizer", "optimizer.lr", "learning_rate"),
    **_within("trainer", "trainer.max_steps", "max_iters", "num_iterations", "total_steps"),
    **_within("trainer", "trainer.accumulate", "accumulate_grad_batches", "gradient_accumulation_steps"),
    **_within("trainer", "trainer.gradient_clip_val", "grad_clip", "clip_grad", "max_grad_norm"),
    **_within("trainer", "trainer.devices", "gpus", "num_gpus"),
    **_within("trainer", "trainer.nodes", "num_nodes"),
    **_within("trainer", "trainer.val_check_interval", "eval_interval", "eval_every"),
    **_within("schedule", "schedule.warmup_steps", "warmup_iters", "num_warmup_steps"),
    **_same("trainer.precision", "dtype", "precision"),
    **dict.fromkeys(
        ("trainer.max_epochs", "max_epochs", "trainer.epochs", "epochs"), Ours("trainer.max_steps", _UPDATES)
    ),
    **dict.fromkeys(("trainer.accelerator", "accelerator", "trainer.device", "device"), Ours("", _DEVICE)),
    **dict.fromkeys(("logger", "trainer.logger"), Ours("trainer.loggers=CSVLogger", _LOGGER)),
    **{
        f"{key}={value}": Ours(f"trainer.loggers={name}", _LOGGER)
        for key in ("logger", "trainer.logger")
        for value, name in {"wandb": "WandbLogger", "tensorboard": "TensorBoardLogger", "csv": "CSVLogger"}.items()
    },
    **dict.fromkeys(("wandb", "wandb_log", "use_wandb"), Ours("trainer.loggers=WandbLogger", _LOGGER)),
    **dict.fromkeys(("seed", "seeds"), Ours("ablate sweep FILE.yaml confirm.seeds={count}", _SEEDS)),
    **dict.fromkeys(
        ("trainer.precision=16", "trainer.precision=16-mixed", "trainer.precision=fp16", "trainer.precision=float16"),
        Ours("trainer.precision=bf16-mixed", "There is no training in float16."),
    ),
    **dict.fromkeys(("norm=preln", "norm=prenorm"), Ours("norm=pre")),
    **dict.fromkeys(("norm=postln", "norm=postnorm"), Ours("norm=post")),
    **dict.fromkeys(("norm=layernormscaling", "norm=lnscaling"), Ours("norm=lns")),
    "norm=mixln": Ours("norm=mix"),
    "optimizer=sgd": Ours("optimizer={{kind: torch, name: SGD}}"),
    "optimizer=lion": Ours("optimizer={{kind: timm, name: lion}}"),
    **dict.fromkeys(("data=folder", "data=imagefolder"), Ours("data=image_folder")),
    **dict.fromkeys(("-m", "--multirun"), Ours("ablate sweep FILE.yaml --dry-run", _SEVERAL)),
    **dict.fromkeys(("--config-name", "--config-path", "--config", "-c"), Ours("ablate {verb} {given}", _FILE)),
    "--dry-run": Ours("ablate plan", "It says what a training needs; a sweep has --dry-run."),
    "help": Ours("ablate --help"),
    "tune": Ours("ablate sweep FILE.yaml", "It tunes each arm, and tests them on fresh seeds."),
    **dict.fromkeys(("fit", "main", "run"), Ours("ablate train {given}", _FILE)),
    ".toml": Ours("ablate config > {given}.yaml", "Settings are YAML: this writes an experiment to begin with."),
}
"""A foreign word -> ours. A key is a dotted path, a path=value, an option, a verb, or the suffix of a file; path=value
counts before the path, and a value's hyphens and underscores may be left out."""


def translate(word: str, given: Any = "", *, verb: str = "train", known: Collection[str] | None = None) -> str:
    """Return ' Did you mean X? ...' for a foreign word with the value `given`; empty if the table does not have it, or
    if the setting of ours is not among the `known` paths, those of the kinds that are chosen."""
    text = str(given).lower()
    values = (f"{word}={one}" for one in (text, text.replace("-", "").replace("_", "")))
    ours = next((FOREIGN[key] for key in (*values, word) if key in FOREIGN), None)
    if ours is None or (known is not None and ours.path and ours.path not in known):
        return ""
    value = text if isinstance(given, bool) else given
    text = ours.write.format(given=value, verb=verb, count=str(given).count(",") + 1)
    return f"{f' Did you mean {text}?' if text else ' Leave it out.'}{f' {ours.why}' if ours.why else ''}"
