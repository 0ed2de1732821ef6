"""Tasks: the LightningModules, in `registry`; their losses and metrics, which are known without Lightning."""
