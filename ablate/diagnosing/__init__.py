"""`ablate diagnose`: which models are measured, on which data, and what is written of it."""
