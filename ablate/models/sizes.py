"""Named sizes: `model: llama-71m`. LLaMA's are those of Mix-LN (arXiv 2412.13795, table 7, and its released
configurations, which give 250M a width of 768) and of LayerNorm Scaling (arXiv 2502.05795); ViT's are timm's."""

from ablate.models.base import models

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
}
for _name, (_hidden, _mlp, _heads, _layers) in _LLAMA.items():
    models.preset(f"llama-{_name}", "llama", hidden=_hidden, mlp=_mlp, heads=_heads, layers=_layers)

models.preset("vit-digits", "vit", hidden=48, layers=6, heads=4, patch_size=2)
models.preset("vit-tiny", "vit", hidden=192, layers=12, heads=3, patch_size=16)  # vit_tiny_patch16_224
models.preset("vit-small", "vit", hidden=384, layers=12, heads=6, patch_size=16)  # vit_small_patch16_224
