"""The browser that opens the report of the walk-through."""

from tests.browser import browser  # noqa: F401 -- a fixture
