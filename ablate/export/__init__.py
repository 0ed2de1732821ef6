"""Trained models in the forms that other programs read."""
