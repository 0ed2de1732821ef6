"""Opening timm's models, from a folder or by name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ablate.config.errors import AblateError, DataError
from ablate.data.files import identify_files
from ablate.diagnostics.measures import Layers, Subject
from ablate.diagnostics.measures.subject import build_loader
from ablate.diagnostics.opening.base import Opened, Opening
from ablate.diagnostics.opening.data import load_data
from ablate.training.checkpoints import hash_weights


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
