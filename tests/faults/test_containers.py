"""A study whose servers run in containers, through a stand-in docker; its controller is killed in the middle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults_helpers import Lab, wait_for

STANDIN = Path(__file__).parents[1] / "hosts_tests" / "docker_standin.py"


@pytest.fixture
def docker(lab: Lab) -> Iterator[Path]:
    """The stand-in's state; it is the `docker` of this user's PATH."""
    state, programs = lab.folder / "docker", lab.folder / "bin"
    state.mkdir()
    programs.mkdir()
    (programs / "docker").write_text(f'#!/bin/sh\nexec {sys.executable} {STANDIN} {state} "$@"\n')
    (programs / "docker").chmod(0o755)
    # The image's python3 is this one.
    (programs / "python3").symlink_to(sys.executable)
    lab.environment["PATH"] = f"{programs}:{os.environ['PATH']}"
    lab.host = {**lab.host, "container": "example/engine:1"}
    lab.write()
    daemon = subprocess.Popen([str(programs / "docker"), "daemon"])
    wait_for((state / "up").exists)
    try:
        yield state
    finally:
        (state / "end").touch()
        daemon.wait(timeout=10)


@pytest.mark.parametrize("point", ["during:launch:2", "during:measure:3", None])
def test_killed_controller(lab: Lab, docker: Path, point: str | None) -> None:
    if point is None:
        lab.run("start")
        before = lab.blocks()
    else:
        lab.run("start", exit_code=-9, kill=point)
        before = lab.blocks()
        lab.run("resume")
    lab.check(before)
    assert list(docker.glob("c[0-9]*")) == [], "a container is left"
    runs = [json.loads(line) for line in (docker / "calls.jsonl").read_text().splitlines() if '"run"' in line]
    assert len(runs) >= 4
    assert all("example/engine:1" in call for call in runs)
