"""The file that is sent to hosts: any Python from 3.8 on, full disks, hostile requests."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hosts_helpers import Make, ended, gone, launch, log_until, ours, wait_for

from launchers import remote, supervisor
from launchers.hosts.local import LocalSettings, LocalTransport
from launchers.servers import HostServers
from sweep.errors import HostError
from sweep.model import LaunchSpec

SOURCE = Path(supervisor.__file__)


def oldest_python() -> str | None:
    """A Python older than ours, the oldest from 3.8 on that works here."""
    for minor in range(8, sys.version_info.minor):
        homes = [Path(sys.base_prefix).parent.glob(f"3.{minor}.*/bin/python3.{minor}")]
        found = [str(path) for home in homes for path in home] + [shutil.which(f"python3.{minor}")]
        for path in filter(None, found):
            if subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
                return path
    return None


@pytest.fixture
def servers(make_servers: Make) -> HostServers:
    made = make_servers(LocalTransport(LocalSettings("here")))
    made.prepare()
    return made


def test_imports_only_the_standard_library() -> None:
    tree = ast.parse(SOURCE.read_text(), feature_version=(3, 8))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= set(sys.stdlib_module_names) | {"__future__"}


def test_life_of_a_server_under_an_old_python(make_servers: Make, tmp_path: Path) -> None:
    python = oldest_python()
    if python is None:
        pytest.skip("no Python between 3.8 and ours here")
    servers = make_servers(LocalTransport(LocalSettings("here")), python=python)
    facts = servers.prepare()
    assert tuple(map(int, facts.python_version.split(".")[:2])) < sys.version_info[:2]
    note = tmp_path / "pid"
    server = servers.start(launch("--escape", "reparent", "--pid-file", str(note)), "1")
    log_until(servers, server, b"ready")
    child = int(wait_for(lambda: note.exists() and note.read_text()))
    servers.renew()
    assert servers.models(["none"])["none"].folder is None
    assert [found.pid for found in servers.ps()] == [server.pid]
    assert servers.stop(server).clean
    assert gone(child)


def test_python_that_is_too_old_is_named(make_servers: Make) -> None:
    old = next(iter(sorted(Path(sys.base_prefix).parent.glob("3.6.*/bin/python3.6"))), None)
    if old is None:
        pytest.skip("no Python 3.6 here")
    with pytest.raises(HostError, match=r"Python 3.8 or newer is needed"):
        make_servers(LocalTransport(LocalSettings("here")), python=str(old)).prepare()


class TestMasker:
    def test_every_way_to_split_a_secret(self) -> None:
        text = b"key=secret-abc, then secret-abcdef and sec"
        for cut in range(len(text)):
            for second in range(cut, len(text), 3):
                masker = supervisor.Masker(["secret-abc", "secret-abcdef", "short"])
                parts = [text[:cut], text[cut:second], text[second:]]
                got = b"".join(masker.feed(part) for part in parts) + masker.flush()
                assert b"secret-abc" not in got
                assert got.replace(b"***def", b"***") == b"key=***, then *** and sec"

    def test_short_values_are_left(self) -> None:
        masker = supervisor.Masker(["1", "true", "s" * (supervisor.MIN_SECRET - 1)])
        assert masker.feed(b"1 true sssss 1") == b"1 true sssss 1"


class TestLog:
    def test_pieces_of_exactly_one_segment(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(supervisor, "SEGMENT", 100)
        log = supervisor.Log(str(tmp_path), [])
        for number in range(500):
            log.write(b"%05d\n" % number)
        kept = {path.name: path.stat().st_size for path in tmp_path.glob("server.log*")}
        assert kept == {"server.log": 100, **{f"server.log.{n}": 100 for n in range(24, 30)}}
        assert log.size == 3000
        assert log.first == 2400
        log.write(b"x")
        assert (tmp_path / "server.log.30").read_bytes() == b"x"

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount the small disk")
    def test_full_disk_loses_output_and_nothing_else(self, make_servers: Make, tmp_path: Path) -> None:
        """A disk of 2 MiB fills up with the log: the server lives on, its end is still recorded."""
        disk = tmp_path / "disk"
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], check=True)
        try:
            servers = make_servers(LocalTransport(LocalSettings("here")), base_dir=str(disk / "base"))
            servers.prepare()
            server = servers.start(launch("--flood", "20000000"), "1")
            time.sleep(1.0)
            wait_for(lambda: answers(server.port), 20)
            assert servers.state(server).alive
            report = servers.stop(server)
            assert report.exit_code == -15
            assert report.clean
            state = servers.state(server)
            assert state.reason == "stopped"
            assert state.log_dropped > 10_000_000
            servers.close()
        finally:
            subprocess.run(["umount", "-l", str(disk)], check=True)


def answers(port: int) -> bool:
    import socket

    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


class TestRequests:
    @pytest.mark.parametrize("name", ["../x", "a/b", "/etc/x"])
    def test_files_stay_in_the_launch_folder(self, servers: HostServers, name: str) -> None:
        with pytest.raises(HostError, match="must be a plain name"):
            servers.start(LaunchSpec(argv=("true",), files={name: b""}), "1")

    def test_study_and_launch_names_become_folder_names(self, make_servers: Make, tmp_path: Path) -> None:
        servers = make_servers(LocalTransport(LocalSettings("here")), study="../../evil $(x)/é")
        servers.prepare()
        server = servers.start(launch("--exit", "0"), "a/../b")
        assert Path(server.run_dir).parent.name == "runs"
        assert Path(server.run_dir).is_relative_to(tmp_path / "base")

    def test_old_launches_are_tidied_away(self, servers: HostServers, monkeypatch: pytest.MonkeyPatch) -> None:
        last = None
        for number in range(3):
            last = servers.start(LaunchSpec(argv=("true",)), str(number))
            ended(servers, last)
        assert last is not None
        wait_for(lambda: json.loads(Path(last.run_dir, "state.json").read_text())["finished"])
        base = Path(last.run_dir).parents[1]
        for number in range(60):
            state = json.loads(Path(last.run_dir, "state.json").read_text())
            folder = base / "runs" / f"s.old{number}.1"
            folder.mkdir()
            (folder / "state.json").write_text(json.dumps({**state, "ended": float(number)}))
        supervisor.tidy(str(base))
        names = {path.name for path in (base / "runs").iterdir()}
        assert len(names) == supervisor.KEEP_RUNS
        assert Path(last.run_dir).name in names
        assert "s.old0.1" not in names
        assert "s.old59.1" in names

    def test_folders_without_a_record_are_tidied_by_the_same_rule(self, servers: HostServers, tmp_path: Path) -> None:
        """The host died before the record was written, or half of it was; its processes may live all the same."""
        live = servers.start(launch(), "live")
        log_until(servers, live, b"ready")
        top = Path(live.run_dir).parent
        for name in ("s.broken.1", "s.missing.1", "s.guarded.1", "s.served.1"):
            (top / name).mkdir()
        (top / "s.broken.1" / "state.json").write_text('{"study": "s", "la')
        newer = [top / f"s.new{number}.1" for number in range(supervisor.KEEP_RUNS)]
        for folder in newer:
            folder.mkdir()
        (top / "s.guarded.1" / "supervisor.log").touch()
        for folder in top.glob("s.[bmgs]*.1"):
            os.utime(folder, (1.0, 1.0))
        with (top / "s.guarded.1" / "supervisor.log").open("w") as log:
            guard = subprocess.Popen(["sleep", "60"], stderr=log)
        marked = {**os.environ, "SPECSWEEP_MARKER": "s/served/1/ab", "SPECSWEEP_BASE": str(top.parent)}
        server = subprocess.Popen(["sleep", "60"], env=marked)
        kept = {folder.name for folder in newer} | {Path(live.run_dir).name}
        try:
            wait_for(lambda: supervisor.environment(server.pid))  # it has become `sleep`
            supervisor.tidy(str(top.parent))
            assert {path.name for path in top.iterdir()} == kept | {"s.guarded.1", "s.served.1"}
        finally:
            for process in (guard, server):
                process.kill()
                process.wait()
        supervisor.tidy(str(top.parent))
        assert {path.name for path in top.iterdir()} == kept
        assert servers.state(live).alive

    def test_a_server_that_cannot_be_recorded_is_not_left_running(
        self, servers: HostServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The disk failed at that very moment: nobody could end it, or find its key."""
        broken = """
import os, sys; os.umask(0o77); sys.path.insert(0, sys.argv[1]); import {} as it
write = it.write_json
def fail(path, value):
    if path.endswith("state.json"):
        raise OSError(5, "the disk is broken")
    write(path, value)
it.write_json = fail
it.main(sys.argv[1:])
"""
        spec = replace(launch(), files={"key.yaml": b"secret"})
        with monkeypatch.context() as patch:
            patch.setattr(remote, "_RUN", broken)
            with pytest.raises(HostError, match=r"the launch's record cannot be written to .*/runs/s\.1\.1"):
                servers.start(spec, "1")
        wait_for(lambda: ours(tmp_path) == [])
        assert {path.name for path in (tmp_path / "base").glob("*/runs/s.1.1/*")} <= {"server.log", "supervisor.log"}
        assert servers.ps() == ()
        again = servers.start(spec, "1")
        assert log_until(servers, again, b"ready")

    def test_supervisor_takes_no_part_in_the_servers_environment(self, servers: HostServers) -> None:
        server = servers.start(launch(), "1")
        log_until(servers, server, b"ready")
        entries = {e.split(b"=", 1)[0] for e in Path(f"/proc/{server.pid}/environ").read_bytes().split(b"\0")}
        assert {b"SPECSWEEP_MARKER", b"SPECSWEEP_BASE", b"SPT_NOENV"} <= entries
        assert os.getpgid(server.pid) == server.pgid == os.getsid(server.pid)
        assert os.getpgid(supervisor_pid(server)) != server.pgid

    def test_sigterm_to_the_supervisor_ends_the_server(self, servers: HostServers) -> None:
        """As when the host shuts down."""
        server = servers.start(launch(), "1")
        log_until(servers, server, b"ready")
        os.kill(supervisor_pid(server), 15)
        assert ended(servers, server).reason == "stopped"


def supervisor_pid(server: Any) -> int:
    return int(json.loads(Path(server.run_dir, "state.json").read_text())["supervisor"]["pid"])
