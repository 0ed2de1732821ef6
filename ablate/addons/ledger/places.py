"""Removing from what is published the places of this machine, and secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ablate.tracking.databases import redact
from ablate.tracking.paths import store_path

_PATH = re.compile(r"(?<![\w.:/\\~-])(?:~|[A-Za-z]:)?(?:[/\\][^\s/\\:;,'\"()<>|]+){2,}[/\\]?")
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|CREDENTIAL", re.IGNORECASE)  # in names of variables
_SHORTEST = 8  # letters of a secret that is looked for


def hide_places(value: Any) -> Any:
    """Return plain values without passwords, secrets of the environment, and folders: of an absolute path its last part
    is left."""
    if isinstance(value, Mapping):
        return {hide_places(key): hide_places(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [hide_places(item) for item in value]
    return _hide(value) if isinstance(value, str) else value


def _hide(text: str) -> str:
    text = redact(text)
    for secret in _list_secrets():
        text = text.replace(secret, "***")
    return _PATH.sub(lambda match: re.split(r"[/\\]", match.group().rstrip("/\\"))[-1], text)


def find_places(text: str) -> list[str]:
    """Return the folders and secrets of this machine that a text contains, the secrets as the names of their
    variables."""
    folders = {str(folder) for folder in (Path.home(), Path.cwd(), store_path()) if len(folder.parts) > 2}
    secrets = {name for name, value in os.environ.items() if _is_secret(name, value) and value in text}
    return sorted(folder for folder in folders if folder in text) + sorted(secrets)


def _list_secrets() -> list[str]:
    return sorted((value for name, value in os.environ.items() if _is_secret(name, value)), key=len, reverse=True)


def _is_secret(name: str, value: str) -> bool:
    return len(value) >= _SHORTEST and bool(_SECRET.search(name))
