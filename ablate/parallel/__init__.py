"""Models shared by ranks: strategies, weights from the meta device, sharded checkpoints."""
