"""Queues of runs for tests, without MLflow and workers."""

from ablate.scheduler.queue import Queue
from ablate.scheduler.studies import create_study, name_study


def open_queue(storage, spec, session=True):
    """The runs of a sweep, whose studies are created where they are missing; by default in a session of its own."""
    for arm in spec.all_arms:
        create_study(storage, name_study(spec.name, 1, arm), spec)
    queue = Queue(storage, spec.name, 1, spec)
    if session:
        queue.begin_session()
    return queue


def read(queue):
    """The record as it is now."""
    queue.studies.refresh()
    return queue.studies.read()
