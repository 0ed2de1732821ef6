"""Tasks: what a model is trained to do. A task is one class, which says what its batches, loss and metrics are.

They are read without torch; the LightningModule that trains them is `ablate.training.module`.
"""

# importing a module registers its task, in the order in which they are listed
from ablate.tasks.base import Metric, Task, find_metric, has_numbers, tasks

# isort: split
from ablate.tasks.language_modeling import LanguageModeling

# isort: split
from ablate.tasks.image_classification import ImageClassification

# isort: split

# isort: split
from ablate.tasks.image_segmentation import ImageSegmentation

# isort: split
from ablate.tasks.masked_image_modeling import MaskedImageModeling

__all__ = [
    "ImageClassification",
    "ImageSegmentation",
    "LanguageModeling",
    "MaskedImageModeling",
    "Metric",
    "Task",
    "find_metric",
    "has_numbers",
    "tasks",
]
