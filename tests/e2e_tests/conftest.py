"""Users for the end-to-end tests; whatever a test leaves running fails it and is ended."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from e2e_helpers import User  # noqa: E402 -- found by the line above: test folders are no packages
from sshd import sshd_factory  # noqa: E402, F401 -- a fixture


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    """A user whose processes must all be gone when the test ends."""
    home = tmp_path / "home"
    home.mkdir()
    user = User(home)
    try:
        yield user
        user.require_clean()
    finally:
        user.end()


@pytest.fixture(scope="session")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[User, str]]:
    """The smoke study, run once from start to end: its user, and what `start --json` put on stdout."""
    user = User(tmp_path_factory.mktemp("smoke"))
    try:
        done = user.run("start", "smoke", "--simulate", "--json")
        yield user, done.stdout
    finally:
        user.end()
