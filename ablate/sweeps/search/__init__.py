"""The search of a sweep: its space, samplers and pruners."""
