"""Running a sweep: the storage of its runs, claims on them, workers and where these run."""
