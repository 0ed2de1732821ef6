"""What is stored with a run."""

from ablate.tracking import client
from ablate.tracking.provenance import FILE, read_texts


def read_facts(run_id):
    """Return the facts of a run as texts: its tags and, once it is written, the artifact."""
    return {**client().get_run(run_id).data.tags, **read_texts(run_id, FILE)}
