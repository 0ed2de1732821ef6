"""Images for classifiers: from folders or tables to batches, and data augmentation."""
