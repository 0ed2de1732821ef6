"""Training that begins with a trained model: warm starts, adapters, alignment."""
