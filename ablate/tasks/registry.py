"""The LightningModules by task; model families and data name the task that they are for."""

from ablate.tasks.base import Task
from ablate.tasks.image_classification import ImageClassification
from ablate.tasks.language_modeling import LanguageModeling

tasks: dict[str, type[Task]] = {
    "language_modeling": LanguageModeling,
    "image_classification": ImageClassification,
}
