"""docker/compose.yaml without a container engine: its own scripts and commands, each host a real sshd on loopback."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e_helpers import User, wait_for
from sshd import SSHD, free_port

DOCKER = Path(__file__).parents[2] / "docker"
SERVICES: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]

pytestmark = [pytest.mark.ssh, pytest.mark.skipif(SSHD != "/usr/sbin/sshd", reason="apt-get install openssh-server")]


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """The volumes of the controller and of the hosts."""
    made = (tmp_path / "controller", tmp_path / "hosts")
    for folder in made:
        folder.mkdir()
    return made


def make_keys(controller: Path, hosts: Path, ports: dict[str, int]) -> None:
    """The `keys` service; its addresses are on loopback here, where containers have names of their own."""
    *_, user = SERVICES["keys"]["command"][:3]
    assert user == "sweep"  # in the container; here it is whoever runs the tests
    named = [entry.partition("=")[0] for entry in SERVICES["keys"]["command"][3:]]
    assert named == list(ports)
    entries = [f"{name}=127.0.0.1:{port}" for name, port in ports.items()]
    subprocess.run([DOCKER / "keys.sh", controller, hosts, getpass.getuser(), *entries], check=True, timeout=30)


@contextlib.contextmanager
def hosts_up(hosts: Path, home: Path, ports: dict[str, int]) -> Iterator[None]:
    """The host services until the block ends, each with a home of its own and a variable that its image would set."""
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # as the image does
    started = []
    try:
        for name, port in ports.items():
            words = [DOCKER / "host.sh", *SERVICES[name]["command"], str(port), hosts]
            (home / name).mkdir()
            env = {**os.environ, "HOME": str(home / name), "CUDA_HOME": f"/cuda of {name}"}
            log = (home / f"{name}.log").open("wb")
            started.append(subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
            log.close()
        for port in ports.values():
            wait_for(lambda port=port: _listens(port), 10)  # type: ignore[misc]  # mypy cannot type the default
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def test_keys_are_made_once_and_only_their_owner_reads_them(folders: tuple[Path, Path]) -> None:
    ports = {"gpu-a": 2201, "gpu-b": 2202}
    make_keys(*folders, ports)
    before = {path: path.read_bytes() for folder in folders for path in folder.iterdir()}
    assert {path.stat().st_mode & 0o077 for path in before} == {0o000}
    make_keys(*folders, ports)
    assert {path: path.read_bytes() for folder in folders for path in folder.iterdir()} == before
    (folders[0] / "config").unlink()  # it is written last: cut off before, all are made anew
    make_keys(*folders, ports)
    assert (folders[0] / "key").read_bytes() != before[folders[0] / "key"]
    assert (folders[0] / "known_hosts").read_text().count("\n") == 2


def test_a_session_gets_the_image_s_environment(folders: tuple[Path, Path], tmp_path: Path) -> None:
    ports = {"gpu-a": free_port(), "gpu-b": free_port()}
    make_keys(*folders, ports)
    with hosts_up(folders[1], tmp_path, ports):
        ssh = ["ssh", "-F", folders[0] / "config", "-o", "BatchMode=yes", "gpu-b", 'echo "$CUDA_HOME"; echo "$HOME"']
        done = subprocess.run(ssh, capture_output=True, text=True, timeout=30)
    assert done.stdout.splitlines() == ["/cuda of gpu-b", str(tmp_path / "gpu-b")], done.stderr


@pytest.mark.ray
@pytest.mark.long
def test_the_scenario(user: User, folders: tuple[Path, Path]) -> None:
    ports = {"gpu-a": free_port(), "gpu-b": free_port()}
    make_keys(*folders, ports)
    user.more_env["SWEEP_SSH_CONFIG"] = str(folders[0] / "config")
    with hosts_up(folders[1], user.home, ports):
        quick = ("--trials", "2", "--set", "simulate.time_scale=0.1", "--set", "measurement.confirm_top=0")
        answer = user.json(*SERVICES["controller"]["command"], *quick)
    assert answer["state"] == "finished"
    assert answer["simulated"] is True
    assert answer["counts"] == {"complete": 2}
    measured = user.query("select distinct host from launches where verdict = 'complete'")
    assert {host for (host,) in measured} == {"gpu-a", "gpu-b"}
    assert user.run("report", "--format", "md", "-o", "-").stdout.startswith("## Speculative decoding: smoke")
