"""Names of models: a folder here, or a repository on the Hugging Face hub."""

from __future__ import annotations

import os

from ablate.config.errors import AblateError, did_you_mean

TIMEOUT = 10.0
"""Seconds until the hub is reported as unreachable."""


def is_path(name: str) -> bool:
    """Return whether `name` can only be a path: names on the hub are NAME or OWNER/NAME."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1


def find_model(name: str) -> str:
    """Return the folder that `name` refers to, with `~` expanded, or `name` itself for a model in the hub's cache or on
    the hub. The hub is asked once, while the libraries ask it for half a minute. Raises AblateError if there is no such
    folder or model, or the hub cannot be reached."""
    folder = os.path.expanduser(name)
    if os.path.isdir(folder):
        return folder
    if is_path(name):
        above = os.path.dirname(os.path.abspath(folder))
        near = did_you_mean(os.path.basename(folder), os.listdir(above)) if os.path.isdir(above) else ""
        raise AblateError(f"There is no folder {name} here.{near}")
    _ask_hub(name)
    return name


def _ask_hub(name: str) -> None:
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    instead = "The folder of a downloaded copy also works."
    try:
        if not isinstance(try_to_load_from_cache(name, "config.json"), str):
            HfApi().model_info(name, timeout=TIMEOUT)
    except (RepositoryNotFoundError, HFValidationError):
        raise AblateError(
            f"There is no model {name!r} on the Hugging Face hub, or it is private, and no folder of that name here. "
            f"{instead} For a private one log in with: hf auth login."
        ) from None
    except Exception as error:  # of the network, the hub and the library
        text = " ".join(str(error).split())
        raise AblateError(
            f"There is no folder {name!r} here, and the Hugging Face hub could not be reached for a model of that name "
            f"({text}). {instead}"
        ) from None
