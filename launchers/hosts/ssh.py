"""A host reached over SSH: short commands, files and loopback ports over one connection that is made again when lost.

Sessions are few on purpose: sshd allows ten at a time on a connection (MaxSessions). One carries SFTP, at most
``MAX_COMMANDS`` carry commands; forwarded connections are not counted by sshd. No output is ever left unread.
A little over 300 lines on purpose: everything that is done when a connection breaks stands in one class.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeVar

import paramiko

from launchers.hosts.entry import HostEntry
from launchers.hosts.forward import Forwarder, quiet_close
from launchers.hosts.quoting import remote_command
from launchers.hosts.ssh_command import NoAnswer, converse, ended_after
from launchers.hosts.ssh_connect import BROKEN, Connection, Unreachable, connect, is_answer
from sweep.errors import HostError
from sweep.seams import Completed

T = TypeVar("T")

MAX_COMMANDS = 6
BACK_OFF_S = (0.0, 0.2, 0.5, 1.0, 2.0, 4.0)  # the last one again and again
RECONNECT_S = 40.0  # shorter than a lease: a host that cannot be reached for so long ends its servers by itself
OPERATION_S = 30.0  # one answer of SFTP, or one channel


@dataclass(frozen=True)
class SshSettings:
    """``host`` is a name of ``~/.ssh/config`` or an address; ``user``, ``port`` and ``key`` win over that file.

    ``python`` runs the supervisor and stands for ``@PYTHON@``; ``activate`` is a shell command run before it (bash).
    ``gpus`` are the indices that may be used, None for all of them.
    """

    name: str
    host: str
    user: str | None = None
    port: int | None = None
    key: str | None = None
    python: str = "python3"
    activate: str | None = None
    base_dir: str = "~/.specsweep"
    gpus: tuple[int, ...] | None = None


def settings_of(entry: HostEntry) -> SshSettings:
    """Settings from a host's entry in a search space."""
    return SshSettings(
        name=entry.name,
        host=entry.ssh or entry.host or entry.name,
        user=entry.user,
        port=entry.port,
        key=entry.key,
        python=entry.python or SshSettings.python,
        activate=entry.activate,
        base_dir=entry.base_dir or SshSettings.base_dir,
        gpus=entry.gpus,
    )


class SshTransport:
    """Implements ``sweep.seams.Transport`` over paramiko. Thread-safe."""

    kind = "ssh"

    def __init__(self, settings: SshSettings) -> None:
        self.settings = settings
        self.name = settings.name
        self._lock = threading.RLock()  # held while (re)connecting: one thread does it, the others wait for it
        self._connection: Connection | None = None
        self._sftp: paramiko.SFTPClient | None = None
        self._commands = threading.BoundedSemaphore(MAX_COMMANDS)
        self._pinging = threading.Lock()
        self._using_files = threading.Lock()
        self._home = ""
        self._closed = False
        self.losses = 0

    # -- connection

    def connect(self) -> None:
        """One attempt; a host that cannot be reached now raises HostError at once."""
        with self._lock:
            self._closed = False
            if self._connection is None or not self._connection.active:
                self._dial()

    def close(self) -> None:
        self._closed = True  # before the lock: a thread that is reconnecting gives up
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self.losses += not self._closed
        self._connection = self._sftp = None

    def _dial(self) -> None:
        self._drop()
        s = self.settings
        try:
            self._connection = connect(s.host, user=s.user, port=s.port, key=s.key)
        except HostError as error:
            raise type(error)(f"{self.name}: {error}") from error

    def _live(self, deadline: float) -> Connection:
        """The connection, made again with back-off until ``deadline`` where it was lost."""
        with self._lock:
            pauses = iter(BACK_OFF_S)
            while self._connection is None or not self._connection.active:
                if self._closed:
                    raise HostError(f"{self.name}: the connection was closed")
                try:
                    self._dial()
                except Unreachable:  # a refused key is not tried again: servers shut out those who do
                    pause = next(pauses, BACK_OFF_S[-1])
                    if time.monotonic() + pause > deadline:
                        raise
                    time.sleep(pause)  # nothing tells us when a host is there again but another attempt
            assert self._connection is not None  # the loop's condition
            return self._connection

    def _lost(self, connection: Connection) -> None:
        """``connection`` gave no proper answer: have it made again unless another thread did so already."""
        with self._lock:
            if self._connection is connection:
                self._drop()

    def _again(self, what: str, action: Callable[[Connection], T]) -> T:
        """Run an action that may be repeated, over a new connection where the old one broke."""
        deadline = time.monotonic() + RECONNECT_S
        while True:
            connection = self._live(deadline)
            try:
                return action(connection)
            except BROKEN as error:
                if connection.active and is_answer(error):
                    raise
                self._lost(connection)
                if time.monotonic() > deadline:
                    raise HostError(f"{self.name}: {what}: the connection broke ({error})") from error

    def rtt_s(self) -> float:
        """Least of three keepalive requests, which the server's sshd answers itself: one round trip each."""

        return min(self._again("ping", self._ping) for _ in range(3))

    def ping_s(self) -> float:
        """One such request over the connection that is there; a broken one is not made anew."""
        with self._lock:
            connection = self._connection
        if connection is None:
            raise HostError(f"{self.name}: not connected")
        try:
            return self._ping(connection)
        except BROKEN as error:
            raise HostError(f"{self.name}: no answer to a keepalive request ({error})") from error

    def _ping(self, connection: Connection) -> float:
        with self._pinging:  # paramiko keeps one answer for all who wait
            begun = time.perf_counter()
            with ended_after(OPERATION_S, connection.close):
                connection.transport.global_request("keepalive@openssh.com", wait=True)
            if not connection.active:
                raise EOFError("the connection ended")
            return time.perf_counter() - begun

    # -- commands

    def run(
        self, argv: Sequence[str], *, timeout_s: float = 30.0, stdin: bytes = b"", idempotent: bool = False
    ) -> Completed:
        """Run a short command through the login shell, in the home folder."""
        command = remote_command(argv)
        deadline = time.monotonic() + RECONNECT_S
        while True:
            connection = self._live(deadline)
            started = False
            try:
                with self._commands:
                    channel = self._session(connection, time.monotonic() + OPERATION_S)
                    try:
                        started = True
                        with ended_after(OPERATION_S, channel.close):
                            channel.exec_command(command)
                        return converse(channel, stdin, time.monotonic() + timeout_s)
                    finally:
                        quiet_close(channel)
            except NoAnswer as error:
                words = f"`{argv[0]}` gave no answer in {timeout_s:g} s (it may still run)"
                raise HostError(f"{self.name}: {words}") from error
            except BROKEN as error:
                self._lost(connection)
                if started and not idempotent:
                    raise HostError(
                        f"{self.name}: the connection broke while `{argv[0]}` ran; its end is not known ({error})"
                    ) from error
                if time.monotonic() > deadline:
                    raise HostError(f"{self.name}: `{argv[0]}`: the connection broke ({error})") from error

    def _session(self, connection: Connection, deadline: float) -> paramiko.Channel:
        """A session channel; where the server allows fewer than we use, wait for one of ours to end."""
        while True:
            try:
                return connection.transport.open_session(timeout=OPERATION_S)
            except paramiko.SSHException as error:
                # Of several refused at once paramiko tells one why; the others get a plain SSHException.
                if not connection.active:
                    raise
                if time.monotonic() > deadline:
                    words = "sshd opens no further session; its MaxSessions should be 10, the default"
                    raise HostError(f"{self.name}: {words} ({error})") from error
                time.sleep(0.1)  # the session to wait for may be another process's: no event of ours says that it ended

    # -- files

    @contextlib.contextmanager
    def _files(self, connection: Connection) -> Iterator[paramiko.SFTPClient]:
        """SFTP for one thread at a time: of two that wait for answers, paramiko lets one read the other's and wait for
        ever for its own."""
        with self._using_files:
            yield self._file_client(connection)

    def _file_client(self, connection: Connection) -> paramiko.SFTPClient:
        with self._lock:
            if self._connection is not connection:
                raise EOFError("the connection was replaced")
            if self._sftp is None:
                try:
                    channel = self._session(connection, time.monotonic() + OPERATION_S)
                    with ended_after(OPERATION_S, channel.close):
                        channel.invoke_subsystem("sftp")
                    channel.settimeout(OPERATION_S)
                    self._sftp = paramiko.SFTPClient(channel)
                    self._home = self._sftp.normalize(".")
                except paramiko.SSHException as error:
                    if connection.active:
                        words = "the server has no SFTP; sshd_config needs `Subsystem sftp internal-sftp`"
                        raise HostError(f"{self.name}: {words}") from error
                    raise
            return self._sftp

    def _absolute(self, path: str) -> str:
        return self._home + path[1:] if path == "~" or path.startswith("~/") else path

    def put(self, path: str, content: bytes, *, mode: int = 0o600) -> None:
        def action(connection: Connection) -> None:
            with self._files(connection) as sftp:
                target = self._absolute(path)
                self._make_folder(sftp, str(PurePosixPath(target).parent))
                temporary = f"{target}.{os.getpid()}.{threading.get_ident()}"
                with sftp.open(temporary, "w") as handle:
                    handle.chmod(mode)  # before there is anything to read
                    handle.set_pipelined(True)
                    handle.write(content)
                sftp.posix_rename(temporary, target)

        try:
            self._again(f"writing {path}", action)
        except OSError as error:
            raise HostError(f"{self.name}: cannot write {path}: {error.strerror or error}") from error

    def _make_folder(self, sftp: paramiko.SFTPClient, path: str) -> None:
        try:
            if not stat.S_ISDIR(sftp.stat(path).st_mode or 0):
                raise NotADirectoryError(f"{path} is not a folder")
        except FileNotFoundError:
            self._make_folder(sftp, str(PurePosixPath(path).parent))
            with contextlib.suppress(OSError):  # another thread may have made it; if not, the write says so
                sftp.mkdir(path, 0o700)

    def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        def action(connection: Connection) -> bytes:
            with self._files(connection) as sftp, sftp.open(self._absolute(path), "rb", bufsize=0) as handle:
                handle.seek(offset)
                parts: list[bytes] = []
                wanted = limit
                while wanted is None or wanted > 0:
                    data = handle.read(1 << 15 if wanted is None else min(wanted, 1 << 15))
                    if not data:
                        break
                    parts.append(data)
                    wanted = None if wanted is None else wanted - len(data)
                return b"".join(parts)

        try:
            return self._again(f"reading {path}", action)
        except FileNotFoundError:
            raise FileNotFoundError(path) from None
        except OSError as error:
            if path.startswith("/proc/"):  # SFTP's "Failure": the process went between open and read
                raise FileNotFoundError(path) from None
            raise HostError(f"{self.name}: cannot read {path}: {error.strerror or error}") from error

    # -- ports

    @contextlib.contextmanager
    def forward(self, port: int) -> Iterator[str]:
        """Yields ``http://127.0.0.1:N``; connections to it come out at the host's loopback ``port``."""

        def open_channel(connection: Connection) -> paramiko.Channel:
            place = ("127.0.0.1", port)
            try:
                return connection.transport.open_channel("direct-tcpip", place, ("127.0.0.1", 0), timeout=OPERATION_S)
            except paramiko.SSHException as error:
                if connection.active:
                    raise HostError(f"{self.name}: nothing answers on its port {port} ({error})") from error
                raise

        forwarder = Forwarder(lambda: self._again("forwarding", open_channel))
        try:
            yield f"http://127.0.0.1:{forwarder.port}"
        finally:
            forwarder.close()
