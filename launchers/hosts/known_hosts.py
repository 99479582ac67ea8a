"""Is the server the one we know? Unknown and changed keys are refused with the command that would mend it.

Certificates of hosts (``@cert-authority``) cannot be checked by paramiko, which does not ask for them: a server that is
known by such a line alone is refused, and the refusal says so.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from pathlib import Path

import paramiko

from sweep.errors import HostError

# A key of one type is offered under several signature algorithms; the file knows the type alone.
_ALGORITHMS = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}


def _matches(name: str, patterns: Sequence[str]) -> bool:
    """sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT": hashed names, ``*`` and ``?``, and ``!`` which excludes."""
    found = False
    for pattern in patterns:
        if pattern.startswith("|1|"):
            found = found or paramiko.HostKeys.hash_host(name, pattern) == pattern
            continue
        negated = pattern.startswith("!")
        glob = pattern.removeprefix("!").replace("[", "[[]")  # brackets belong to [host]:port here
        if fnmatch.fnmatchcase(name.lower(), glob.lower()):
            if negated:
                return False
            found = True
    return found


class KnownHosts:
    """The keys that a list of known_hosts files has for one server. Read anew for every connection."""

    def __init__(self, name: str, files: Sequence[Path]) -> None:
        self.name = name
        self.files = tuple(files)
        self._keys: dict[str, list[paramiko.PKey]] = {}
        self._revoked: list[paramiko.PKey] = []
        self._by_authority: str | None = None  # file and line that would know the server by its certificate
        for path in self.files:
            self._load(path)

    def _load(self, path: Path) -> None:
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            return
        for number, line in enumerate(lines, 1):
            text = line.strip()
            marker = ""
            if text.startswith("@"):
                marker, _, text = text.partition(" ")
            if not text or text.startswith("#"):
                continue
            if marker == "@cert-authority":
                if _matches(self.name, text.split(maxsplit=1)[0].split(",")):
                    self._by_authority = self._by_authority or f"{path}, line {number}"
                continue
            try:
                entry = paramiko.hostkeys.HostKeyEntry.from_line(text, number)
            except paramiko.SSHException:  # a broken line hides no other
                continue
            if entry is None or entry.key is None or entry.hostnames is None:
                continue
            if not _matches(self.name, entry.hostnames):
                continue
            if marker == "@revoked":
                self._revoked.append(entry.key)
            else:
                self._keys.setdefault(entry.key.get_name(), []).append(entry.key)

    def prefer(self, offered: Sequence[str]) -> list[str]:
        """Host-key algorithms in an order that makes the server show a key we know."""
        known = [a for kind in self._keys for a in _ALGORITHMS.get(kind, (kind,)) if a in offered]
        return known + [a for a in offered if a not in known]

    def check(self, key: paramiko.PKey, *, hostname: str, port: int) -> None:
        """Raise HostError unless ``key`` is known for the server."""
        place = self.files[0]
        if key in self._revoked:
            raise HostError(f"{self.name}: the server's key {key.fingerprint} is marked @revoked in known_hosts")
        known = [k for keys in self._keys.values() for k in keys]
        if key in known:
            return
        if known:
            expected = ", ".join(f"{k.get_name()} {k.fingerprint}" for k in known)
            raise HostError(
                f"{self.name}: the server's key has changed: it shows {key.get_name()} {key.fingerprint}, known is "
                f"{expected}. Someone may be listening in, or the machine was set up anew. If you are sure of the "
                f"latter: ssh-keygen -f {place} -R '{self.name}'"
            )
        port_option = "" if port == 22 else f"-p {port} "
        authority = ""
        if self._by_authority is not None:
            authority = (
                f" {self._by_authority} would know it by a certificate (@cert-authority), which is not supported here."
            )
        raise HostError(
            f"{self.name}: the server's key is not known ({key.get_name()} {key.fingerprint}; looked in "
            f"{', '.join(str(f) for f in self.files)}).{authority} After comparing the fingerprint add it: "
            f"ssh-keyscan {port_option}{hostname} >> {place}"
        )
