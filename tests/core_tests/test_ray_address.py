"""An address where no Ray cluster answers: every kind of it is refused soon, in words, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweep import ray_address
from sweep.cli.installation import _ray_cluster
from sweep.errors import HostError
from sweep.ray_address import configured, require_cluster

HERE = "127.0.0.2"  # for 127.0.0.1 Ray puts the machine's own address
SILENT = "something listens at {}, but no Ray head answered within 1 s"


@contextlib.contextmanager
def nobody() -> Iterator[int]:
    with socket.create_server((HERE, 0)) as probe:
        port: int = probe.getsockname()[1]
    yield port


@contextlib.contextmanager
def dropping() -> Iterator[int]:
    """A full queue of connections: the kernel drops the packets of further ones."""
    with socket.create_server((HERE, 0), backlog=0) as server, contextlib.ExitStack() as waiting:
        port: int = server.getsockname()[1]
        for _ in range(3):
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex((HERE, port))
        yield port


@contextlib.contextmanager
def listening(greeting: bytes) -> Iterator[int]:
    """Takes every connection, says so much, and no more."""
    taken: list[socket.socket] = []

    def serve() -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                taken.append(server.accept()[0])
                taken[-1].sendall(greeting)

    with socket.create_server((HERE, 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in taken:
                connection.close()


def children() -> str:
    return Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/children").read_text()


@pytest.mark.parametrize(
    ("there", "words"),
    [
        (nobody(), "no Ray cluster at {}: Connection refused. Start one there (`ray start --head`)"),
        (dropping(), "no Ray cluster at {}: no answer in 1 s. Start one there"),
        (listening(b""), SILENT),
        (listening(b"SSH-2.0-OpenSSH_9.6\r\n"), SILENT),
        (listening(b"HTTP/1.1 400 Bad Request\r\n\r\n"), SILENT),
    ],
    ids=["nobody", "dropped", "silent", "sshd", "http"],
)
def test_nobody_answers(
    there: contextlib.AbstractContextManager[int], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_address, "CONNECT_S", 1.0)
    monkeypatch.setattr(ray_address, "ANSWER_S", 1.0)
    before = children(), threading.active_count()
    with there as port:
        begun = time.monotonic()
        with pytest.raises(HostError) as raised:
            require_cluster(f"{HERE}:{port}")
        assert time.monotonic() - begun < 5
    assert words.format(f"{HERE}:{port}") in str(raised.value)
    assert "Mend `ray.address`" in str(raised.value)
    assert (children(), threading.active_count()) == before
    assert HostError.exit_code == 7


@pytest.mark.parametrize(
    ("address", "words"),
    [("ray://10.0.0.1:10001", "Ray Client"), ("gpu-a", "Invalid address format"), ("127.0.0.1:70000", "70000")],
)
def test_no_address(address: str, words: str) -> None:
    with pytest.raises(HostError, match=words):
        require_cluster(address)


def test_which_cluster_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert configured(None) is None
    assert configured("a:1") == "a:1"
    monkeypatch.setenv("RAY_ADDRESS", "b:2")
    assert configured(None) == "b:2"
    assert configured("a:1") == "a:1", "the study's own word is nearer"
    monkeypatch.setenv("RAY_ADDRESS", "local")
    assert configured(None) is None


def test_doctor_says_so() -> None:
    with nobody() as port:
        found = _ray_cluster(f"{HERE}:{port}")
    assert (found.status, found.value) == ("fail", f"no Ray cluster at {HERE}:{port}: Connection refused")
    assert "ray start --head" in found.advice
