"""Upper bounds that catch typing errors. They are far above the sizes that are trained in practice, and below the sizes
at which a check never ends or a library aborts the process. A setting within the bounds may still be too large for a
machine; `ablate plan` shows it.
"""

from __future__ import annotations

MOST_SEED = 2**32 - 1
"""The largest seed that numpy and Optuna's samplers accept."""
MOST_LAYERS = 2_000
"""Twice the depth of the deepest Transformer that we know of (DeepNet, 1,000 layers). A plan of that depth takes
seconds."""
MOST_WIDTH = 1_000_000
"""Twenty times the widest matrix of GPT-3 (49,152)."""
MOST_WEIGHTS = 10**13
"""Ten times the largest models; 36 TiB in float32."""
MOST_VOCABULARY = 10_000_000
"""Forty times the largest vocabularies in use (about 260,000). Libraries allocate by the largest id, and abort."""
MOST_STEPS = 10**9
"""Updates of a run: at a millisecond each, twelve days; the longest runs have a few million."""
MOST_BATCH = 10**7
"""Sequences or images of one update: the largest batches in use have a few tens of thousands."""
MOST_LENGTH = 10**8
"""Tokens of a sequence: ten times the longest contexts that we know of."""
MOST_PIXELS = 65_536
"""Pixels of one side of an image or patch: the limit of JPEG and most formats."""
MOST_ITEMS = 10**16
"""Tokens, images or pairs: a hundred times the largest corpora."""
MOST_PROCESSES = 10**6
"""Processes and machines: ten times the largest clusters."""
MOST_LOADERS = 512
"""Data-loading processes of one training process: more than the cores of a machine."""
MOST_TRIALS = 1_000_000
"""Trials or cells of a grid of one arm: at a second each, twelve days."""
