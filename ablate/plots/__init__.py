"""The style of figures, and panels that several packages draw. matplotlib is imported by the functions that draw."""
