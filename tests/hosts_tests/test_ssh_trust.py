"""Being let in by a real sshd, and knowing that it is the right one."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hosts_helpers import keygen

from launchers.hosts import ssh_config
from launchers.hosts.known_hosts import KnownHosts
from sweep.errors import HostError

pytestmark = pytest.mark.ssh


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
            # The same agent by the configuration alone, and one that is not there.
            monkeypatch.delenv("SSH_AUTH_SOCK")
            own = tmp_path / "own_config"
            own.write_text(f"IdentityAgent {socket}\n{config.read_text()}")
            monkeypatch.setenv("SWEEP_SSH_CONFIG", str(own))
            assert dial("gpu-a").run(["true"]).exit_code == 0
            own.write_text(f"IdentityAgent {tmp_path}/none\n{config.read_text()}")
            with pytest.raises(HostError, match=r"not let in; tried no key at all; no agent answers at .*/none"):
                dial("gpu-a")
            monkeypatch.setenv("SWEEP_SSH_CONFIG", str(config))
            monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
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
        by_certificate = verdict(f"@cert-authority *,!x {kind} {key}\n")
        assert "not known" in by_certificate
        assert f"{file}, line 1 would know it by a certificate (@cert-authority)" in by_certificate
        assert "certificate" not in verdict(f"@cert-authority example.com {kind} {key}\n")
        assert verdict(f"@cert-authority * {kind} {key}\n{name} {kind} {key}\n") == "known"
        assert "@revoked" in verdict(f"{name} {kind} {key}\n@revoked * {kind} {key}\n")
        file.write_text(f"{name} {kind} {key}\n")
        subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)
        assert "|1|" in file.read_text()
        assert verdict(file.read_text()) == "known"
