"""What HostServers promises, with real processes, for this machine and over a real sshd."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from hosts_helpers import Make, ended, gone, launch, log_until, ours

from launchers.servers import HostServers
from sweep.errors import HostError
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
        assert servers.path_capacity() > 1000
