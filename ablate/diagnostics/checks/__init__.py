"""Checks of the kinds that a plugin registers: does each do what it says? `ablate check` runs them. A file here has
the checks of one registry; `base` runs them, `subject` builds their subjects."""

from ablate.diagnostics.checks.base import Finding, check, check_kinds

__all__ = ["Finding", "check", "check_kinds"]
