"""Where SSH leads: names, configuration, jump hosts, and login shells of every kind."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hosts_helpers import keygen

from launchers.hosts import ssh_config
from launchers.hosts.quoting import remote_command
from launchers.hosts.ssh_config import resolve, split_jump
from sweep.errors import HostError

pytestmark = pytest.mark.ssh


class TestPlaces:
    def test_nothing_listens(self, sshd: Any, dial: Any) -> None:
        sshd.stop()
        with pytest.raises(HostError, match="connection refused: does sshd run there"):
            dial("gpu-a")

    def test_name_that_does_not_exist(self, dial: Any) -> None:
        with pytest.raises(HostError, match="the name cannot be resolved"):
            dial("no-such-host.invalid")

    @pytest.mark.parametrize("name", ["-oProxyCommand=touch pwned", "", "a b", "a\nb"])
    def test_names_that_are_none(self, name: str, dial: Any, private_home: Path) -> None:
        with pytest.raises(HostError, match="is not a host name"):
            dial(name)

    def test_something_else_listens(self, dial: Any) -> None:
        import socket

        with socket.create_server(("127.0.0.1", 0)) as listener:

            def speak() -> None:
                connection, _ = listener.accept()
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 100)
                connection.close()

            threading.Thread(target=speak, daemon=True).start()
            with pytest.raises(HostError, match="no SSH session"):
                dial("127.0.0.1", port=listener.getsockname()[1], user="x")

    def test_jump_host(self, sshd_factory: Callable[..., Any], dial: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """gpu-b is reached through gpu-a and only through it: proven by ending gpu-a."""
        first, second = sshd_factory("gpu-a"), sshd_factory("gpu-b")
        with second.known_hosts.open("a") as known:
            known.write(first.known_hosts.read_text())
        lines = second.client_config.read_text().replace("Host gpu-b\n", "Host gpu-b\n  ProxyJump gpu-a\n")
        config = second.folder / "joint"
        config.write_text(first.client_config.read_text().split("Host *")[0] + lines)
        monkeypatch.setenv("SWEEP_SSH_CONFIG", str(config))
        transport = dial("gpu-b")
        port = transport.run(["sh", "-c", "echo $SSH_CONNECTION"]).stdout.split()[3]
        assert int(port) == second.port
        first.stop()
        with pytest.raises(HostError, match=f"gpu: .*127.0.0.1:{first.port}: connection refused"):
            dial("gpu-b")

    def test_jump_that_leads_to_itself(self, tmp_path: Path, dial: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        config = tmp_path / "config"
        config.write_text("Host loop\n  ProxyJump loop\n  HostName 127.0.0.1\n")
        monkeypatch.setenv("SWEEP_SSH_CONFIG", str(config))
        with pytest.raises(HostError, match="leads to itself"):
            dial("loop")

    def test_proxy_command(self, sshd: Any, dial: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        program = tmp_path / "proxy.py"
        program.write_text(
            "import socket, sys, threading, os\n"
            "s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
            "def up():\n    while d := os.read(0, 65536): s.sendall(d)\n    s.shutdown(1)\n"
            "threading.Thread(target=up, daemon=True).start()\n"
            "while d := s.recv(65536): os.write(1, d)\n"
        )
        text = sshd.client_config.read_text()
        config = tmp_path / "config"
        config.write_text(text.replace("Host gpu-a\n", f"Host gpu-a\n  ProxyCommand python3 {program} %p\n"))
        monkeypatch.setenv("SWEEP_SSH_CONFIG", str(config))
        assert dial("gpu-a").run(["echo", "through"]).stdout == b"through\n"

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("gate", ("gate", None, None)),
            ("bob@gate:2222", ("gate", "bob", 2222)),
            ("ssh://bob@gate:22", ("gate", "bob", 22)),
            ("[2001:db8::1]:2222", ("2001:db8::1", None, 2222)),
            ("2001:db8::1", ("2001:db8::1", None, None)),
            ("a@b@gate", ("gate", "a@b", None)),
        ],
    )
    def test_words_of_proxyjump(self, text: str, expected: object) -> None:
        assert split_jump(text) == expected

    def test_configuration(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        keys = [keygen(tmp_path / "key")]
        config = tmp_path / "config"
        config.write_text(
            f"Host gpu\n HostName 192.0.2.9\n Port 2022\n User ann\n IdentityFile {keys[0]}\n IdentityFile /none\n"
            " ProxyJump one,two:99\n HostKeyAlias name\n UserKnownHostsFile /x/known /y/known\n ConnectTimeout 3\n"
        )
        monkeypatch.setenv("SWEEP_SSH_CONFIG", str(config))
        monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
        for client in (True, False):
            if not client:
                monkeypatch.setattr(ssh_config.shutil, "which", lambda name: None)
            found = resolve("gpu")
            assert (found.hostname, found.port, found.user) == ("192.0.2.9", 2022, "ann")
            assert found.keys == tuple(keys)
            assert found.agent == "/run/agent"
            assert found.jumps == ("one", "two:99")
            assert found.known_name == "name"
            assert found.known_hosts[:2] == (Path("/x/known"), Path("/y/known"))
            assert found.connect_timeout_s == 3
            explicit = resolve("gpu", user="bob", port=22, key=str(keys[0]))
            assert (explicit.user, explicit.port, explicit.agent) == ("bob", 22, None)

    @pytest.mark.parametrize(
        ("words", "agent"),
        [
            ("IdentityAgent none", None),
            ("IdentityAgent /x/%h.sock", "/x/gpu.sock"),
            ("IdentityAgent $OTHER", "/other"),
            ("IdentityAgent SSH_AUTH_SOCK", "/run/agent"),
            ("IdentitiesOnly yes", None),
        ],
    )
    def test_which_agent(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, agent: str | None) -> None:
        config = tmp_path / "config"
        config.write_text(f"Host gpu\n {words}\n")
        monkeypatch.setenv("SWEEP_SSH_CONFIG", str(config))
        monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
        monkeypatch.setenv("OTHER", "/other")
        assert resolve("gpu").agent == agent


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "zsh", "fish", "tcsh"])
def test_quoting_in_any_login_shell(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    words = ["a b", "it's", "!x", "\\'\\n", "%d\n\n", "$(touch pwned)", "`touch pwned`", "é\udcff", "~", "*"]
    argv = ["printf", "%s|", *words]
    folder = tmp_path / "empty"
    folder.mkdir()
    done = subprocess.run([shell, "-c", remote_command(argv)], capture_output=True, cwd=folder, check=True)
    assert done.stdout.decode("utf-8", "surrogateescape") == "".join(f"{word}|" for word in words)
    assert not list(folder.iterdir())


def test_quoting_refuses_a_nul_byte() -> None:
    with pytest.raises(ValueError, match="NUL"):
        remote_command(["a\0b"])
