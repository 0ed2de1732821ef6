"""Images for classifiers: from folders or tables to batches, and how they are changed at random."""
