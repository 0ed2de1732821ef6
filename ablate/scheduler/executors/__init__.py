"""Where the workers of a sweep run: each module starts `ablate work` somewhere."""
