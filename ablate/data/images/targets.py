"""The targets of an image: its class, several labels, or a mask with the class of each pixel."""

from __future__ import annotations

from typing import Literal

Targets = Literal["class", "labels", "mask"]

TASKS = {"class": "image_classification", "labels": "multilabel_classification", "mask": "image_segmentation"}
"""Targets -> the task that they are for."""
