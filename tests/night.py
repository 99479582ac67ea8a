"""Fixtures over one finished study in a database of its own, for tests that only read it; a conftest imports them."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.records import StudyRow
from storage.store import Store
from sweep.cli.main import main
from tests.report_tests.made import make


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('night') / 'sweep.db'}"
    with Store.open(url) as store:
        make(store)
    return url


@pytest.fixture
def study(store: Store) -> StudyRow:
    return store.study("night")


@pytest.fixture
def own_url(tmp_path: Path) -> str:
    """A database that a test may change, with the same study in it."""
    url = f"sqlite:///{tmp_path / 'own.db'}"
    with Store.open(url) as store:
        make(store)
    return url


@pytest.fixture(scope="session")
def page(url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The HTML report on disk, as the command writes it."""
    target = tmp_path_factory.mktemp("page") / "report.html"
    main(["report", "night", "-o", str(target), "--db", url])
    return target
