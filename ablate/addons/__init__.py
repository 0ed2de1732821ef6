"""What the core can do without: each package here may be deleted, and the rest passes its tests."""
