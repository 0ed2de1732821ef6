"""The small sweep of the tests of the scheduler."""

from scheduler.conftest import deadly, postgres, spec, undisturbed  # noqa: F401 - fixtures
