"""The look of figures, and the panels that several rooms draw. matplotlib is imported by the functions that draw."""
