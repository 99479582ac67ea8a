"""A host of its own on this machine: a network namespace behind a veth pair, a real sshd in it, its own boot id.

Needs root and iproute2. Three ways to spoil the way there, none of which the kernel's optional ``netem`` is needed for:
the cable (link down), loss in one or both directions (the sender is told a wrong hardware address for the other end, so
that packets leave and nobody takes them), and delay (:class:`SlowWire`, two TUN devices with a program between them).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults_helpers import read, wait_for
from sshd import SSHD, keygen

IP = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
WRONG_ADDRESS = "02:00:00:00:00:99"
_numbers = itertools.count()


def ip(*words: str) -> str:
    assert IP is not None
    done = subprocess.run([IP, *words], capture_output=True, text=True)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


class NetHost:
    """``gpu-a``: reached at ``address`` from here, which it knows as ``gateway``. ``config`` is an ssh_config file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Names and addresses of our own: pids differ between test runs that share a machine.
        number, pid = next(_numbers), os.getpid()
        self.name = f"sw{pid % 100000}x{number}"
        self.near, self.far = f"{self.name[:11]}a", f"{self.name[:11]}b"
        third, fourth = pid % 250 + 1, number % 60 * 4
        self.gateway, self.address = f"10.213.{third}.{fourth + 1}", f"10.213.{third}.{fourth + 2}"
        self.config = folder / "ssh_config"
        self.boot_id = folder / "boot_id"
        self.sshd: subprocess.Popen[bytes] | None = None
        self.slow: subprocess.Popen[bytes] | None = None

    def build(self) -> None:
        self.folder.mkdir()
        ip("netns", "add", self.name)
        ip("link", "add", self.near, "type", "veth", "peer", "name", self.far, "netns", self.name)
        ip("addr", "add", f"{self.gateway}/30", "dev", self.near)
        ip("link", "set", self.near, "up")
        ip("-n", self.name, "addr", "add", f"{self.address}/30", "dev", self.far)
        ip("-n", self.name, "link", "set", self.far, "up")
        ip("-n", self.name, "link", "set", "lo", "up")
        host_key, key = keygen(self.folder / "host_key"), keygen(self.folder / "key")
        shutil.copy(f"{key}.pub", self.folder / "authorized_keys")
        kind, public = Path(f"{host_key}.pub").read_text().split()[:2]
        (self.folder / "known_hosts").write_text(f"{self.address} {kind} {public}\n")
        self.config.write_text(
            f"Host gpu-a\n  HostName {self.address}\n  User root\n  IdentityFile {key}\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {self.folder / 'known_hosts'}\n  GlobalKnownHostsFile none\n  ConnectTimeout 5\n"
        )
        (self.folder / "sshd_config").write_text(
            f"Port 22\nListenAddress 0.0.0.0\nHostKey {host_key}\nPidFile none\nStrictModes no\nUsePAM no\n"
            f"AuthorizedKeysFile {self.folder / 'authorized_keys'}\nPasswordAuthentication no\n"
            "KbdInteractiveAuthentication no\nSubsystem sftp internal-sftp\nPrintMotd no\nSetEnv SHLVL=2\n"
        )
        self.boot_id.write_text(f"{uuid.uuid4()}\n")
        self.power_on()

    def power_on(self) -> None:
        """Start sshd in the namespace, with the boot id of this life of the host."""
        assert SSHD is not None
        script = (
            f"mount --make-rprivate / && mount --bind {self.boot_id} /proc/sys/kernel/random/boot_id && "
            f"hostname {self.name} && exec {SSHD} -D -e -f {self.folder / 'sshd_config'}"
        )
        with (self.folder / "sshd.log").open("ab") as log:
            self.sshd = subprocess.Popen(
                [str(IP), "netns", "exec", self.name, "unshare", "--mount", "--uts", "sh", "-c", script],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_for(self.answers, 30, lambda: (self.folder / "sshd.log").read_text())

    def answers(self) -> bool:
        """Whether sshd greets a newcomer, each step within two seconds."""
        with contextlib.suppress(OSError), socket.create_connection((self.address, 22), timeout=2) as probe:
            return probe.recv(4) == b"SSH-"
        return False

    def pids(self) -> list[int]:
        return [int(line) for line in ip("netns", "pids", self.name).split()]

    @staticmethod
    def is_server(pid: int) -> bool:
        return b"SPECSWEEP_MARKER=" in read(pid, "environ")

    def kill(self, *pids: int) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill_sshd(self) -> None:
        """The listener and every session of it; what was started through it lives on."""
        self.kill(*(pid for pid in self.pids() if read(pid, "comm").startswith(b"sshd")))
        assert self.sshd is not None
        self.sshd.wait()

    def power_off(self) -> None:
        """Everything dies at once, without a word."""
        while pids := self.pids():
            self.kill(*pids)
            time.sleep(0.02)
        if self.sshd is not None:
            self.sshd.wait()

    def reboot(self) -> None:
        self.power_off()
        self.boot_id.write_text(f"{uuid.uuid4()}\n")
        self.power_on()

    # ------------------------------------------------------------------ the way there

    def cable(self, plugged: bool) -> None:
        ip("link", "set", self.near, "up" if plugged else "down")

    def lose(self, *, there: bool = False, back: bool = False) -> None:
        """Lose every packet to the host, from it, both, or none."""
        for lost, netns, device, other in (
            (there, (), self.near, self.address),
            (back, ("-n", self.name), self.far, self.gateway),
        ):
            ip(*netns, "neigh", "flush", "dev", device)
            if lost:
                ip(*netns, "neigh", "replace", other, "lladdr", WRONG_ADDRESS, "dev", device, "nud", "permanent")
            else:
                with contextlib.suppress(AssertionError):
                    ip(*netns, "neigh", "del", other, "dev", device)

    def delay(self, seconds: float) -> None:
        """From now on every packet takes ``seconds`` more in each direction: the route leads over a slow wire."""
        wire = Path(__file__).parent / "slow_wire.py"
        self.slow = subprocess.Popen(
            [sys.executable, str(wire), self.name, self.gateway, self.address, str(seconds)], stdout=subprocess.PIPE
        )
        assert self.slow.stdout is not None
        assert self.slow.stdout.readline() == b"up\n"

    def undelay(self) -> None:
        """The slow wire goes; routes over the cable are there again."""
        if self.slow is not None:
            self.slow.kill()
            self.slow.wait()
            assert self.slow.stdout is not None
            self.slow.stdout.close()
            self.slow = None

    def remove(self) -> None:
        self.undelay()
        self.power_off()
        with contextlib.suppress(AssertionError):
            ip("netns", "del", self.name)
        with contextlib.suppress(AssertionError):
            ip("link", "del", self.near)


@contextlib.contextmanager
def net_host(folder: Path) -> Iterator[NetHost]:
    """A host in a namespace. Skips, saying why, where that cannot be made."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if IP is None or SSHD is None:
        pytest.skip("needs iproute2 and openssh-server (apt-get install iproute2 openssh-server)")
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    host = NetHost(folder)
    try:
        host.build()
        yield host
    finally:
        host.remove()
