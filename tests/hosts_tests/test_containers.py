"""Servers in containers, through a stand-in docker that keeps its calls and whose containers outlive `docker run`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hosts_helpers import Make, dead_holder, ended, gone, launch, log_until, wait_for

from launchers.containers import ContainerSettings
from launchers.hosts.local import LocalSettings, LocalTransport
from launchers.servers import HostServers
from sweep.cli.byte_code import byte_code
from sweep.errors import HostError

STANDIN = Path(__file__).parent / "docker_standin.py"


@dataclass
class Docker:
    """The stand-in: its program and what it was asked for."""

    program: Path
    state: Path

    def calls(self, command: str) -> list[list[str]]:
        lines = (self.state / "calls.jsonl").read_text().splitlines()
        return [call for call in map(json.loads, lines) if call[0] == command]

    def containers(self) -> list[Path]:
        return sorted(self.state.glob("c[0-9]*"))

    def pid(self) -> int:
        return int((self.containers()[0] / "pid").read_text())


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[Docker]:
    state = tmp_path / "docker"
    state.mkdir()
    program = tmp_path / "bin-docker"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {STANDIN} {state} "$@"\n')
    program.chmod(0o755)
    daemon = subprocess.Popen([str(program), "daemon"])
    wait_for((state / "up").exists)
    try:
        yield Docker(program, state)
    finally:
        (state / "end").touch()
        daemon.wait(timeout=10)


@pytest.fixture
def boxed(transport: Any, make_servers: Make, docker: Docker) -> HostServers:
    settings = ContainerSettings("example/engine:1", ("--volume", "/models:/models"), str(docker.program))
    servers = make_servers(transport, container=settings)
    servers.prepare()
    return servers


def test_a_container_keeps_no_byte_code(boxed: HostServers, tmp_path: Path) -> None:
    """What the first launch compiles is gone with its container: it belongs into the image."""
    (tmp_path / "site" / "engine").mkdir(parents=True)
    (tmp_path / "site" / "engine" / "__init__.py").touch()
    env = {"PYTHONPATH": str(tmp_path / "site")}
    (found,) = byte_code(boxed, boxed._remote.python, ("engine", "none-such"), env, container=True)
    assert found.status == "warn"
    assert "Build it into the image: " in found.advice
    assert byte_code(boxed, boxed._remote.python, ("none-such",), env, container=True) == []


def test_what_docker_is_asked_for(boxed: HostServers, docker: Docker) -> None:
    server = boxed.start(launch(env={"A": "1"}, secret_env={"TOKEN": "swordfish"}, gpus=()), "1")
    log_until(boxed, server, b"ready")
    (call,) = docker.calls("run")
    at = call.index("example/engine:1")
    before, inside = call[:at], call[at + 1 :]
    assert before[:5] == ["run", "--rm", "--init", "--network", "host"]
    assert f"specsweep.marker={server.marker}" in before
    assert before[before.index("/models:/models") - 1] == "--volume"
    assert f"{server.run_dir}:{server.run_dir}" in before
    assert [before[i + 1] for i, word in enumerate(before) if word == "--env"] == [
        "A", "SPECSWEEP_BASE", "SPECSWEEP_MARKER", "SPT_NOENV", "TOKEN",
    ]  # fmt: skip
    assert inside[0] == "python3"
    assert str(server.port) in inside
    assert "swordfish" not in json.dumps(docker.calls("run"))
    env = json.loads((docker.containers()[0] / "env.json").read_text())
    assert (env["A"], env["TOKEN"], env["SPECSWEEP_MARKER"]) == ("1", "swordfish", server.marker)
    assert boxed.stop(server).clean


def test_gpus_of_the_launch_are_handed_over() -> None:
    argv = ContainerSettings("i").run(["@PYTHON@", "x"], ["CUDA_VISIBLE_DEVICES"], (2, 3))
    assert argv[argv.index("--gpus") + 1] == '"device=2,3"'
    assert "CUDA_VISIBLE_DEVICES" not in argv, "inside they are numbered from 0"
    assert "--gpus" not in ContainerSettings("i").run(["x"], [], ())


def test_the_version_is_the_images(docker: Docker, transport: Any, make_servers: Make) -> None:
    settings = ContainerSettings("example/engine:1", (), str(docker.program))
    facts = make_servers(transport, container=settings).inspect((sys.executable, "-c", "print('1.2.3')"))
    assert facts.engine_version == "1.2.3"
    assert docker.calls("run")[0][-4:] == ["example/engine:1", "python3", "-c", "print('1.2.3')"]
    assert docker.containers() == []


def test_stop_ends_the_container(boxed: HostServers, docker: Docker) -> None:
    server = boxed.start(launch(), "1")
    log_until(boxed, server, b"ready")
    inside = docker.pid()
    report = boxed.stop(server)
    assert report.clean
    assert gone(inside)
    assert docker.containers() == []


def test_a_container_that_ignores_term_is_removed(boxed: HostServers, docker: Docker) -> None:
    server = boxed.start(launch("--ignore-term"), "1")
    log_until(boxed, server, b"ready")
    inside = docker.pid()
    assert boxed.stop(server, grace_s=0.5).clean
    assert gone(inside)
    assert docker.containers() == []


@pytest.mark.parametrize("who", ["client", "supervisor"])
def test_a_container_outlives_its_client_but_not_us(boxed: HostServers, docker: Docker, who: str) -> None:
    """SIGKILL for `docker run` leaves the container running: it is found by its label and removed."""
    server = boxed.start(launch(), "1")
    log_until(boxed, server, b"ready")
    inside = docker.pid()
    state = json.loads((Path(server.run_dir) / "state.json").read_text())
    os.kill(server.pid if who == "client" else state["supervisor"]["pid"], signal.SIGKILL)
    ended(boxed, server)
    boxed.stop(server)
    wait_for(lambda: gone(inside))
    wait_for(lambda: docker.containers() == [])
    assert docker.calls("rm") != [] or docker.calls("stop") != [] or who == "client"


def test_a_docker_that_gives_no_answer_is_no_clean_end(boxed: HostServers, docker: Docker) -> None:
    """Whether a container is left is not known then: that is said, and whoever comes next asks again."""
    server = boxed.start(launch("--ignore-term"), "1")
    log_until(boxed, server, b"ready")
    inside, works = docker.pid(), docker.program.read_text()
    docker.program.write_text("#!/bin/sh\nexit 1\n")
    report = boxed.stop(server, grace_s=0.2)
    assert not report.clean
    assert "docker gives no answer" in report.note
    with pytest.raises(HostError, match=rf"docker gives no answer\) of {server.marker}"):
        boxed.reconcile()
    docker.program.write_text(works)
    boxed.reconcile()
    assert gone(inside)
    assert docker.containers() == []
    assert boxed.reconcile() == ()


def test_the_lease_ends_containers_too(docker: Docker, make_servers: Make, transport: Any) -> None:
    settings = ContainerSettings("example/engine:1", (), str(docker.program))
    servers = make_servers(transport, container=settings, lease_s=1.5)
    servers.prepare()
    server = servers.start(launch(), "1")
    log_until(servers, server, b"ready")
    inside = docker.pid()
    assert ended(servers, server, 20).reason == "lease_expired"
    wait_for(lambda: gone(inside) and docker.containers() == [])


def test_a_successor_finds_and_ends_what_was_left(docker: Docker, make_servers: Make) -> None:
    settings = ContainerSettings("example/engine:1", (), str(docker.program))
    local = LocalTransport(LocalSettings("here"))
    before = make_servers(local, container=settings, holder=dead_holder())
    before.prepare()
    server = before.start(launch(), "1")
    log_until(before, server, b"ready")
    inside = docker.pid()
    after = make_servers(LocalTransport(LocalSettings("here")))
    after.prepare()
    assert [found.launch for found in after.reconcile()] == ["1"]
    assert gone(inside)
    assert docker.containers() == []
