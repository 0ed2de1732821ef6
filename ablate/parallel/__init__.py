"""How ranks share a model: strategies, weights from the meta device, sharded checkpoints."""
