"""Hosts for the contract tests: this machine, and this machine through a real OpenSSH server on loopback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launchers.hosts.local import LocalSettings, LocalTransport
from launchers.hosts.ssh import SshSettings, SshTransport
from launchers.locks import Owner, this_holder
from launchers.servers import HostServers
from sweep.seams import HostTools

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from hosts_helpers import Make, ours  # noqa: E402 -- found by the line above: test folders are no packages
from sshd import shared_sshd, sshd, sshd_factory  # noqa: E402, F401 -- fixtures


@pytest.fixture(autouse=True)
def private_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return home


@pytest.fixture
def make_servers(tmp_path: Path) -> Iterator[Make]:
    """``make_servers(transport, study="s", epoch=1, lease_s=60, ...)``; whatever is still there is ended at the end."""
    made: list[HostServers] = []

    def make(transport: Any, *, study: str = "s", epoch: int = 1, holder: Any = None, **more: Any) -> HostServers:
        settings = {"tools": HostTools(gpu_query=("no-nvidia-smi-here",)), "python": sys.executable}
        settings.update({"base_dir": str(tmp_path / "base"), "owner": Owner(study, holder or this_holder(), epoch)})
        servers = HostServers(transport, **{**settings, **more})
        made.append(servers)
        return servers

    yield make
    for servers in made:
        servers.close()
    if any(entry for entry in ours(tmp_path)):
        sweeper = make(LocalTransport(LocalSettings("sweeper")), epoch=1 << 40)
        for entry in (tmp_path / "base").glob("**/lease.json"):
            entry.unlink()
        sweeper.prepare()
        sweeper.reconcile()
        sweeper.close()


@pytest.fixture(params=["local", "ssh"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The host under test, connected."""
    made: Any
    if request.param == "local":
        made = LocalTransport(LocalSettings("here"))
    else:
        monkeypatch.setenv("SWEEP_SSH_CONFIG", str(request.getfixturevalue("shared_sshd").client_config))
        made = SshTransport(SshSettings("gpu-a", "gpu-a"))
    made.connect()
    yield made
    made.close()


@pytest.fixture
def dial() -> Any:
    """``dial(host, **settings)`` gives a connected transport; all are closed at the end."""
    made: list[SshTransport] = []

    def connect(host: str, **settings: Any) -> SshTransport:
        transport = SshTransport(SshSettings("gpu", host, **settings))
        made.append(transport)
        transport.connect()
        return transport

    yield connect
    for transport in made:
        transport.close()


@pytest.fixture
def servers(transport: Any, make_servers: Make) -> HostServers:
    made = make_servers(transport)
    made.prepare()
    return made
