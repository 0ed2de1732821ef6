"""The figures of the papers, by number: the figure here that shows the same, and what the paper draws.

Mix-LN is arXiv 2412.13795, LayerNorm Scaling arXiv 2502.05795 in its version 5, whose numbers these are.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PaperFigure:
    """A figure of a paper."""

    title: str
    """Paper and number."""
    figure: str
    """The figure here."""
    models: str
    """What the paper draws, or of which models it draws it."""
    tasks: tuple[str, ...] = ()
    """The tasks by which the paper measures the performance without a layer."""
    note: str = ""
    """What is not known of it, or differs here."""


_OPEN = "open-weight models: LLaMA-2-7B and -13B, Mistral-7B, Qwen-7B, DeepSeek-7B (Pre-LN) and BERT-large (Post-LN)"

PAPERS: dict[str, PaperFigure] = {
    "mixln-2": PaperFigure(
        "Mix-LN, figure 2", "removal", _OPEN, ("squad", "mmlu"), "squad is for BERT, mmlu for LLaMA"
    ),
    "mixln-3": PaperFigure("Mix-LN, figure 3", "contribution", "LLaMA-130M: Post-LN and Pre-LN", ("arc_easy",)),
    "mixln-5": PaperFigure("Mix-LN, figure 5", "angular-distance", "LLaMA-130M: Pre-LN, Post-LN and Mix-LN"),
    "mixln-6": PaperFigure("Mix-LN, figure 6", "initial-gradients", "Mix-LN beside Pre-LN and Post-LN"),
    "lns-2": PaperFigure(
        "LayerNorm Scaling, figure 2",
        "removal",
        "BERT-large (Post-LN), and DeepSeek-7B, Qwen3-8B and LLaMA-2-13B (Pre-LN)",
        ("squad", "mmlu"),
        "squad is for BERT, mmlu for the others",
    ),
    "lns-3": PaperFigure("LayerNorm Scaling, figure 3", "removal", "LLaMA-130M: Post-LN and Pre-LN", ("arc_easy",)),
    "lns-4": PaperFigure("LayerNorm Scaling, figure 4", "variance-course", "an arm for each panel"),
    "lns-5": PaperFigure(
        "LayerNorm Scaling, figure 5",
        "identity",
        "the Jacobian of blocks as heat maps",
        (),
        "the share of the diagonal is added here",
    ),
    "lns-7": PaperFigure(
        "LayerNorm Scaling, figure 7", "removal", "LLaMA-130M: Pre-LN and LayerNorm Scaling", ("arc_easy",)
    ),
    "lns-8": PaperFigure(
        "LayerNorm Scaling, figure 8",
        "variance-course",
        "ViT-S without LayerScale, and with LNS after attention and MLP",
    ),
}
"""Name of a paper and number -> the figure."""
