"""Servers that misbehave and controllers that die, for this machine and over a real sshd."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from hosts_helpers import Make, dead_holder, ended, gone, launch, log_until, ours, wait_for

from launchers import supervisor
from launchers.hosts.local import LocalSettings, LocalTransport
from launchers.servers import HostServers, RunningServer
from sweep.errors import BusyError, HostError


class TestServersFaultsContract:
    def test_term_is_followed_by_kill(self, servers: HostServers) -> None:
        server = servers.start(launch("--ignore-term"), "1")
        log_until(servers, server, b"ready")
        report = servers.stop(server, grace_s=0.5)
        assert report.clean
        assert report.exit_code == -signal.SIGKILL
        assert 0.5 <= report.took_s < 4

    @pytest.mark.parametrize("way", ["session", "reparent", "rename", "bare"])
    def test_escaped_children_are_found(self, servers: HostServers, tmp_path: Path, way: str) -> None:
        """Another session; re-parented; another name; and all of that with an empty environment."""
        note = tmp_path / "pid"
        server = servers.start(launch("--escape", way, "--pid-file", str(note)), "1")
        log_until(servers, server, b"ready")
        child = int(wait_for(lambda: note.exists() and note.read_text()))
        assert not gone(child)
        assert servers.stop(server).clean
        assert gone(child)

    def test_children_that_outlive_a_crash_are_ended(self, servers: HostServers, tmp_path: Path) -> None:
        note = tmp_path / "pid"
        server = servers.start(launch("--fork-away", "--pid-file", str(note)), "1")
        state = ended(servers, server)
        assert (state.exit_code, state.reason) == (0, "exited")
        child = int(note.read_text())
        wait_for(lambda: gone(child), 5)

    def test_stop_never_touches_what_is_not_ours(self, servers: HostServers) -> None:
        bystander = subprocess.Popen(["sleep", "60"])
        namesake = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "server.py"), "--port", "0"], stdout=subprocess.DEVNULL
        )
        try:
            server = servers.start(launch(), "1")
            log_until(servers, server, b"ready")
            servers.stop(server)
            assert bystander.poll() is None
            assert namesake.poll() is None
        finally:
            bystander.kill()
            namesake.kill()
            bystander.wait()
            namesake.wait()

    def test_closed_stdout_is_not_an_exit(self, servers: HostServers) -> None:
        server = servers.start(launch("--close-stdout"), "1")
        url = servers.forward(server)
        wait_for(lambda: answers(url))
        assert servers.state(server).alive
        assert servers.stop(server).clean

    @pytest.mark.parametrize("newline", [True, False])
    def test_log_flood_is_capped(self, servers: HostServers, newline: bool) -> None:
        """200 MB before the ready line: the disk holds 64 MiB of it, first and last parts, and says what is missing."""
        size = 200_000_000
        server = servers.start(launch("--flood", str(size), *([] if newline else ["--no-newline"])), "1")
        url = servers.forward(server)
        wait_for(lambda: answers(url), 60)
        held = sum(path.stat().st_size for path in Path(server.run_dir).glob("server.log*"))
        assert held <= 8 * supervisor.SEGMENT
        text, offset, notes = b"", 0, 0
        deadline = time.monotonic() + 20
        while b"ready at" not in text:
            assert time.monotonic() < deadline
            data, offset = servers.read_log(server, offset)
            notes += data.startswith(b"\n[specsweep: ")
            text = text[-200:] + data
        assert notes >= 1, "what is missing is said"
        assert offset > size
        assert servers.state(server).log_dropped == 0
        assert servers.stop(server).clean

    def test_lease_expiry_ends_the_server(self, transport: Any, make_servers: Make, tmp_path: Path) -> None:
        servers = make_servers(transport, lease_s=1.5)
        servers.prepare()
        server = servers.start(launch(), "1")
        for _ in range(6):
            time.sleep(0.4)
            servers.renew()
        assert servers.state(server).alive, "a renewed lease keeps it"
        state = ended(servers, server, 8)
        assert state.reason == "lease_expired"
        wait_for(lambda: ours(tmp_path) == [], 5)

    def test_close_ends_what_runs(self, transport: Any, make_servers: Make, tmp_path: Path) -> None:
        servers = make_servers(transport)
        servers.prepare()
        servers.start(launch(), "1")
        servers.close()
        assert ours(tmp_path) == []
        other = make_servers(LocalTransport(LocalSettings("here")), study="other")
        assert other.inspect().name == "here"
        assert other.holder() is None, "the host is given back"

    def test_a_start_whose_answer_is_lost_leaves_nothing(
        self, servers: HostServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The host took too long, or could not be reached: the lease goes on being renewed, so nothing else ends it."""
        ask = servers._remote.ask

        def lost(command: str, request: Any, **more: Any) -> dict[str, Any]:
            reply = ask(command, request, **more)
            if command == "start":
                assert ours(tmp_path) != []
                raise HostError("gave no answer in 30 s (it may still run)")
            return reply

        with monkeypatch.context() as patch:
            patch.setattr(servers._remote, "ask", lost)
            with pytest.raises(HostError, match="no answer in 30 s"):
                servers.start(launch("--ignore-term"), "1")
        assert ours(tmp_path) == []
        assert log_until(servers, servers.start(launch(), "2"), b"ready"), "the host can be used as before"

    def test_ps_and_reconcile(self, transport: Any, make_servers: Make, tmp_path: Path) -> None:
        """The controller dies; its successor finds both servers and ends them; the old owner can touch nothing."""
        dead = dead_holder()
        before = make_servers(transport, holder=dead)
        before.prepare()
        easy, hard = before.start(launch(), "1"), before.start(launch("--ignore-term"), "2")
        log_until(before, easy, b"ready")
        log_until(before, hard, b"ready")
        after = make_servers(LocalTransport(LocalSettings("here")))
        after.prepare()
        seen = after.ps()
        assert {(f.study, f.launch, f.pid, f.server_alive, f.supervised) for f in seen} == {
            ("s", "1", easy.pid, True, True),
            ("s", "2", hard.pid, True, True),
        }
        with pytest.raises(BusyError, match="belongs to study"):
            before.stop(easy)
        with pytest.raises(BusyError):
            before.renew()
        with pytest.raises(BusyError):
            before.start(launch(), "3")
        assert after.state(easy).alive, "the old owner could touch nothing"
        assert {found.launch for found in after.reconcile(grace_s=0.5)} == {"1", "2"}
        assert gone(easy.pid)
        assert gone(hard.pid)
        assert ours(tmp_path) == []

    def test_marked_processes_without_a_record(self, servers: HostServers, tmp_path: Path) -> None:
        note = tmp_path / "pid"
        server = servers.start(launch("--escape", "reparent", "--pid-file", str(note)), "1")
        child = int(wait_for(lambda: note.exists() and note.read_text()))
        os.kill(wait_for(lambda: supervisor_of(server)), signal.SIGKILL)
        wait_for(lambda: gone(server.pid), 5)
        assert not gone(child)
        shutil.rmtree(server.run_dir)
        (found,) = servers.ps()
        assert (found.run_dir, found.study, found.launch) == (None, "s", "1")
        assert child in dict(found.processes)
        servers.reconcile()
        assert gone(child)

    def test_supervisor_killed(self, servers: HostServers, tmp_path: Path) -> None:
        """The server goes with its supervisor; what escaped is found by record and marker, and the key is removed."""
        note = tmp_path / "pid"
        server = servers.start(launch("--escape", "rename", "--pid-file", str(note), files={"key.yaml": b"k"}), "1")
        log_until(servers, server, b"ready")
        child = int(wait_for(lambda: note.exists() and note.read_text()))
        os.kill(supervisor_of(server), signal.SIGKILL)
        wait_for(lambda: gone(server.pid), 5)
        state = servers.state(server)
        assert (state.alive, state.exit_code, state.reason) == (False, None, "supervisor_lost")
        assert not gone(child)
        assert Path(server.run_dir, "key.yaml").exists()
        assert servers.stop(server).clean
        assert gone(child)
        assert {path.name for path in Path(server.run_dir).iterdir()}.isdisjoint({"key.yaml", "reserve"})


def supervisor_of(server: RunningServer) -> int:
    return int(json.loads(Path(server.run_dir, "state.json").read_text())["supervisor"]["pid"])


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
