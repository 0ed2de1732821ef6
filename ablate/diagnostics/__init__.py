"""Measurements on models: why a placement wins."""

from ablate.diagnostics.angular import angular_distance

__all__ = ["angular_distance"]
