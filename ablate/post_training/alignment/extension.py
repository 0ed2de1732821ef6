"""`align`: preference pairs in the place of text. Its procedure takes the place of training by Lightning."""

from __future__ import annotations

from typing import Any

from ablate.experiment.extensions import Extension
from ablate.post_training.alignment.reward import hash_reward
from ablate.post_training.alignment.run import build_procedure
from ablate.training.procedures import Procedure


class AlignExtension(Extension):
    """Aligns a language model by TRL."""

    def build_procedure(self) -> Procedure:
        return build_procedure()

    def describe_source(self, run: str) -> dict[str, Any]:
        return {"reward_sha256": hash_reward(run)}


EXTENSION = AlignExtension()
