"""What the server that forks the processes of tests has imported: everything that a trial needs. Starts no thread."""

import gc
from importlib import import_module

gc.disable()  # which would look for garbage among a million new objects, and find none

for _name in (
    "ablate.training.train",
    "ablate.training.fit",
    "ablate.scheduler.worker",
    "ablate.training.module",
    "timm.models.vision_transformer",
    "sklearn.datasets",
    "mlflow.tracking",
    "mlflow.entities.evaluation_dataset",
    "mlflow.store.tracking.sqlalchemy_store",
    "mlflow.store.artifact.local_artifact_repo",
):
    import_module(_name)

import_module("sqlalchemy.orm").configure_mappers()  # two thirds of a second, once instead of in every trial
gc.freeze()  # none of it is garbage: trials that look for theirs need not look here, nor copy the pages
gc.enable()

from forked import fork_worker  # noqa: E402

from ablate.scheduler.executors import local  # noqa: E402 - after what it imports is frozen

local.start_process = fork_worker
