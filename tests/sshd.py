"""A real OpenSSH server on loopback for tests: throwaway keys, its own configuration, one process that we end by pid.

Test modules get the ``sshd_factory`` and ``sshd`` fixtures by ``pytest_plugins`` in their conftest, see
tests/hosts_tests/conftest.py.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def keygen(path: Path, kind: str = "ed25519") -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "test", "-f", str(path)], check=True)
    return path


@dataclass
class Sshd:
    """One running server. ``client_config`` is an ssh_config file with a Host entry named ``name``."""

    name: str
    folder: Path
    port: int
    client_key: Path
    known_hosts: Path
    client_config: Path
    options: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def user(self) -> str:
        return getpass.getuser()

    @property
    def host_key(self) -> Path:
        return self.folder / "host_key"

    def start(self) -> None:
        assert SSHD is not None
        config = self.folder / "sshd_config"
        lines = [
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {self.host_key}",
            "PidFile none",
            f"AuthorizedKeysFile {self.folder / 'authorized_keys'}",
            "StrictModes no",
            "UsePAM no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin prohibit-password",
            "Subsystem sftp internal-sftp",
            "PrintMotd no",
            "SetEnv SHLVL=2",  # bash under sshd reads ~/.bashrc only at the first level, and that file may be slow
        ]
        given = {option.split()[0] for option in self.options}
        config.write_text("\n".join([*self.options, *(line for line in lines if line.split()[0] not in given)]) + "\n")
        log = (self.folder / "sshd.log").open("ab")
        self.process = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        log.close()
        deadline = time.monotonic() + 10
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                    assert probe.recv(4) == b"SSH-"
                    return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError((self.folder / "sshd.log").read_text()) from None
                time.sleep(0.02)

    def _sessions(self) -> list[int]:
        """The processes of this server's live connections: everything below the listening process."""
        assert self.process is not None
        parents: dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    tail = (entry / "stat").read_bytes().rpartition(b")")[2].split()
                    command = (entry / "comm").read_text().strip()
                except OSError:
                    continue
                if command.startswith("sshd"):
                    parents[int(entry.name)] = int(tail[1])
        below = [self.process.pid]
        for pid in below:
            below += [child for child, parent in parents.items() if parent == pid]
        return below[1:]

    def drop_connections(self) -> int:
        """Kill the live connections with SIGKILL, the server stays. Returns how many processes were hit."""
        pids = self._sessions()
        for pid in pids:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue
        return len(pids)

    def freeze(self, frozen: bool = True) -> None:
        """Stop the live connections' processes, or let them go on: the kernel still takes what is sent to them."""
        for pid in self._sessions():
            os.kill(pid, signal.SIGSTOP if frozen else signal.SIGCONT)

    def stop(self) -> None:
        if self.process is not None:
            self.drop_connections()
            self.process.kill()
            self.process.wait()
            self.process = None


def make_sshd(folder: Path, name: str = "gpu-a", options: tuple[str, ...] = ()) -> Sshd:
    """Keys, known_hosts and configuration in ``folder``; the server is started."""
    folder.mkdir(parents=True)
    keygen(folder / "host_key")
    key = keygen(folder / "client_key")
    shutil.copy(folder / "client_key.pub", folder / "authorized_keys")
    port = free_port()
    known_hosts = folder / "known_hosts"
    kind, public = (folder / "host_key.pub").read_text().split()[:2]
    known_hosts.write_text(f"[127.0.0.1]:{port} {kind} {public}\n")
    config = folder / "ssh_config"
    config.write_text(
        f"Host {name}\n  HostName 127.0.0.1\n  Port {port}\n  User {getpass.getuser()}\n  IdentityFile {key}\n"
        f"  IdentitiesOnly yes\n\nHost *\n  UserKnownHostsFile {known_hosts}\n  GlobalKnownHostsFile none\n"
    )
    server = Sshd(name, folder, port, key, known_hosts, config, options)
    server.start()
    return server


@contextlib.contextmanager
def sshd_maker(folder: Path) -> Iterator[Callable[..., Sshd]]:
    """``make(name, options=())`` starts a server below ``folder``; all are ended on leaving. Skips without sshd."""
    if SSHD is None:
        pytest.skip("no sshd here: apt-get install openssh-server")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd's privilege separation folder
    started: list[Sshd] = []

    def make(name: str = "gpu-a", options: tuple[str, ...] = ()) -> Sshd:
        server = make_sshd(folder / f"sshd-{name}", name, options)
        started.append(server)
        return server

    try:
        yield make
    finally:
        for server in started:
            server.stop()


@pytest.fixture
def sshd_factory(tmp_path: Path) -> Iterator[Callable[..., Sshd]]:
    """``sshd_factory(name, options=())`` starts a server of the test's own."""
    with sshd_maker(tmp_path) as make:
        yield make


@pytest.fixture
def sshd(sshd_factory: Callable[..., Sshd], monkeypatch: pytest.MonkeyPatch) -> Sshd:
    """One server of the test's own, reached as the ssh alias ``gpu-a``."""
    server = sshd_factory("gpu-a")
    monkeypatch.setenv("SWEEP_SSH_CONFIG", str(server.client_config))
    return server


@pytest.fixture(scope="session")
def shared_sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """One server for all tests that do it no harm."""
    with sshd_maker(tmp_path_factory.mktemp("shared")) as make:
        yield make("gpu-a")
