"""What observes a run: callbacks, and loggers beside MLflow. Fields, and how each is built by Lightning's own classes.

Training (`ablate.training.observing`) isolates observers from the run, and keeps a logger that fails from ending it.
"""

from ablate.experiment.observers.callbacks import CallbackConfig, callbacks
from ablate.experiment.observers.loggers import LoggerConfig, loggers
from ablate.experiment.observers.place import LogPlace

__all__ = ["CallbackConfig", "LogPlace", "LoggerConfig", "callbacks", "loggers"]
