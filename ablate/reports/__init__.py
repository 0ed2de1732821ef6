"""The report of a sweep as tables, figures, JSON and an MLflow run: read from the storage, nothing is trained.

`ablate.reports.report.report(title)` creates the report; the other modules are its parts.
"""
