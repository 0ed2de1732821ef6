"""What the server that forks trial processes imports once: everything heavy that a trial needs. Starts no thread."""

import lightning.pytorch
import mlflow.store.artifact.local_artifact_repo
import mlflow.store.tracking.sqlalchemy_store
import mlflow.tracking
import sklearn.datasets
import timm.models.vision_transformer
import torchmetrics.classification
import torchmetrics.text

import ablate.sweeping.worker
import ablate.tasks
import ablate.training.callbacks
import ablate.training.loaders
import ablate.training.train  # noqa: F401
