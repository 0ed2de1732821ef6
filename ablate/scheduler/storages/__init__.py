"""The kinds of Optuna storages that a sweep may lie in. Each kind has its own lock for the order of trials
(`hold_lock`); `kinds` opens the one that an address names.
"""
