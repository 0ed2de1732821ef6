"""Sweeps: their files, the search of each arm, the processes that run trials, and their stored records."""
