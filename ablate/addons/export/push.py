"""`--push`: an exported folder becomes a repository of the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from ablate.config.errors import AblateError


def check_push(name: str) -> None:
    """Raise AblateError for a name that the hub does not take, and if there is no token."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        text = f"--push: {' '.join(str(error).split())}. Give OWNER/NAME, or NAME for a repository of your own."
        raise AblateError(text) from None
    if get_token() is None:
        raise AblateError(
            "--push needs a token of the Hugging Face hub that may write: hf auth login, or set HF_TOKEN."
        )


def push(folder: Path, name: str) -> str:
    """Upload the files of `folder` to the repository `name`, which is created as a private one if it does not exist,
    and return its address. Raises AblateError for whatever the hub refuses; the folder stays."""
    from huggingface_hub import HfApi

    hub = HfApi()
    try:
        address = hub.create_repo(name, private=True, exist_ok=True)
        hub.upload_folder(repo_id=address.repo_id, folder_path=folder, commit_message="Upload by ablate export")
    except Exception as error:  # of the network, the hub and the library
        text = f"{folder} is written, but could not be pushed to {name}: {' '.join(str(error).split())}"
        again = f"To push it without another export: hf upload {name} {folder}"
        raise AblateError(f"{text.rstrip('.')}. {again}") from None
    return str(address)
