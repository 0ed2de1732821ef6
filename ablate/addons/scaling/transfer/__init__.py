"""Whether the best learning rate of a small model is that of a large one."""
