"""Why a placement wins: measurements on the layers of a model, of a run, a checkpoint, or another library's model."""
