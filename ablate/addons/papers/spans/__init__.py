"""Questions that are answered by a span of a text, as in SQuAD, for models of `transformers` with a span head."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

from ablate.diagnostics.kinds import TaskHead, heads


@heads.register
class Spans(TaskHead):
    """Models that answer with a span of the text, scored on SQuAD."""

    name = "squad"
    noun = "span head"
    advice = "give a model that was fine-tuned on SQuAD (AutoModelForQuestionAnswering)"

    def accepts(self, config: Any) -> bool:
        return any(
            name.endswith(("ForQuestionAnswering", "ForQuestionAnsweringSimple")) for name in config.architectures or []
        )

    def open(self, name: str, config: Any, opening: Any) -> Any:
        return resolve_name("ablate.addons.papers.spans.models:open_span_model")(name, config, opening)
