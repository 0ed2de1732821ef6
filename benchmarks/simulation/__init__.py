"""Sweeps, ladders and transfers without training: objectives with known true values, for benchmarks and tests."""
