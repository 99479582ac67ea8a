"""Studies that faults are done to. All of it is marked `faults`: minutes, and partly root's business."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from faults_helpers import Lab  # noqa: E402 -- found by the line above: test folders are no packages


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.faults)
            item.add_marker(pytest.mark.timeout(600))  # a minute each on an idle machine, a lease or two included


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A study on this machine."""
    host = {"name": "gpu", "kind": "local", "gpus": 1, "base_dir": str(tmp_path / "host"), "python": sys.executable}
    lab = Lab(tmp_path, host)
    lab.write()
    try:
        yield lab
        lab.check_nothing_left()
    finally:
        lab.end()
