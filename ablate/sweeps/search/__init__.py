"""How a sweep searches: samplers and pruners."""
