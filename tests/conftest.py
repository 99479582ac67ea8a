"""Fixtures for every folder."""

from tests.commands import store, sweep  # noqa: F401 -- fixtures
from tests.webhook import webhook  # noqa: F401 -- a fixture
