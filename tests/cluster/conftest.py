"""A cluster for the whole module. Marked `cluster`: minutes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from cluster_helpers import Cluster, Driver  # noqa: E402 -- found by the line above: test folders are no packages
from sshd import sshd_factory  # noqa: E402, F401 -- a fixture


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(400))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A head alone; tests add the nodes they need."""
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.head()
        yield made
    finally:
        made.end()


@pytest.fixture
def driver(cluster: Cluster, tmp_path: Path) -> Driver:
    home = tmp_path / "home"
    home.mkdir()
    return Driver(home, cluster)
