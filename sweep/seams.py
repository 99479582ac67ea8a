"""The borders of the system: small protocols, owned by their consumers.

An engine knows flags, log lines and HTTP answers, never hosts. A transport knows how to reach a host, never flags.
``launchers.servers`` runs any engine's LaunchSpec over any transport. Each seam has a contract test class in tests/.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from sweep.model import (
    ArmConfig,
    Diagnosis,
    Drafter,
    Effective,
    FlagValue,
    LaunchSpec,
    Phase,
)


@dataclass(frozen=True, slots=True)
class Completed:
    """A finished short command on a host."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class Transport(Protocol):
    """Reaches one host. Implementations: ``launchers.hosts.ssh``, ``launchers.hosts.local``.

    Every method raises ``HostError`` (and nothing else) when the host cannot be reached; commands that merely fail
    are values. Implementations are thread-safe.
    """

    name: str
    kind: str
    losses: int  # how often an established connection broke so far

    def connect(self) -> None: ...

    def close(self) -> None: ...

    def rtt_s(self) -> float:
        """Round-trip time to the host in seconds, the least of a few; 0 where there is no network between."""
        ...

    def ping_s(self) -> float:
        """One round trip over the connection that is there, which is not made anew; 0 where there is no network."""
        ...

    def run(
        self, argv: Sequence[str], *, timeout_s: float = 30.0, stdin: bytes = b"", idempotent: bool = False
    ) -> Completed:
        """Run a short command; argv is quoted by the transport, never by the caller.

        Only an ``idempotent`` command is run again when the connection broke after it may have started.
        """
        ...

    def put(self, path: str, content: bytes, *, mode: int = 0o600) -> None:
        """Write a file atomically, making parent directories (0700)."""
        ...

    def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        """Read part of a file; a missing file raises FileNotFoundError."""
        ...

    def forward(self, port: int) -> AbstractContextManager[str]:
        """Make the host's loopback port reachable: yields a base URL such as ``http://127.0.0.1:41234``."""
        ...


@dataclass(frozen=True, slots=True)
class LogState:
    """What an engine has learnt from a server's log so far."""

    phase: Phase = Phase.START
    ready: bool = False
    slow_ok: bool = False  # a long step that may take many minutes without output (JIT compilation)
    flags: Mapping[str, str] = field(default_factory=dict)  # flag -> evidence line, since the last reset
    fatal: str | None = None  # a line after which the server will not become ready though it may not exit


@dataclass(frozen=True, slots=True)
class HostTools:
    """Files an engine needs on every host (relative path below our base directory -> content) and how to ask
    for GPUs there. ``gpu_query`` is argv of an ``nvidia-smi``; tokens ``@PYTHON@`` and ``@BASE@`` are replaced."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    gpu_query: tuple[str, ...] = ("nvidia-smi",)


class HttpGet(Protocol):
    """``get(path)`` / ``post(path, json)`` against the server; returns (status, body). Raises OSError on no answer."""

    def __call__(self, method: str, path: str, json: Any = None) -> tuple[int, bytes]: ...


class Engine(Protocol):
    """One inference engine. Pure where it says pure; nothing here touches a host."""

    name: str
    time_scale: float  # real seconds for one second of the engine's clock; 1 for a real engine
    packages: tuple[str, ...]  # Python packages of which a launch imports most, on the host
    caches: Mapping[str, str]  # environment variable that moves a cache of compiled kernels -> a name for its folder

    def tools(self, gpus: int) -> HostTools: ...

    def version_command(self, python: str) -> tuple[str, ...]:
        """argv that prints the engine's version on a host."""
        ...

    def launch_spec(
        self,
        arm: ArmConfig,
        *,
        model: Mapping[str, Any],
        drafters: Mapping[str, Drafter],
        server_args: Mapping[str, FlagValue],
        env: Mapping[str, str],
        secret_env: Mapping[str, str],
        version: str,
        gpus: tuple[int, ...],
    ) -> LaunchSpec:
        """Pure. argv for this version; the API key goes through a 0600 config file."""
        ...

    def log_state(self) -> Callable[[str], LogState]:
        """A fresh reader: feed it log lines in order, it returns what is known so far."""
        ...

    def diagnose(
        self, log_lines: Sequence[str], *, exit_code: int | None, phase: Phase, timed_out: bool, arm: ArmConfig
    ) -> Diagnosis:
        """Pure. Why a server died, hung or never became ready."""
        ...

    def probe_diagnosis(
        self,
        accept_length: float | None,
        verify_steps: int,
        arm: ArmConfig,
        drafters: Mapping[str, Drafter],
        *,
        log_lines: Sequence[str] = (),
        target_config: Mapping[str, Any] | None = None,
        drafter_config: Mapping[str, Any] | None = None,
    ) -> Diagnosis | None:
        """Pure. Is the drafter of any use? None where it is, or where too few verify steps were seen to say.

        The ``config.json`` of both, where the host has them, let it name the cause.
        """
        ...

    def ready(self, http: HttpGet) -> bool:
        """After the ready line: does the server answer as ready (``/ready``, else ``/health_generate``)?"""
        ...

    def effective(
        self, http: HttpGet, arm: ArmConfig, drafters: Mapping[str, Drafter], server_args: Mapping[str, FlagValue]
    ) -> tuple[Effective, dict[str, Any]]:
        """Read back what runs, against what was asked of the arm and as pins.

        The second value is the redacted server_info for the row.
        """
        ...

    def reset(self, http: HttpGet) -> None:
        """Flush the prefix cache; raises RuntimeError with the server's words if it would not."""
        ...

    def settle(self, http: HttpGet) -> None:
        """Once per launch, warm and not yet measured: keep the server's own housekeeping out of the blocks. What it
        has no means for is left as it is; RuntimeError with the server's words if it would not, OSError where it gives
        no answer."""
        ...

    def abort_all(self, http: HttpGet) -> None: ...

    def next_tokens(self, http: HttpGet, ids: Sequence[int], count: int) -> dict[int, float]:
        """The ``count`` likeliest next tokens after ``ids`` with their log-probabilities (nat).

        RuntimeError where the server does not say, OSError where it does not answer.
        """
        ...


class Listener(Protocol):
    """Watches a study. May not change anything."""

    def on_event(self, event: Mapping[str, Any]) -> None: ...
