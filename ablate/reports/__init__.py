"""The report of a sweep as tables, figures, JSON and an MLflow run: read from the storage, nothing is trained.

`ablate.reports.report.report(title)` does it all; the other modules are its parts.
"""
