"""Text for language models: from files or datasets to windows, rows or streams of tokens."""
