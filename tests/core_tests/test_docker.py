"""What can be said of the controller image without an engine: it copies what exists, and all that the wheel needs."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_source_exists_and_every_package_is_copied():
    lines = [line.split() for line in (ROOT / "docker" / "Dockerfile").read_text().splitlines()]
    sources = [word for line in lines if line[:1] == ["COPY"] and "--from=build" not in line for word in line[1:-1]]
    assert [source for source in sources if not (ROOT / source).exists()] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {*packages, "pyproject.toml", project["project"]["readme"]} == set(sources)
