"""Sweeps: their files, the search of each arm, the processes that run trials, and what is stored of them."""
