"""What ``ssh NAME`` would do: host, port, user, keys, known_hosts files and jump hosts, as data.

Where an ``ssh`` client is installed, ``ssh -G`` answers, so Include, Match and every pattern mean what the user is used
to; elsewhere paramiko's reader of ``~/.ssh/config`` does. ``SWEEP_SSH_CONFIG`` names another configuration file
(``ssh -F``), for those who keep one apart.
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import paramiko

from sweep.errors import HostError

CONFIG_VARIABLE = "SWEEP_SSH_CONFIG"
MAX_JUMPS = 8


@dataclass(frozen=True, slots=True)
class Resolved:
    """One SSH server and how to be let in. ``keys`` are existing files in the order they are tried."""

    hostname: str
    port: int
    user: str
    keys: tuple[Path, ...]
    agent: str | None  # socket of the agent to ask; None: no agent is asked
    known_hosts: tuple[Path, ...]  # the first one is where a new key would be added
    key_alias: str | None = None
    jumps: tuple[str, ...] = ()  # names to resolve in turn, the first one reached directly
    proxy_command: str | None = None
    connect_timeout_s: float = 10.0

    @property
    def known_name(self) -> str:
        """The name under which known_hosts lists the server."""
        if self.key_alias:
            return self.key_alias
        return self.hostname if self.port == 22 else f"[{self.hostname}]:{self.port}"


def resolve(host: str, *, user: str | None = None, port: int | None = None, key: str | None = None) -> Resolved:
    """Resolve a name as ``ssh`` would; ``user``, ``port`` and ``key`` win over the configuration.

    With ``key`` given only that key is tried: neither the agent's nor the default ones, which would use up the
    server's MaxAuthTries first. Raises HostError for a name ``ssh`` refuses or a key file that is not there.
    """
    if not host or host.startswith("-") or any(c.isspace() for c in host):
        raise HostError(f"{host!r} is not a host name")
    options = _ask_ssh(host, user, port) if shutil.which("ssh") else _read_config(host, user, port)
    first = {name: values[0] for name, values in options.items()}
    if key is not None:
        keys: tuple[Path, ...] = (Path(key).expanduser(),)
        if not keys[0].is_file():
            raise HostError(f"{host}: there is no key file {key}")
    else:
        found = (Path(value).expanduser() for value in options.get("identityfile", []) if value != "none")
        keys = tuple(path for path in found if path.is_file())
    files = [f for name in ("userknownhostsfile", "globalknownhostsfile") for f in shlex.split(first.get(name, ""))]
    known = tuple(Path(f).expanduser() for f in files if f != "none")
    jump = first.get("proxyjump", "none")
    command = first.get("proxycommand", "none")
    timeout = first.get("connecttimeout", "none")
    return Resolved(
        hostname=first.get("hostname", host),
        port=int(first.get("port", 22)),
        user=first.get("user") or getpass.getuser(),
        keys=keys,
        agent=_agent(host, first) if key is None and first.get("identitiesonly", "no") != "yes" else None,
        known_hosts=known or (Path("~/.ssh/known_hosts").expanduser(),),
        key_alias=first.get("hostkeyalias"),
        jumps=() if jump == "none" else tuple(part.strip() for part in jump.split(",")),
        proxy_command=None if command == "none" else _expanded(command, host, first),
        connect_timeout_s=float(timeout) if timeout not in ("none", "0") else 10.0,
    )


def _agent(host: str, options: dict[str, str]) -> str | None:
    """ssh_config(5), IdentityAgent: a path, ``SSH_AUTH_SOCK``, ``$NAME`` (a variable that holds the path) or none."""
    value = options.get("identityagent", "SSH_AUTH_SOCK")
    if value == "none":
        return None
    if value == "SSH_AUTH_SOCK" or value.startswith("$"):
        return os.environ.get(value.removeprefix("$").strip("{}")) or None
    return str(Path(_expanded(value, host, options)).expanduser())


def _expanded(command: str, host: str, options: dict[str, str]) -> str:
    """ssh_config(5), TOKENS: what a ProxyCommand or an IdentityAgent may hold. ``ssh -G`` leaves them as they are."""
    words = {
        "%": "%",
        "d": str(Path.home()),
        "h": options.get("hostname", host),
        "n": host,
        "p": options.get("port", "22"),
        "r": options.get("user") or getpass.getuser(),
        "u": getpass.getuser(),
    }
    return re.sub(r"%(.)", lambda match: words.get(match[1], match[0]), command)


def split_jump(text: str) -> tuple[str, str | None, int | None]:
    """``[ssh://][user@]host[:port]`` of a ProxyJump as (host, user, port)."""
    rest = text.removeprefix("ssh://")
    user, at, rest = rest.rpartition("@")
    host, colon, port = rest.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif not colon or ":" in host:  # no port, or a bare IPv6 address
        host, port = rest.strip("[]"), ""
    if port and not port.isdigit():
        raise HostError(f"ProxyJump {text!r}: {port!r} is not a port")
    return host, user if at else None, int(port) if port else None


def _ask_ssh(host: str, user: str | None, port: int | None) -> dict[str, list[str]]:
    argv = ["ssh", "-G"]
    if os.environ.get(CONFIG_VARIABLE):
        argv += ["-F", os.environ[CONFIG_VARIABLE]]
    if user is not None:
        argv += ["-l", user]
    if port is not None:
        argv += ["-p", str(port)]
    try:
        done = subprocess.run([*argv, "--", host], capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise HostError(
            f"{host}: `ssh -G {host}` gave no answer in 20 s: a Match exec in the configuration?"
        ) from error
    if done.returncode != 0:
        raise HostError(f"{host}: `ssh -G {host}` refuses: {done.stderr.strip()}")
    options: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        name, _, value = line.partition(" ")
        options.setdefault(name.lower(), []).append(value)
    return options


def _read_config(host: str, user: str | None, port: int | None) -> dict[str, list[str]]:
    path = Path(os.environ.get(CONFIG_VARIABLE) or "~/.ssh/config").expanduser()
    config = paramiko.SSHConfig()
    if path.is_file():
        try:
            config = paramiko.SSHConfig.from_path(str(path))
        except (paramiko.ConfigParseError, OSError, UnicodeDecodeError) as error:
            raise HostError(f"{host}: cannot read {path}: {error}") from error
    options = {k: v if isinstance(v, list) else [v] for k, v in config.lookup(host).items()}
    names = ("id_rsa", "id_ecdsa", "id_ed25519")
    options.setdefault("identityfile", [f"~/.ssh/{name}" for name in names])
    options.setdefault("userknownhostsfile", ["~/.ssh/known_hosts"])
    options.setdefault("globalknownhostsfile", ["/etc/ssh/ssh_known_hosts"])
    if user is not None:
        options["user"] = [user]
    if port is not None:
        options["port"] = [str(port)]
    return options
