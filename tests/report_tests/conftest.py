"""The hand-made study and the command line on its database."""

from tests.browser import browser  # noqa: F401 -- a fixture
from tests.night import page, study, url  # noqa: F401 -- fixtures
