"""The coordinate check (Yang et al. 2022, arXiv 2203.03466, appendix D.1): how the size of activations, and of their
change in the first updates, depends on the width and the depth of a model. Unlike the measurements it takes no
weights, only the recipe of a run: it trains small models of it itself."""

NAME = "coordinates"
"""Its name in `--what`, where it is asked for by name alone."""
