"""What a sweep found, as tables, pictures, JSON and an MLflow run: read from the storage, nothing is trained."""

from ablate.reporting.report import Report, report

__all__ = ["Report", "report"]
