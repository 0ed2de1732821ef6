"""The inputs of a run besides its settings and code: its data, its tokenizer, and the models that it starts from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from ablate import tracking
from ablate.config.formatting import format_settings
from ablate.data import Corpus
from ablate.data.files import fingerprint_files
from ablate.data.text.tokenizers import load_data_tokenizer
from ablate.experiment.tree import Experiment


def fingerprint_inputs(experiment: Experiment, corpus: Corpus) -> dict[str, str]:
    """Return input -> SHA-256 for a run of `experiment`, whose sources are pinned. Two runs with a common input of
    different SHA-256 did not train on the same data or from the same model. Raises DataError for a missing file."""
    data, start, align = experiment.data, experiment.warm_start, experiment.align
    settings = format_settings(data.model_dump(mode="json", exclude_defaults=True), {})
    found = {f"data {data.kind} {settings}".rstrip(): corpus.fingerprint} if corpus.fingerprint else {}
    name = getattr(data, "tokenizer", "bytes")
    if name != "bytes" and not name.startswith("bpe-"):  # that is trained on the text
        tokenizer = load_data_tokenizer(data, tracking.cache_folder())
        identity = f"{tokenizer.identity} {tokenizer.end_of_text}"
        found[f"tokenizer {name}"] = hashlib.sha256(identity.encode()).hexdigest()
    if start and start.donor and start.sha256:
        found[f"warm_start.from {start.donor}"] = start.sha256
    if align and align.reward and align.reward_sha256:
        found[f"align.reward {align.reward}"] = align.reward_sha256
    if experiment.evaluation.tasks and experiment.evaluation.task_data:
        folder = Path(experiment.evaluation.task_data).expanduser()
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        found[f"evaluation.task_data {folder}"] = fingerprint_files(files, tracking.cache_folder())
    return {tracking.redact(name): digest for name, digest in found.items()}


def list_changed_inputs(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return 'name: SHA-256 old -> new' for each input whose hash has changed."""
    changed = [name for name, digest in now.items() if before.get(name, digest) != digest]
    return [f"{name[:200]}: SHA-256 {before[name]} -> {now[name]}" for name in changed]
