"""Connections that break, and servers that allow little."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hosts_helpers import Make, launch, log_until, ours, wait_for

from launchers import path_watch
from launchers.hosts import ssh
from launchers.path_watch import PathWatch, stood_still, why_disturbed
from sweep.errors import HostError

pytestmark = pytest.mark.ssh


def asked(url: str) -> bytes | None:
    """The server's answer; None for a request that was lost with the connection."""
    try:
        with urllib.request.urlopen(url, timeout=15) as answer:
            return bytes(answer.read())
    except OSError:
        return None


class TestLostConnections:
    def test_files_and_repeatable_commands_carry_on(self, sshd: Any, dial: Any, tmp_path: Path) -> None:
        transport = dial("gpu-a")
        transport.put(str(tmp_path / "f"), b"1")
        assert sshd.drop_connections()
        assert transport.read(str(tmp_path / "f")) == b"1"
        assert sshd.drop_connections()
        assert transport.run(["echo", "x"], idempotent=True).stdout == b"x\n"
        assert sshd.drop_connections()
        transport.put(str(tmp_path / "f"), b"2")
        assert (tmp_path / "f").read_bytes() == b"2"

    def test_a_command_is_not_repeated_unless_it_may_be(self, sshd: Any, dial: Any, tmp_path: Path) -> None:
        """The connection breaks while the command runs: how often did it begin?"""
        transport = dial("gpu-a")
        for idempotent, times in ((False, 1), (True, 2)):
            marks = tmp_path / f"marks{idempotent}"
            argv = ["sh", "-c", 'echo x >> "$0"; [ "$(wc -l < "$0")" = 2 ] || sleep 2', str(marks)]
            threading.Timer(0.7, sshd.drop_connections).start()
            if idempotent:
                assert transport.run(argv, idempotent=True).exit_code == 0
            else:
                with pytest.raises(HostError, match="the connection broke while `sh` ran; its end is not known"):
                    transport.run(argv)
            assert len(marks.read_text().splitlines()) == times

    def test_server_away_for_seconds(self, sshd: Any, dial: Any, tmp_path: Path) -> None:
        transport = dial("gpu-a")
        sshd.stop()
        threading.Timer(1.5, sshd.start).start()
        begun = time.monotonic()
        assert transport.run(["echo", "back"], idempotent=True).stdout == b"back\n"
        assert 1.0 < time.monotonic() - begun < 10

    def test_a_key_that_changed_meanwhile_is_not_tried_again(self, sshd: Any, dial: Any) -> None:
        """Back-off is for the network: refused keys end it at once, or the server would shut us out."""
        transport = dial("gpu-a")
        (sshd.folder / "authorized_keys").write_text("")
        assert sshd.drop_connections()
        begun = time.monotonic()
        with pytest.raises(HostError, match=r"gpu: .*not let in"):
            transport.read("/proc/self/stat")
        assert time.monotonic() - begun < 5
        assert (sshd.folder / "sshd.log").read_text().count("Connection closed by authenticating user") <= 1

    def test_close_ends_the_attempts(self, sshd: Any, dial: Any) -> None:
        transport = dial("gpu-a")
        sshd.stop()
        threading.Timer(0.5, transport.close).start()
        begun = time.monotonic()
        with pytest.raises(HostError, match="the connection was closed"):
            transport.run(["true"], idempotent=True)
        assert time.monotonic() - begun < 8

    def test_server_survives_and_is_reached_again(
        self, sshd: Any, dial: Any, make_servers: Make, tmp_path: Path
    ) -> None:
        """All SSH processes are killed in mid-life: the server runs on, the same base URL works again."""
        servers = make_servers(dial("gpu-a"))
        servers.prepare()
        server = servers.start(launch(), "1")
        log_until(servers, server, b"ready")
        url = servers.forward(server)
        with urllib.request.urlopen(url, timeout=5) as answer:
            assert answer.read() == b"ok %d" % server.pid
        assert sshd.drop_connections()
        assert wait_for(lambda: asked(url)) == b"ok %d" % server.pid
        assert servers.state(server).alive
        servers.renew()
        assert servers.stop(server).clean
        assert ours(tmp_path) == []

    def test_open_request_ends_with_the_connection(self, sshd: Any, dial: Any) -> None:
        """A request in flight is lost in a way its client sees at once."""
        import socket

        transport = dial("gpu-a")
        listener = socket.create_server(("127.0.0.1", 0))
        with listener, transport.forward(listener.getsockname()[1]) as url:
            client = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
            client.settimeout(10)
            far, _ = listener.accept()
            with client, far:
                far.sendall(b"half an answ")
                assert client.recv(100) == b"half an answ"
                begun = time.monotonic()
                sshd.drop_connections()
                with contextlib.suppress(ConnectionError):  # either way the client knows
                    assert client.recv(100) == b""
                assert time.monotonic() - begun < 3

    def test_a_server_that_falls_silent(self, sshd: Any, dial: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its kernel takes everything and nobody answers, as behind a jump host that lives: no wait is without end."""
        monkeypatch.setattr(ssh, "OPERATION_S", 1.0)
        transport = dial("gpu-a")
        real = transport._session

        def then_silent(connection: Any, deadline: float) -> Any:
            channel = real(connection, deadline)
            sshd.freeze()
            return channel

        monkeypatch.setattr(transport, "_session", then_silent)
        try:
            begun = time.monotonic()
            with pytest.raises(HostError, match="the connection broke while `true` ran"):
                transport.run(["true"])
            assert 0.9 < time.monotonic() - begun < 8
        finally:
            sshd.freeze(False)

    def test_a_ping_ends_too(self, sshd: Any, dial: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ssh, "OPERATION_S", 1.0)
        transport = dial("gpu-a")
        assert 0 < transport.ping_s() < 1.0
        sshd.freeze()
        try:
            begun = time.monotonic()
            with pytest.raises(HostError, match="no answer to a keepalive request"):
                transport.ping_s()
            assert 0.9 < time.monotonic() - begun < 8
        finally:
            sshd.freeze(False)

    def test_few_sessions(self, sshd_factory: Callable[..., Any], dial: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """MaxSessions 3: more commands than that at once wait for each other."""
        server = sshd_factory("gpu-a", ("MaxSessions 3",))
        monkeypatch.setenv("SWEEP_SSH_CONFIG", str(server.client_config))
        transport = dial("gpu-a")
        transport.read("/proc/self/stat")
        answers: list[int] = []
        threads = [
            threading.Thread(target=lambda: answers.append(transport.run(["sleep", "0.2"]).exit_code)) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == [0] * 8

    def test_no_sftp(self, sshd_factory: Callable[..., Any], dial: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        server = sshd_factory("gpu-a", ("Subsystem sftp /bin/false",))
        monkeypatch.setenv("SWEEP_SSH_CONFIG", str(server.client_config))
        transport = dial("gpu-a")
        with pytest.raises(HostError, match="the server has no SFTP"):
            transport.read("/etc/hostname")


class TestPathWatch:
    """An outage that TCP survives leaves a block that looks as if the server had been slow."""

    def test_an_outage_is_seen(self, sshd: Any, dial: Any) -> None:
        watch = PathWatch(dial("gpu-a").ping_s, 0.05)
        watch.start()
        time.sleep(0.3)
        sshd.freeze()
        time.sleep(1.5)
        sshd.freeze(False)
        time.sleep(0.5)
        still = watch.stop()
        assert 1.2 < still < 5.0
        assert "the path to the host stood still" in (why_disturbed(still, 10.0) or "")

    def test_a_busy_path_does_not_stand_still(self, sshd: Any, dial: Any, make_servers: Make) -> None:
        """Eight streams as fast as the path takes them: answers wait behind their bytes, but not for long."""
        transport = dial("gpu-a")
        servers = make_servers(transport)
        servers.inspect()
        port = servers._remote.call("flood", connections=8, rate=None, seconds=1.0, chunk_bytes=4096)["port"]
        watch = PathWatch(transport.ping_s, 0.05)

        def read(connection: socket.socket) -> None:
            while connection.recv(1 << 20):
                pass

        with transport.forward(port) as url, ThreadPoolExecutor(8) as pool:
            place = ("127.0.0.1", urlsplit(url).port)
            connections = [socket.create_connection(place, timeout=30) for _ in range(8)]
            watch.start()
            list(pool.map(read, connections))
            still = watch.stop()
            for connection in connections:
                connection.close()
        assert len(watch._exchanges) >= 3
        assert still == 0

    def test_a_connection_that_is_made_anew_is_an_outage(self, sshd: Any, dial: Any) -> None:
        transport = dial("gpu-a")
        watch = PathWatch(transport.ping_s, 0.05)
        watch.start()
        time.sleep(0.3)
        assert sshd.drop_connections()
        time.sleep(1.0)
        transport.run(["true"], idempotent=True)
        time.sleep(0.5)
        assert 0.9 < watch.stop() < 5.0

    def test_an_outage_that_is_not_over_is_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(path_watch, "EDGE_S", 0.2)
        silent, over = threading.Event(), threading.Event()
        watch = PathWatch(lambda: float(silent.is_set() and over.wait(5.0)), 0.05)
        watch.start()
        time.sleep(0.3)
        silent.set()
        time.sleep(1.0)
        still = watch.stop()
        over.set()
        assert 0.7 < still < 2.0

    def test_an_outage_from_the_first_request_to_the_last_chunk_is_seen(self, sshd: Any, dial: Any) -> None:
        """A block too short for two answers: the one before it says what is usual."""
        watch = PathWatch(dial("gpu-a").ping_s)
        watch.start()
        sshd.freeze()
        time.sleep(1.2)  # how long the outage lasts
        sshd.freeze(False)
        assert 0.8 < watch.stop() < 1.3

    def test_an_outage_that_begins_in_the_last_moment_is_seen(self, sshd: Any, dial: Any) -> None:
        """After the last request of the watch: the one that follows the last chunk comes back late."""
        watch = PathWatch(dial("gpu-a").ping_s, 30.0)
        watch.start()
        time.sleep(0.1)  # the block, all of it after the watch's only request
        sshd.freeze()
        threading.Timer(0.8, sshd.freeze, (False,)).start()
        begun = time.monotonic()
        still = watch.stop()
        assert 0.1 <= still < 0.5, "no more than the block lasted"
        assert 0.5 < time.monotonic() - begun < 1.5

    def test_a_block_that_begins_in_an_outage_is_not_held_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(path_watch, "EDGE_S", 0.2)
        back = threading.Event()
        watch = PathWatch(back.wait, 0.01)
        begun = time.monotonic()
        watch.start()
        assert 0.2 <= time.monotonic() - begun < 0.6
        time.sleep(0.6)  # how long the outage lasts
        back.set()
        assert 0.5 < watch.stop() < 1.0

    @pytest.mark.parametrize(
        ("exchanges", "asked", "still"),
        [
            ([], None, 0.0),  # nothing to compare with
            ([], 9.0, 0.0),
            ([(9.0, 9.6), (10.0, 10.6), (11.0, 11.6)], None, 0.0),  # slow all the time, which both arms pay alike
            ([(9.0, 9.0), (11.0, 11.4), (12.0, 12.0)], None, 0.0),  # a busy machine at either end
            ([(9.0, 9.1), (11.0, 11.1), (11.3, 12.2), (12.5, 12.6)], None, 1.0),  # from the answer at 11.1 on, less 0.1
            ([(8.0, 9.9), (10.1, 10.1), (20.0, 20.0)], None, 0.0),  # over before the block began
            ([(8.0, 8.0), (8.1, 12.0), (12.1, 12.1)], None, 2.0),  # of four seconds, two were the block's
            ([(9.9, 9.9), (19.8, 19.8), (20.1, 23.0)], None, 0.2),  # it may have begun after 19.8
            ([(9.9, 9.9), (18.0, 18.0)], 18.2, 2.0),  # not over yet
            ([(9.9, 9.9), (10.2, 11.2), (11.5, 11.5), (12.0, 14.0), (20.0, 20.0)], None, 3.7),  # twice
        ],
    )  # fmt: skip
    def test_what_counts_as_standing_still(
        self, exchanges: list[tuple[float, float]], asked: float | None, still: float
    ) -> None:
        """A block from 10 to 20 s after some moment long ago."""
        assert stood_still(exchanges, asked, begun=10.0, ended=20.0) == pytest.approx(still)

    def test_little_of_a_long_block_is_let_pass(self) -> None:
        assert why_disturbed(0.6, 61.0) is None
        assert why_disturbed(0.6, 59.0) is not None
