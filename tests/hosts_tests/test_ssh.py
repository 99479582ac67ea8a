"""What only SSH can do wrong: keys, names, jump hosts, lost connections, a server with few sessions."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hosts_helpers import Make, launch, log_until, ours

from launchers.hosts import ssh_config
from launchers.hosts.known_hosts import KnownHosts
from launchers.hosts.quoting import remote_command
from launchers.hosts.ssh import SshSettings, SshTransport
from launchers.hosts.ssh_config import resolve, split_jump
from sweep.errors import HostError

pytestmark = pytest.mark.ssh


@pytest.fixture
def dial() -> Any:
    """``dial(host, **settings)`` gives a connected transport; all are closed at the end."""
    made: list[SshTransport] = []

    def connect(host: str, **settings: Any) -> SshTransport:
        transport = SshTransport(SshSettings("gpu", host, **settings))
        made.append(transport)
        transport.connect()
        return transport

    yield connect
    for transport in made:
        transport.close()


def keygen(path: Path, *options: str) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", *(options or ("-N", "")), "-f", str(path)], check=True)
    return path


class TestBeingLetIn:
    def test_alias_and_explicit_settings(self, sshd: Any, dial: Any) -> None:
        assert dial("gpu-a").run(["true"]).exit_code == 0
        explicit = dial("127.0.0.1", port=sshd.port, user=sshd.user, key=str(sshd.client_key))
        assert explicit.run(["true"]).exit_code == 0

    def test_without_an_ssh_client(self, sshd: Any, dial: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ssh_config.shutil, "which", lambda name: None)
        assert dial("gpu-a").run(["true"]).exit_code == 0

    def test_wrong_key(self, sshd: Any, dial: Any, tmp_path: Path) -> None:
        key = keygen(tmp_path / "other")
        with pytest.raises(HostError, match=rf"not let in; tried {key}\. Try: ssh-copy-id -p {sshd.port} "):
            dial("gpu-a", key=str(key))

    def test_key_file_that_is_not_there(self, sshd: Any, dial: Any) -> None:
        with pytest.raises(HostError, match=r"there is no key file /no/key"):
            dial("gpu-a", key="/no/key")

    def test_key_with_a_passphrase(self, sshd: Any, dial: Any, tmp_path: Path) -> None:
        key = keygen(tmp_path / "locked", "-N", "secret")
        with pytest.raises(HostError, match=r"locked has a passphrase: ssh-add it") as caught:
            dial("gpu-a", key=str(key))
        assert "secret" not in str(caught.value)

    def test_file_that_is_no_key(self, sshd: Any, dial: Any, tmp_path: Path) -> None:
        (tmp_path / "text").write_text("hello")
        with pytest.raises(HostError, match=r"text cannot be read as a private key"):
            dial("gpu-a", key=str(tmp_path / "text"))

    def test_agent(self, sshd: Any, dial: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        text = sshd.client_config.read_text().replace(f"  IdentityFile {sshd.client_key}\n", "")
        config = tmp_path / "agent_config"
        config.write_text(text.replace("IdentitiesOnly yes", "IdentitiesOnly no"))
        monkeypatch.setenv("SWEEP_SSH_CONFIG", str(config))
        with pytest.raises(HostError, match="tried no key at all"):
            dial("gpu-a")
        socket = tmp_path / "a"
        agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
        try:
            monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
            deadline = time.monotonic() + 5
            while not socket.exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            subprocess.run(["ssh-add", "-q", str(sshd.client_key)], check=True)
            assert dial("gpu-a").run(["true"]).exit_code == 0
            # Six strangers in the agent: an explicit key is tried alone, before the server hangs up.
            subprocess.run(["ssh-add", "-q", "-D"], check=True)
            for number in range(7):
                subprocess.run(["ssh-add", "-q", str(keygen(tmp_path / f"stranger{number}"))], check=True)
            with pytest.raises(HostError, match=r"hung up after too many keys: name one with `key:`"):
                dial("gpu-a")
            assert dial("gpu-a", key=str(sshd.client_key)).run(["true"]).exit_code == 0
        finally:
            agent.terminate()
            agent.wait()


class TestHostKeys:
    def test_unknown_key_is_refused_with_the_command_that_adds_it(self, sshd: Any, dial: Any) -> None:
        sshd.known_hosts.write_text("")
        with pytest.raises(HostError, match=r"the server's key is not known \(ssh-ed25519 SHA256:") as caught:
            dial("gpu-a")
        assert sshd.known_hosts.read_text() == "", "nothing is added by itself"
        command = str(caught.value).rpartition("add it: ")[2]
        assert command == f"ssh-keyscan -p {sshd.port} 127.0.0.1 >> {sshd.known_hosts}"
        subprocess.run(command, shell=True, check=True, capture_output=True)
        assert dial("gpu-a").run(["true"]).exit_code == 0

    def test_changed_key_shows_both_fingerprints(self, sshd: Any, dial: Any, tmp_path: Path) -> None:
        known = sshd.known_hosts.read_text()
        other = keygen(tmp_path / "other").with_suffix(".pub").read_text().split()[1]
        sshd.known_hosts.write_text(" ".join([*known.split()[:2], other]) + "\n")
        with pytest.raises(HostError, match="the server's key has changed") as caught:
            dial("gpu-a")
        for key in (sshd.host_key, tmp_path / "other"):
            shown = subprocess.run(["ssh-keygen", "-l", "-f", f"{key}.pub"], check=True, capture_output=True, text=True)
            assert shown.stdout.split()[1] in str(caught.value)
        command = str(caught.value).rpartition("latter: ")[2]
        assert command == f"ssh-keygen -f {sshd.known_hosts} -R '[127.0.0.1]:{sshd.port}'"
        subprocess.run(command, shell=True, check=True, capture_output=True)
        with pytest.raises(HostError, match="is not known"):
            dial("gpu-a")

    def test_a_second_known_key_of_another_type_does_not_hide_the_first(
        self, sshd: Any, dial: Any, tmp_path: Path
    ) -> None:
        keygen(tmp_path / "rsa", "-t", "rsa", "-b", "2048", "-N", "")
        kind, key = (tmp_path / "rsa.pub").read_text().split()[:2]
        name = sshd.known_hosts.read_text().split()[0]
        sshd.known_hosts.write_text(f"{name} {kind} {key}\n" + sshd.known_hosts.read_text())
        assert dial("gpu-a").run(["true"]).exit_code == 0

    def test_forms_of_known_hosts_lines(self, sshd: Any, tmp_path: Path) -> None:
        name, kind, key = sshd.known_hosts.read_text().split()
        file = tmp_path / "known"
        server_key = KnownHosts(name, [sshd.known_hosts])._keys[kind][0]

        def verdict(text: str) -> str:
            file.write_text(text)
            try:
                KnownHosts(name, [file]).check(server_key, hostname="127.0.0.1", port=sshd.port)
            except HostError as error:
                return str(error)
            return "known"

        assert verdict(f"# comment\n\nbroken line\n{name} {kind} !!!\n{name} {kind} {key}\n") == "known"
        assert verdict(f"[127.0.0.*]:* {kind} {key} a comment\n") == "known"
        assert "not known" in verdict(f"!{name},* {kind} {key}\n")
        assert "not known" in verdict(f"127.0.0.1 {kind} {key}\n")
        assert "not known" in verdict(f"@cert-authority {name} {kind} {key}\n")
        assert "@revoked" in verdict(f"{name} {kind} {key}\n@revoked * {kind} {key}\n")
        file.write_text(f"{name} {kind} {key}\n")
        subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)
        assert "|1|" in file.read_text()
        assert verdict(file.read_text()) == "known"


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
        for client in (True, False):
            if not client:
                monkeypatch.setattr(ssh_config.shutil, "which", lambda name: None)
            found = resolve("gpu")
            assert (found.hostname, found.port, found.user) == ("192.0.2.9", 2022, "ann")
            assert found.keys == tuple(keys)
            assert found.use_agent
            assert found.jumps == ("one", "two:99")
            assert found.known_name == "name"
            assert found.known_hosts[:2] == (Path("/x/known"), Path("/y/known"))
            assert found.connect_timeout_s == 3
            explicit = resolve("gpu", user="bob", port=22, key=str(keys[0]))
            assert (explicit.user, explicit.port, explicit.use_agent) == ("bob", 22, False)


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
        with urllib.request.urlopen(url, timeout=15) as answer:
            assert answer.read() == b"ok %d" % server.pid
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
