"""`align`: preference pairs instead of text. Its procedure replaces training with Lightning."""

from __future__ import annotations

from typing import Any

from ablate.addons.post_training.alignment.reward import hash_reward
from ablate.addons.post_training.alignment.run import build_procedure
from ablate.experiment.extensions import Extension
from ablate.training.procedures import Procedure


class AlignExtension(Extension):
    """Aligns a language model with TRL."""

    def build_procedure(self) -> Procedure:
        return build_procedure()

    def describe_source(self, run: str) -> dict[str, Any]:
        return {"reward_sha256": hash_reward(run)}


EXTENSION = AlignExtension()
