"""What a host says about its servers, as values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that was started. It may have ended since: ``HostServers.state`` tells.

    ``argv`` is what runs, with ports and folders filled in; ``memory_before``: MiB in use per GPU uuid at the start.
    """

    launch_id: str
    host: str
    pid: int
    start_time: int  # clock ticks since the host's boot
    port: int
    marker: str
    run_dir: str
    epoch: int
    started_at: float  # the host's clock
    argv: tuple[str, ...] = ()
    gpus: tuple[int, ...] = ()
    memory_before: Mapping[str, int] = field(default_factory=dict)
    api_key: str | None = field(default=None, repr=False)

    @property
    def pgid(self) -> int:
        """The server leads its own process group and session."""
        return self.pid

    @property
    def log_path(self) -> str:
        """The first 8 MiB of the log; later pieces end in .1, .2, ..."""
        return f"{self.run_dir}/server.log"


@dataclass(frozen=True, slots=True)
class ServerState:
    """``exit_code`` as Python gives it, -9 for SIGKILL; None while alive, or where nobody was left to see it.

    ``reason`` once it has ended: ``exited`` by itself, ``stopped`` by us, ``lease_expired`` (no controller was heard of
    for a lease), ``released`` (the host was given back) or ``supervisor_lost``.
    """

    alive: bool
    exit_code: int | None
    reason: str | None
    ended_at: float | None
    descendants: tuple[int, ...] = ()
    log_dropped: int = 0  # bytes the host had no room for


@dataclass(frozen=True, slots=True)
class Found:
    """Something of ours on a host: a recorded launch, or marked processes without a record (``run_dir`` None)."""

    study: str
    launch: str
    epoch: int
    marker: str
    pid: int
    pgid: int
    started: float | None
    command: str
    port: int | None
    run_dir: str | None
    processes: tuple[tuple[int, str], ...]  # pid and name
    supervised: bool
    server_alive: bool
    state: Mapping[str, Any] | None = field(default=None, repr=False)

    @classmethod
    def from_reply(cls, entry: Mapping[str, Any]) -> Found:
        processes = tuple((p["pid"], p["comm"]) for p in entry["processes"])
        return cls(
            study=entry["study"],
            launch=entry["launch"],
            epoch=entry["epoch"],
            marker=entry["marker"],
            pid=entry["pid"],
            pgid=next((p["pgid"] for p in entry["processes"] if p["pid"] == entry["pid"]), entry["pid"]),
            started=entry["started"],
            command=next((name for pid, name in processes if pid == entry["pid"]), "ended"),
            port=entry["port"],
            run_dir=entry["folder"],
            processes=processes,
            supervised=entry["supervised"],
            server_alive=entry["server_alive"],
            state=entry["state"],
        )


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model on a host. ``folder`` None: it is not there. ``config_text``: its config.json, None where it has none.

    ``weights``: name and bytes of each file of weights that lies in the folder.
    """

    path: str
    folder: str | None
    config_text: str | None
    weights: tuple[tuple[str, int], ...]

    @classmethod
    def from_reply(cls, path: str, entry: Mapping[str, Any]) -> ModelFiles:
        return cls(path, entry["folder"], entry["config"], tuple((name, size) for name, size in entry["weights"]))

    @property
    def config(self) -> Mapping[str, Any] | None:
        """The parsed config.json; None where there is none or it is no JSON object."""
        try:
            value = json.loads(self.config_text or "")
        except ValueError:
            return None
        return value if isinstance(value, dict) else None

    @property
    def architecture(self) -> str | None:
        names = (self.config or {}).get("architectures")
        return str(names[0]) if isinstance(names, list) and names else None

    @property
    def config_hash(self) -> str | None:
        """12 hex digits of the config.json's bytes."""
        return None if self.config_text is None else hashlib.sha256(self.config_text.encode()).hexdigest()[:12]
