"""What is built from sweeps and experiments."""
