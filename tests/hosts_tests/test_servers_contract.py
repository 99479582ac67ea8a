"""What HostServers promises, with real processes, for this machine and over a real sshd."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
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
from sweep.model import LaunchSpec


@pytest.fixture
def servers(transport: Any, make_servers: Make) -> HostServers:
    made = make_servers(transport)
    made.prepare()
    return made


class TestServersContract:
    def test_facts(self, transport: Any, make_servers: Make) -> None:
        facts = make_servers(transport).prepare((sys.executable, "-c", "print('noise'); print('0.5.17')"))
        assert facts.engine_version == "0.5.17"
        assert facts.hostname == socket.gethostname()
        assert facts.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        assert facts.gpus == ()
        assert abs(facts.clock_offset_s) < 0.5
        assert facts.disk_free_mib > 0

    def test_version_command_that_fails_gives_none(self, transport: Any, make_servers: Make) -> None:
        assert make_servers(transport).prepare(("sh", "-c", "echo 9.9; exit 1")).engine_version is None

    def test_life_of_a_server(self, servers: HostServers, tmp_path: Path) -> None:
        begun = time.monotonic()
        server = servers.start(launch("--ready-after", "0.5"), "7")
        assert time.monotonic() - begun < 0.5 + 1.0, "start waits for the process, not for the server"
        log_until(servers, server, b"ready")
        state = servers.state(server)
        assert state.alive
        assert state.exit_code is None
        with urllib.request.urlopen(servers.forward(server), timeout=5) as answer:
            assert answer.read() == b"ok %d" % server.pid
        assert servers.forward(server) == servers.forward(server)
        url = servers.forward(server)
        report = servers.stop(server)
        assert report.clean
        assert report.exit_code == -signal.SIGTERM
        assert report.took_s < 5
        assert servers.state(server).reason == "stopped"
        assert gone(server.pid)
        assert ours(tmp_path) == []
        if not url.endswith(f":{server.port}"):  # over SSH the forward is ours and goes with the server
            with pytest.raises(OSError, match="refused"):
                urllib.request.urlopen(url, timeout=5)

    def test_stop_is_verified_within_a_second_of_the_exit(self, servers: HostServers) -> None:
        server = servers.start(launch(), "1")
        log_until(servers, server, b"ready")
        assert servers.stop(server).took_s < 1.5  # the server goes at once; a second is allowed beyond that, plus noise

    def test_stop_again_is_harmless(self, servers: HostServers) -> None:
        server = servers.start(launch(), "1")
        assert servers.stop(server).clean
        assert servers.stop(server).clean

    def test_ready_line_is_there_within_300_ms(self, servers: HostServers) -> None:
        server = servers.start(launch("--ready-after", "0.7"), "1")
        text = log_until(servers, server, b"\n")
        noticed = time.time()
        printed = float(text.decode().rsplit("ready at ", 1)[1].split()[0])
        assert noticed - printed <= 0.3

    def test_placeholders_files_and_environment(self, servers: HostServers, tmp_path: Path) -> None:
        script = (
            'stat -c %a "$2" "$3"; cat "$3"; printf "%s|" "$@" "$A" "$B"; '
            'echo "$SPECSWEEP_MARKER $SPT_NOENV end"; exec sleep 60'
        )
        spec = LaunchSpec(
            argv=("sh", "-c", script, "sh", "@PORT@", "@DIR@", "@DIR@/key file.yaml", "$(touch pwned)", "@BASE@"),
            env={"A": "@DIR@/x;\n'", "B": "b b"},
            files={"key file.yaml": b"content\n"},
        )
        server = servers.start(spec, "1")
        text = log_until(servers, server, b" end\n").decode()
        folder = server.run_dir
        words = [str(server.port), folder, f"{folder}/key file.yaml", "$(touch pwned)", str(Path(folder).parents[1])]
        words += [f"{folder}/x;\n'", "b b", f"{server.marker} 1 end\n"]
        assert text == "700\n600\ncontent\n" + "|".join(words)
        assert server.marker.startswith("s/1/")
        assert server.argv[4] == str(server.port)
        servers.stop(server)
        assert not Path(folder, "key file.yaml").exists(), "secret files go with the server"

    def test_secrets_do_not_reach_log_or_record(self, servers: HostServers, tmp_path: Path) -> None:
        script = (
            'printf "key=%s " "$(cat "$1"/key)"; printf "tok"; sleep 0.4; echo "en-abcdef $TOKEN end"; exec sleep 60'
        )
        spec = LaunchSpec(
            argv=("sh", "-c", script, "sh", "@DIR@"),
            secret_env={"TOKEN": "token-abcdef"},
            files={"key": b"api-key-123456"},
            api_key="api-key-123456",
        )
        server = servers.start(spec, "1")
        text = log_until(servers, server, b" end\n")
        assert text == b"key=*** *** *** end\n", "also where a secret is split over two writes"
        environment = Path(f"/proc/{server.pid}/environ").read_bytes()
        assert b"TOKEN=token-abcdef" in environment
        servers.stop(server)
        for path in (tmp_path / "base").rglob("*"):
            if path.is_file():
                assert b"token-abcdef" not in path.read_bytes(), path
                assert b"api-key-123456" not in path.read_bytes(), path

    def test_files_are_private(self, servers: HostServers, tmp_path: Path) -> None:
        server = servers.start(launch(), "1")
        log_until(servers, server, b"ready")
        for path in (tmp_path / "base").rglob("*"):
            assert path.stat().st_mode & 0o077 == 0, path

    def test_early_exit(self, servers: HostServers) -> None:
        server = servers.start(launch("--exit", "3"), "1")
        state = ended(servers, server)
        assert (state.exit_code, state.reason) == (3, "exited")
        assert servers.read_log(server, 0)[0] == b"going down\n"

    def test_killed_server(self, servers: HostServers) -> None:
        server = servers.start(launch(), "1")
        log_until(servers, server, b"ready")
        os.kill(server.pid, signal.SIGKILL)
        assert ended(servers, server).exit_code == -9

    def test_program_that_does_not_exist(self, servers: HostServers) -> None:
        server = servers.start(LaunchSpec(argv=("/no/such/python", "-m", "x")), "1")
        assert ended(servers, server).exit_code == 127
        assert b"cannot run /no/such/python: No such file" in servers.read_log(server, 0)[0]

    def test_ports_differ_and_are_free(self, servers: HostServers, monkeypatch: pytest.MonkeyPatch) -> None:
        first, second = (
            servers.start(launch("--ready-after", "9"), "1"),
            servers.start(launch("--ready-after", "9"), "2"),
        )
        assert first.port != second.port, "a port is promised before it is bound"

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

    def test_ps_and_reconcile(self, transport: Any, make_servers: Make, tmp_path: Path) -> None:
        """The controller dies; its successor keeps one launch, ends the other, and can use what it kept."""
        dead = dead_holder()
        before = make_servers(transport, holder=dead)
        before.prepare()
        kept, left = before.start(launch(), "1"), before.start(launch("--ignore-term"), "2")
        log_until(before, kept, b"ready")
        log_until(before, left, b"ready")
        after = make_servers(LocalTransport(LocalSettings("here")))
        after.prepare()
        seen = after.ps()
        assert {(f.study, f.launch, f.pid, f.server_alive, f.supervised) for f in seen} == {
            ("s", "1", kept.pid, True, True),
            ("s", "2", left.pid, True, True),
        }
        found = after.reconcile({"1"}, grace_s=0.5)
        assert {(f.launch, f.kept) for f in found} == {("1", True), ("2", False)}
        assert gone(left.pid)
        adopted = after.adopt(next(f for f in found if f.kept), "1", launch())
        assert (adopted.pid, adopted.port, adopted.marker) == (kept.pid, kept.port, kept.marker)
        assert adopted.argv == kept.argv
        assert after.state(adopted).alive
        assert answers(after.forward(adopted))
        with pytest.raises(BusyError, match="belongs to study"):
            before.stop(kept)
        with pytest.raises(BusyError):
            before.renew()
        with pytest.raises(BusyError):
            before.start(launch(), "3")
        assert after.state(adopted).alive, "the old owner could touch nothing"
        assert after.stop(adopted).clean
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
        """The server goes with its supervisor; what escaped is found by record and marker."""
        note = tmp_path / "pid"
        server = servers.start(launch("--escape", "rename", "--pid-file", str(note)), "1")
        log_until(servers, server, b"ready")
        child = int(wait_for(lambda: note.exists() and note.read_text()))
        os.kill(supervisor_of(server), signal.SIGKILL)
        wait_for(lambda: gone(server.pid), 5)
        state = servers.state(server)
        assert (state.alive, state.exit_code, state.reason) == (False, None, "supervisor_lost")
        assert not gone(child)
        assert servers.stop(server).clean
        assert gone(child)

    def test_unprepared(self, transport: Any, make_servers: Make) -> None:
        servers = make_servers(transport)
        servers.inspect()
        with pytest.raises(HostError, match="was not prepared"):
            servers.start(launch(), "1")

    def test_python_that_is_not_there(self, transport: Any, make_servers: Make) -> None:
        with pytest.raises(HostError, match=r"no-python.*set the host's `python:`"):
            make_servers(transport, python="/opt/no-python").prepare()

    def test_activate(self, transport: Any, make_servers: Make, tmp_path: Path) -> None:
        folder = tmp_path / "my env;"
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "pyth").symlink_to(sys.executable)
        (folder / "enter").write_text(f"echo entering\nexport PATH='{folder}/bin':$PATH ENTERED=yes\n")
        servers = make_servers(transport, python="pyth", activate=f". '{folder}/enter'")
        facts = servers.prepare(("pyth", "-c", "import os; print(os.environ['ENTERED'])"))
        assert facts.engine_version == "yes"
        server = servers.start(
            LaunchSpec(argv=("@PYTHON@", "-c", "import os; print(os.environ['ENTERED'], os.getpid())")), "1"
        )
        ended(servers, server)
        assert servers.read_log(server, 0)[0] == b"entering\nyes %d\n" % server.pid
        assert server.argv[0] == "pyth"

    def test_models(self, servers: HostServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = tmp_path / "draft model"
        folder.mkdir()
        (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 4096}')
        bare = tmp_path / "bare"
        bare.mkdir()
        models = servers.models([str(folder), str(bare), "nobody/nothing"])
        draft = models[str(folder)]
        assert draft.architecture == "LlamaForCausalLMEagle3"
        assert draft.config_hash is not None
        assert len(draft.config_hash) == 12
        assert models[str(bare)].folder == str(bare)
        assert models[str(bare)].config is None
        assert models["nobody/nothing"].folder is None

    def test_path_capacity(self, servers: HostServers) -> None:
        assert servers.path_capacity(seconds=0.3) > 1000


def supervisor_of(server: RunningServer) -> int:
    return int(json.loads(Path(server.run_dir, "state.json").read_text())["supervisor"]["pid"])


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
