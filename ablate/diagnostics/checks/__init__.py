"""Checks of what a plugin registers: that each kind does what it says. `ablate check` runs them.

A file here has the checks of one registry; `base` runs them, `subject` builds what they look at.
"""

from ablate.diagnostics.checks.base import Finding, check, check_kinds

__all__ = ["Finding", "check", "check_kinds"]
