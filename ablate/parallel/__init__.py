"""Distributed models: strategies, weights from the meta device, sharded checkpoints."""
