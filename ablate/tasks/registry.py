"""The LightningModules, by the name of the task that a model family and a corpus are for."""

from ablate.tasks.base import Task
from ablate.tasks.image_classification import ImageClassification
from ablate.tasks.language_modeling import LanguageModeling

tasks: dict[str, type[Task]] = {
    "language_modeling": LanguageModeling,
    "image_classification": ImageClassification,
}
