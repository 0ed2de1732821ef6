"""The figures of the papers, by number: the figure here that shows the same, and what the paper draws.

Mix-LN is arXiv 2412.13795, LayerNorm Scaling arXiv 2502.05795 in its version 5, whose numbers these are.
"""

from __future__ import annotations

from ablate.diagnostics.kinds import PaperFigure, papers

_OPEN = "open-weight models: LLaMA-2-7B and -13B, Mistral-7B, Qwen-7B, DeepSeek-7B (Pre-LN) and BERT-large (Post-LN)"

for _figure in (
    PaperFigure(
        "mixln-2", "Mix-LN, figure 2", "removal", _OPEN, ("squad", "mmlu"), "squad is for BERT, mmlu for LLaMA"
    ),
    PaperFigure("mixln-3", "Mix-LN, figure 3", "contribution", "LLaMA-130M: Post-LN and Pre-LN", ("arc_easy",)),
    PaperFigure("mixln-5", "Mix-LN, figure 5", "angular-distance", "LLaMA-130M: Pre-LN, Post-LN and Mix-LN"),
    PaperFigure("mixln-6", "Mix-LN, figure 6", "initial-gradients", "Mix-LN beside Pre-LN and Post-LN"),
    PaperFigure(
        "lns-2",
        "LayerNorm Scaling, figure 2",
        "removal",
        "BERT-large (Post-LN), and DeepSeek-7B, Qwen3-8B and LLaMA-2-13B (Pre-LN)",
        ("squad", "mmlu"),
        "squad is for BERT, mmlu for the others",
    ),
    PaperFigure("lns-3", "LayerNorm Scaling, figure 3", "removal", "LLaMA-130M: Post-LN and Pre-LN", ("arc_easy",)),
    PaperFigure("lns-4", "LayerNorm Scaling, figure 4", "variance-course", "an arm for each panel"),
    PaperFigure(
        "lns-5",
        "LayerNorm Scaling, figure 5",
        "identity",
        "the Jacobian of blocks as heat maps",
        (),
        "the share of the diagonal is added here",
    ),
    PaperFigure(
        "lns-7", "LayerNorm Scaling, figure 7", "removal", "LLaMA-130M: Pre-LN and LayerNorm Scaling", ("arc_easy",)
    ),
    PaperFigure(
        "lns-8",
        "LayerNorm Scaling, figure 8",
        "variance-course",
        "ViT-S without LayerScale, and with LNS after attention and MLP",
    ),
):
    papers.register(_figure)
