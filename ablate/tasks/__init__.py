"""Tasks: the LightningModules in `registry`, and their losses and metrics, which can be imported without Lightning."""
