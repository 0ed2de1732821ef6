"""Parts that only the papers need: the GRU and ConvPool-CNN-C of RMSNorm, questions of SQuAD, word similarity, and
the numbers of their figures. A plugin like any other: it imports only what docs/reference/plugins.md lists."""

from ablate.addons.papers import convpool_config, figures, gru_config, spans, word_similarity  # noqa: F401
