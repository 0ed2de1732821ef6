"""Models of timm and transformers by name: which parts they have, and how our norms and placements come into them."""
