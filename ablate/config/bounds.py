"""Numbers beyond which a setting is a slip of the keyboard.

They are far above what anybody trains, and below what makes a check run for ever or a library abort the process. What
lies within may still be too much for a machine; `ablate plan` tells.
"""

from __future__ import annotations

MOST_SEED = 2**32 - 1
"""The largest seed that numpy and Optuna's samplers take."""
MOST_LAYERS = 2_000
"""Twice the deepest Transformer that we know of (DeepNet, 1,000 layers). A plan of so many takes seconds."""
MOST_WIDTH = 1_000_000
"""Twenty times the widest matrix of GPT-3 (49,152)."""
MOST_WEIGHTS = 10**13
"""Ten times the largest models; 36 TiB in float32."""
MOST_VOCABULARY = 10_000_000
"""Forty times the largest vocabularies in use (about 260,000). Libraries allocate by the largest id, and abort."""
MOST_STEPS = 10**9
"""Updates of a run: at a millisecond each, twelve days; the longest runs have some millions."""
MOST_BATCH = 10**7
"""Sequences or images of one update: the largest batches in use have some ten thousand."""
MOST_LENGTH = 10**8
"""Tokens of a sequence: ten times the longest contexts that we know of."""
MOST_PIXELS = 65_536
"""Pixels of one side of an image, and of a patch: what JPEG and most formats can hold."""
MOST_ITEMS = 10**16
"""Tokens, images or pairs: a hundred times the largest corpora."""
MOST_PROCESSES = 10**6
"""Processes and machines: ten times the largest clusters."""
MOST_LOADERS = 512
"""Processes that read data for one that trains: more than a machine has cores for."""
MOST_TRIALS = 1_000_000
"""Trials or cells of a grid of one arm: at a second each, twelve days."""
