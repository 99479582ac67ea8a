"""One authenticated SSH connection, jump hosts included; every failure as a HostError that says what to do."""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
import threading
from typing import Any

import paramiko
from paramiko.agent import AgentSSH

from launchers.hosts.known_hosts import KnownHosts
from launchers.hosts.ssh_config import MAX_JUMPS, Resolved, resolve, split_jump
from sweep.errors import HostError

# paramiko logs every failed step by itself; ours carries the whole story in the error instead.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)

KEEPALIVE_S = 15
AGENT_S = 60.0  # for one answer of an agent, which may ask its user first
BROKEN = (paramiko.SSHException, EOFError, OSError)  # what paramiko raises for a connection that went away, and more
UNANSWERED_MS = 20_000  # bytes unacknowledged for so long end the connection: a pulled cable is noticed


def is_answer(error: Exception) -> bool:
    """True for what the host's file system says (no such file, no space, not permitted), False for a broken path."""
    broken = isinstance(error, (ConnectionError, TimeoutError)) or "Socket is closed" in str(error)
    return isinstance(error, OSError) and not broken


class Unreachable(HostError):
    """The network or the server's absence is at fault: the same attempt may succeed later."""


class Connection:
    """A live paramiko transport and those of the jump hosts below it, closed together."""

    def __init__(self, chain: list[paramiko.Transport]) -> None:
        self._chain = chain
        self.transport = chain[-1]

    @property
    def active(self) -> bool:
        return all(t.is_active() for t in self._chain)

    def close(self) -> None:
        for transport in reversed(self._chain):
            transport.close()


def connect(host: str, *, user: str | None = None, port: int | None = None, key: str | None = None) -> Connection:
    """Connect and authenticate. Raises HostError: unresolvable, refused, silent, key unknown or changed, not let in."""
    chain: list[paramiko.Transport] = []
    try:
        _extend(chain, resolve(host, user=user, port=port, key=key), depth=0)
    except BaseException:
        for transport in reversed(chain):
            transport.close()
        raise
    return Connection(chain)


def _extend(chain: list[paramiko.Transport], target: Resolved, depth: int) -> None:
    if depth > MAX_JUMPS:
        raise HostError(f"{target.hostname}: more than {MAX_JUMPS} jump hosts, or a ProxyJump that leads to itself")
    for jump in target.jumps:
        name, user, port = split_jump(jump)
        hop = resolve(name, user=user, port=port)
        # As in ssh: the first hop may have a ProxyJump of its own, later ones are reached through the hop before.
        _extend(chain, hop, depth + 1) if not chain else chain.append(_open(hop, chain[-1]))
    chain.append(_open(target, chain[-1] if chain else None))


def _open(target: Resolved, through: paramiko.Transport | None) -> paramiko.Transport:
    where = f"{target.user}@{target.hostname}:{target.port}"
    sock = _socket(target, through, where)
    transport = None
    try:
        transport = paramiko.Transport(sock)
        transport.banner_timeout = transport.auth_timeout = target.connect_timeout_s + 10
        known = KnownHosts(target.known_name, target.known_hosts)
        security = transport.get_security_options()
        security.key_types = known.prefer(list(security.key_types))
        transport.start_client(timeout=target.connect_timeout_s + 10)
        known.check(transport.get_remote_server_key(), hostname=target.hostname, port=target.port)
        _authenticate(transport, target, where)
        transport.set_keepalive(KEEPALIVE_S)
        return transport
    except BaseException as error:
        if transport is not None:
            transport.close()
        sock.close()
        if isinstance(error, HostError):
            raise
        if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
            raise HostError(
                f"{where}: no algorithm in common ({error}); SHA-1 key exchange and ssh-rsa signatures are not spoken"
            ) from error
        if isinstance(error, (paramiko.SSHException, OSError, EOFError)):
            words = str(error) or "the server closed the connection"
            raise Unreachable(f"{where}: no SSH session: {words}. Compare with: ssh -v {_ssh_words(target)}") from error
        raise


def _ssh_words(target: Resolved) -> str:
    return f"{'' if target.port == 22 else f'-p {target.port} '}{target.user}@{target.hostname}"


def _socket(target: Resolved, through: paramiko.Transport | None, where: str) -> Any:
    """A TCP socket, a channel of the hop before, or the pipes of a ProxyCommand."""
    try:
        if through is not None:
            timeout = target.connect_timeout_s
            return through.open_channel(
                "direct-tcpip", (target.hostname, target.port), ("127.0.0.1", 0), timeout=timeout
            )
        if target.proxy_command:
            return _proxy(target.proxy_command)
        sock = socket.create_connection((target.hostname, target.port), timeout=target.connect_timeout_s)
    except socket.gaierror as error:
        raise Unreachable(f"{where}: the name cannot be resolved ({error.strerror})") from error
    except ConnectionRefusedError as error:
        raise Unreachable(f"{where}: connection refused: does sshd run there, on this port?") from error
    except TimeoutError as error:
        raise Unreachable(f"{where}: no answer in {target.connect_timeout_s:g} s") from error
    except paramiko.ChannelException as error:
        raise Unreachable(f"{where}: the jump host cannot connect to it ({error.text})") from error
    except (OSError, EOFError, paramiko.SSHException) as error:
        raise Unreachable(f"{where}: cannot connect ({error})") from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNANSWERED_MS)
    return sock


def _proxy(command: str) -> socket.socket:
    """A socket whose other end is the command's stdin and stdout. The command ends, and is reaped, with the socket.

    (paramiko's own ProxyCommand leaves the process behind.)
    """
    ours, theirs = socket.socketpair()
    with theirs:
        end = theirs.fileno()
        process = subprocess.Popen(["sh", "-c", f"exec {command}"], stdin=end, stdout=end, start_new_session=True)
    threading.Thread(target=process.wait, name="proxy-command", daemon=True).start()
    return ours


def _authenticate(transport: paramiko.Transport, target: Resolved, where: str) -> None:
    """Key files first, then the agent. Key material and passphrases appear in no message."""
    tried: list[str] = []
    notes: list[str] = []
    for path in target.keys:
        try:
            key = paramiko.PKey.from_path(str(path))
        except (paramiko.PasswordRequiredException, TypeError):  # TypeError: what cryptography says of a passphrase
            notes.append(f"{path} has a passphrase: ssh-add it")
            continue
        except (paramiko.SSHException, ValueError, OSError) as error:
            notes.append(f"{path} cannot be read as a private key ({type(error).__name__})")
            continue
        tried.append(str(path))
        if _offer(transport, target, key, where):
            return
    if target.agent is not None:
        try:
            agent = _Agent(target.agent)
        except (OSError, paramiko.SSHException) as error:
            notes.append(f"no agent answers at {target.agent} ({error})")
        else:
            with contextlib.closing(agent):
                for agent_key in agent.get_keys():
                    tried.append(f"agent key {agent_key.comment or agent_key.get_name()}")
                    if _offer(transport, target, agent_key, where):
                        return
    raise HostError(
        f"{where}: not let in; tried {', '.join(tried) or 'no key at all'}{''.join(f'; {note}' for note in notes)}. "
        f"Try: ssh-copy-id {_ssh_words(target)} (and look at the owner and mode of authorized_keys there)"
    )


class _Agent(AgentSSH):
    """The agent behind a socket; paramiko's own ``Agent`` knows that of SSH_AUTH_SOCK alone."""

    def __init__(self, path: str) -> None:
        super().__init__()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(AGENT_S)
        try:
            connection.connect(path)
            self._connect(connection)  # type: ignore[attr-defined]  # left out of the stubs
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        self._close()  # type: ignore[attr-defined]  # left out of the stubs


def _offer(transport: paramiko.Transport, target: Resolved, key: paramiko.PKey, where: str) -> bool:
    try:
        left = transport.auth_publickey(target.user, key)
    except paramiko.BadAuthenticationType as error:
        allowed = ", ".join(error.allowed_types)
        raise HostError(f"{where}: the server wants {allowed}; only keys and the agent are supported") from error
    except paramiko.AuthenticationException:
        if not transport.is_active():
            raise HostError(f"{where}: the server hung up after too many keys: name one with `key:`") from None
        return False
    except (paramiko.SSHException, EOFError) as error:
        raise Unreachable(f"{where}: the server hung up during authentication ({error})") from error
    if left:
        raise HostError(f"{where}: the server asks for more than a key ({', '.join(left)})")
    return True
