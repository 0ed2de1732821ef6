"""Training that starts from a trained model: warm starts, adapters, alignment."""
