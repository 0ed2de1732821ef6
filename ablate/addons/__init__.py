"""Packages that the core can do without: each may be deleted, and the rest passes its tests."""
