"""The hand-made study of the report tests, and the command line on its database."""

from tests.night import own_url, study, url  # noqa: F401 -- fixtures
