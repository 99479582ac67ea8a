"""What controller and host owner say to each other: frozen values that pickle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from launchers.containers import ContainerSettings
from launchers.locks import Holder
from launchers.servers import Owner
from sweep.model import (
    ArmConfig,
    BlockResult,
    Diagnosis,
    Drafter,
    Effective,
    FlagValue,
    HostFacts,
    StopReport,
)
from sweep.readiness import Deadlines


@dataclass(frozen=True, slots=True)
class OwnerSettings:
    """Everything an owner needs, as values that pickle. ``transport`` is the settings object of ``kind``.

    ``slot``: the GPUs of a part of the machine that is owned beside other parts, None for the whole; ``machine``: the
    name in the YAML of what ``host`` is a slot of, else the same name. ``replaces``: a controller that ours has seen to
    be dead, for owners on other machines, which cannot see it.
    """

    host: str
    kind: str
    transport: Any
    python: str
    activate: str | None
    base_dir: str | None
    gpus: tuple[int, ...]
    engine: str
    engine_args: Mapping[str, Any]
    owner: Owner
    machine: str = ""
    slot: tuple[int, ...] | None = None
    container: ContainerSettings | None = None
    replaces: Holder | None = None
    lease_s: float = 60.0
    deadlines: Deadlines = field(default_factory=Deadlines)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A host that can be used, or the error that says why not."""

    facts: HostFacts | None = None
    error: str | None = None
    exit_code: int = 7
    left_over: tuple[str, ...] = ()  # launches of earlier runs of ours that were ended here


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """One server to start. ``launch_id`` is the durable row's id as text."""

    launch_id: str
    arm: ArmConfig
    model: Mapping[str, Any]
    drafters: Mapping[str, Drafter]
    server_args: Mapping[str, FlagValue]
    env: Mapping[str, str]
    secret_env: Mapping[str, str] = field(default_factory=dict, repr=False)
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchReport:
    """A ready server, or the diagnosis of why there is none (then everything it started has been ended)."""

    argv: tuple[str, ...]
    ready: bool
    started_at: float
    ready_s: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    pid: int | None = None
    port: int | None = None
    marker: str | None = None
    run_dir: str | None = None
    log_path: str | None = None
    effective: Effective | None = None
    server_info: Mapping[str, Any] = field(default_factory=dict)
    diagnosis: Diagnosis | None = None
    stop: Stopped | None = None


@dataclass(frozen=True, slots=True)
class Stopped:
    """How a server was ended, and the last lines of its log with secrets masked."""

    report: StopReport
    log_tail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """Accept length right after ready. ``accept_length`` is None where the server has no counters (no speculation)."""

    accept_length: float | None
    verify_steps: int
    histogram: tuple[int, ...]
    diagnosis: Diagnosis | None = None


@dataclass(frozen=True, slots=True)
class BlockReport:
    """A measured block; ``diagnosis`` where the server died, hung or the path broke while it ran."""

    block: BlockResult | None
    diagnosis: Diagnosis | None = None


@dataclass(frozen=True, slots=True)
class TokenQuestion:
    """What does a server hold likely after this prompt and these output tokens? ``candidates``: the token the
    baseline went on with, and the one another launch did."""

    prompt_id: str
    prefix: tuple[int, ...]
    candidates: tuple[int, int]


@dataclass(frozen=True, slots=True)
class TokenAnswer:
    """``logprobs``: token -> log-probability (nat) of the most likely ones; empty where the server did not say."""

    question: TokenQuestion
    logprobs: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuRoom:
    """MiB on the fullest GPU of a server: ``held`` by our processes, ``free`` for others; ``error``: why not known."""

    held: int
    free: int
    error: str | None = None
