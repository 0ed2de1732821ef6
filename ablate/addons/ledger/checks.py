"""Records of who has trained runs of a bundle again, beside it: a file each."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ablate.addons.ledger.bundles import hash_study, read_bundle
from ablate.addons.ledger.places import hide_places
from ablate.addons.ledger.schema import CHECKS
from ablate.addons.ledger.verify import Verification
from ablate.config.errors import DataError, StoreError
from ablate.config.yaml import parse_json


@dataclass(frozen=True)
class Checks:
    """What was found by those who trained runs of a bundle again."""

    reproduced: int
    """Records in which all came out again, of the bundle as it is now."""
    refuted: int
    """Records in which some did not, or in which another verdict came of them."""
    cells: int
    """Different runs that came out again."""


def write_check(folder: Path, verification: Verification) -> Path:
    """Write a record of a verification into the bundle's folder, and return its file. Raises StoreError."""
    day = datetime.now(timezone.utc).date().isoformat()
    content = {"day": day, "study": hash_study(read_bundle(folder)), **hide_places(verification.to_dict())}
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    file = folder / CHECKS / f"{day}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json"
    try:
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"The result cannot be written to {file}: {error.strerror or error}.") from None
    return file


def read_checks(folder: Path) -> Checks:
    """Return what the records beside a bundle say; those of an earlier state of it do not count. Raises DataError for
    a file that is no record."""
    study, good, bad = hash_study(read_bundle(folder)), [], 0
    for file in sorted((folder / CHECKS).glob("*.json")):
        try:
            record: dict[str, Any] = parse_json(file.read_text(encoding="utf-8"))
            if record["study"] != study:
                continue
            if record["reproduced"]:
                good.append([cell["label"] for cell in record["cells"]])
            elif record["changed_verdicts"] or any(cell["word"] == "not reproduced" for cell in record["cells"]):
                bad += 1
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{file} is no record of a verification: {error!r}.") from None
    return Checks(len(good), bad, len({label for labels in good for label in labels}))
