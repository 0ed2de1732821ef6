"""Opening models of transformers and timm, from a folder or the hub."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ablate import tracking
from ablate.config.errors import AblateError, DataError
from ablate.config.hub import find_model
from ablate.config.lazy import import_library
from ablate.config.logs import silence
from ablate.data import Corpus
from ablate.data.files import identify_files
from ablate.data.text.tokenizers import keep_tokenizer, load_data_tokenizer
from ablate.diagnostics.kinds import heads
from ablate.diagnostics.measures import Batch, Layers, Subject
from ablate.diagnostics.measures.subject import build_loader
from ablate.diagnostics.opening.base import Opened, Opening, load_data, mask_tokens
from ablate.training.checkpoints import hash_weights

_VOCABULARIES = ("vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model")


def import_transformers() -> Any:
    """Return transformers, which prints nothing. Raises AblateError without the extra `hf`."""
    transformers: Any = import_library("transformers", "hf")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


@contextlib.contextmanager
def translate_errors(name: str) -> Iterator[None]:
    """Raise AblateError, which says what to do, for errors of transformers and the hub, whose own lines are not
    shown."""
    try:
        with silence("huggingface_hub"):
            yield
    except (MemoryError, AblateError):
        raise
    except Exception as error:  # whatever transformers, tokenizers, safetensors, the disk and the hub raise
        message = " ".join(str(error).split())
        hint = " Add --trust-remote-code if you trust it." if "trust_remote_code" in message else ""
        raise AblateError(f"The model hf:{name} cannot be loaded: {message[:400].rstrip('.')}.{hint}") from None


def identify_model(name: str, model: Any) -> str:
    """Return a text that is equal for two models of this name only if they are equal: the files of a folder; on the
    hub, the commit of the repository, or the weights if that is unknown."""
    if os.path.isdir(Path(name).expanduser()):
        return identify_files(name)
    hub = import_transformers().utils.hub
    with translate_errors(name):
        commit = hub.extract_commit_hash(hub.cached_file(name, "config.json"), None)
    return f"{name} {commit or hash_weights(model.state_dict())}"


def find_tokenizer(name: str) -> str | None:
    """Return the value of `data.tokenizer` for the model's own tokenizer; None if its folder has none."""
    folder = Path(name).expanduser()
    if not os.path.isdir(folder):
        return name
    for known in ("tokenizer.json", "tokenizer.model"):
        if os.path.isfile(folder / known):
            return str(folder / known)
    if not any(os.path.isfile(folder / known) for known in _VOCABULARIES):
        return None
    with translate_errors(name):  # an older form, which transformers turns into a tokenizer.json
        text = (
            import_transformers()
            .AutoTokenizer.from_pretrained(name, trust_remote_code=False)
            .backend_tokenizer.to_str()
        )
    return str(keep_tokenizer(text, tracking.cache_folder()))


MASKS = ("[MASK]", "<mask>")
FIRST, LAST = ("[CLS]", "<s>"), ("[SEP]", "</s>")


def open_transformers(name: str, opening: Opening) -> Opened:
    """Return the causal or masked language model, or the model with a head of `kinds.heads`, of the folder, or of the
    hub's repository, `name`."""
    transformers = import_transformers()
    name = find_model(name)
    with translate_errors(name):
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=opening.trust_remote_code)
    own = [head() for head in heads.values()]
    if head := next((head for head in own if head.accepts(config)), None):
        return head.open(name, config, opening)
    if opening.tasks and all(task in heads for task in opening.tasks):
        head = heads[opening.tasks[0]]()
        raise AblateError(
            f"hf:{name} has no {head.noun}, which the task {head.name} needs: {head.advice}. Its architectures: "
            f"{', '.join(config.architectures or ['unknown'])}."
        )
    masked = _is_masked(config)
    auto = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
    config.use_cache = False
    with translate_errors(name):
        model = auto.from_pretrained(
            name, config=config, dtype=opening.dtype, trust_remote_code=opening.trust_remote_code
        )
    model = model.to(opening.device).eval()
    if not opening.data:
        raise DataError(
            f"hf:{name} needs text for the measurement: --data FILE.txt, or settings of data such as "
            "--data dataset=Salesforce/wikitext subset=wikitext-2-raw-v1 val_split=test"
        )
    tokenizer = find_tokenizer(name)
    base = {"data": {"kind": "text", **({"tokenizer": tokenizer} if tokenizer else {})}}
    experiment, corpus = load_data(base, opening.data, "--data")
    _check_data(name, config, corpus, getattr(experiment.data, "tokenizer", None), tokenizer, opening.data)
    datasets = [corpus.val, corpus.train]  # it has seen neither
    load = build_loader(datasets, padded=True)
    if masked:
        load = mask_tokens(load, *_special_tokens(name, experiment.data.tokenizer))  # type: ignore[attr-defined]

    def forward(batch: Batch) -> torch.Tensor:
        padding = {} if batch.there is None else {"attention_mask": batch.there.long()}
        logits: torch.Tensor = model(input_ids=batch.inputs, **padding).logits
        return logits

    subject = Subject(
        label=Path(name).name,
        layers=Layers(model),
        forward=forward,
        items=sum(map(len, datasets)),
        load=load,
        per_item=corpus.shape[0],
        unit="tokens",
        device=opening.device,
        identity=f"{identify_model(name, model)} {corpus.identity} {experiment.data!r} {opening.dtype}",
    )
    encoder = partial(load_data_tokenizer, experiment.data, tracking.cache_folder())
    return Opened(subject, corpus.description, tokenizer=None if masked else encoder)


def _is_masked(config: Any) -> bool:
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    if architectures := config.architectures:
        return any("MaskedLM" in name or "PreTraining" in name for name in architectures)
    return config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES


def _check_data(
    name: str, config: Any, corpus: Corpus, used: str | None, own: str | None, words: Sequence[str]
) -> None:
    """Raise DataError if the data does not fit the model."""
    named = any("tokenizer=" in word for word in words)
    if used is None or (own is None and not named):
        lacks = "the data is bytes" if used is None else f"hf:{name} has no tokenizer"
        raise DataError(f"{lacks}: give text and --data tokenizer=FILE of the model's tokenizer (or tokenizer=bytes).")
    config = config.get_text_config()
    if corpus.classes > config.vocab_size:
        text = f"The tokenizer {used} has {corpus.classes} tokens and hf:{name} has {config.vocab_size}."
        raise DataError(f"{text} Give the model's own with --data tokenizer=FILE.")
    longest = getattr(config, "max_position_embeddings", None)
    if longest and corpus.shape[0] > longest:
        raise DataError(
            f"data.seq_len is {corpus.shape[0]}, and hf:{name} has {longest} positions. Set a smaller data.seq_len."
        )


def _special_tokens(name: str, tokenizer: str) -> tuple[int, tuple[int | None, int | None]]:
    """Return the tokenizer's ids: (of the mask, (of the first token of a sequence, of the last))."""
    from tokenizers import Tokenizer

    path = Path(tokenizer)
    with translate_errors(name):
        try:
            vocabulary = (
                Tokenizer.from_file(str(path)) if os.path.isfile(path) else Tokenizer.from_pretrained(tokenizer)
            )
        except Exception as error:  # tokenizers raises plain exceptions
            raise ValueError(f"its tokenizer {tokenizer} cannot be read: {error}") from None

    def find_id(words: tuple[str, ...]) -> int | None:
        return next((number for word in words if (number := vocabulary.token_to_id(word)) is not None), None)

    if (mask := find_id(MASKS)) is None:
        raise DataError(f"The tokenizer {tokenizer} has none of {', '.join(MASKS)}, so hf:{name} cannot be measured.")
    return mask, (find_id(FIRST), find_id(LAST))


def open_timm(name: str, opening: Opening) -> Opened:
    """Return timm's model of that name with its published weights, or the model in the folder `name`, which contains
    its config.json and weights."""
    import timm
    from timm.data import resolve_model_data_config

    folder = Path(name).expanduser()
    try:
        model = timm.create_model(f"local-dir:{folder.absolute()}" if os.path.isdir(folder) else name, pretrained=True)
    except Exception as error:  # whatever timm, torch, the disk and the hub raise
        raise AblateError(f"The model timm:{name} cannot be loaded: {' '.join(str(error).split())[:400]}") from None
    weights = hash_weights(model.state_dict())  # a name on the hub does not tell them
    model = model.to(opening.device, opening.dtype).eval()
    if not opening.data:
        raise DataError(
            f"timm:{name} needs images for the measurement: --data image_folder root=FOLDER, or --data imagenet"
        )
    config = resolve_model_data_config(model)
    base: dict[str, Any] = {"model": {"kind": "vit"}, "data": {"kind": "image_folder"}}
    pixels = {
        "data.image_size": config["input_size"][-1],
        "data.mean": list(config["mean"]),
        "data.std": list(config["std"]),
        "data.crop_pct": config["crop_pct"],
    }
    if "digits" not in opening.data:  # which has no pixels to resize
        base |= pixels
    experiment, corpus = load_data(base, opening.data, "--data")
    if corpus.shape != tuple(config["input_size"]):
        raise DataError(f"timm:{name} takes images of {tuple(config['input_size'])}, the data has {corpus.shape}.")
    datasets = [corpus.val, corpus.train]  # it has seen neither
    subject = Subject(
        label=folder.name,
        layers=Layers(model),
        forward=lambda batch: model(batch.inputs.to(opening.dtype)),
        items=sum(map(len, datasets)),
        load=build_loader(datasets),
        per_item=1,
        unit="images",
        classifies=True,
        device=opening.device,
        identity=f"{identify_files(name)} {weights} {corpus.identity} {experiment.data!r} {opening.dtype}",
    )
    return Opened(subject, corpus.description, has_targets=corpus.classes == model.num_classes)
