"""Models of timm and transformers by name: their parts, and our norms and placements in them."""
