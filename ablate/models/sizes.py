"""Named sizes: `model: llama-71m`. LLaMA's sizes are from Mix-LN (arXiv 2412.13795, table 7, and its released
configurations, which give 250M a width of 768) and LayerNorm Scaling (arXiv 2502.05795); and ViT's sizes are
timm's. 570m-e and 1b-e are from two-stage pre-training
(Lee et al.), with the vocabulary of GPT-2. The paper does not state the width of the MLP. With 3.5 times the hidden
width, the layers alone have 570.2M parameters, and the paper's 16.1 % less memory and 11.52 % less compute at 570M
follow to the last digit. At 1B the same factor gives the layers 1.04B parameters and 27.6 % less compute, where the
paper reports 28.33 %."""

from ablate.models.config import models

_LLAMA = {  # name: hidden, MLP, heads, layers
    "9m": (128, 352, 4, 4),
    "20m": (256, 688, 4, 4),
    "35m": (384, 1024, 8, 6),
    "60m": (512, 1376, 8, 8),
    "71m": (512, 1368, 8, 12),
    "130m": (768, 2048, 12, 12),
    "250m": (768, 2560, 16, 24),
    "350m": (1024, 2736, 16, 24),
    "1b": (2048, 5461, 32, 24),
    "3b": (2560, 6848, 32, 32),
    "7b": (4096, 11008, 32, 32),
    "570m-e": (1280, 4480, 20, 24),
    "1b-e": (1600, 5600, 20, 28),
}
for _name, (_hidden, _mlp, _heads, _layers) in _LLAMA.items():
    models.preset(f"llama-{_name}", "llama", hidden=_hidden, mlp=_mlp, heads=_heads, layers=_layers)

models.preset("vit-digits", "vit", hidden=48, layers=6, heads=4, patch_size=2)
models.preset("vit-glyphs", "vit", hidden=48, layers=6, heads=4, patch_size=8)  # for images of 32 x 32
models.preset("vit-tiny", "vit", hidden=192, layers=12, heads=3, patch_size=16)  # vit_tiny_patch16_224
models.preset("vit-small", "vit", hidden=384, layers=12, heads=6, patch_size=16)  # vit_small_patch16_224
