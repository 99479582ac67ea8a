"""What the store hands out: frozen values, never live rows of a session. Times are Unix seconds (UTC)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from sweep.model import (
    FORCED_ACCEPT_LENGTH,
    ArmConfig,
    Constraint,
    Effective,
    Objective,
    Phase,
    Retry,
    Role,
    Stage,
    Verdict,
)


class StudyState(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"
    FINISHED = "finished"


class TrialState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"


class LaunchState(StrEnum):
    """``begun`` is written before anything is started, so that a crash leaves no unknown server."""

    BEGUN = "begun"
    STARTED = "started"
    READY = "ready"
    ENDED = "ended"


class HostState(StrEnum):
    IDLE = "idle"
    BUSY = "busy"
    SET_ASIDE = "set_aside"  # too many infrastructure errors in a row: the study goes on elsewhere


@dataclass(frozen=True, slots=True)
class StudyRow:
    """``spec`` is the resolved specification without secrets; ``controller`` says who runs it (None: nobody)."""

    id: int
    name: str
    created_at: float
    finished_at: float | None
    state: StudyState
    engine: str
    simulated: bool
    profile: str | None
    spec: Mapping[str, Any]
    yaml: str
    space_hash: str
    seed: int
    tool_version: str
    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...]
    controller: Mapping[str, Any] | None
    heartbeat_at: float | None
    stop_requested: bool
    notes: tuple[Any, ...]

    @property
    def forced_accept_length(self) -> float | None:
        """Tokens per verify step that the servers were told to pretend; None where the drafter decides."""
        return forced_accept_length((self.spec.get("server") or {}).get("env") or {})


def forced_accept_length(env: Mapping[str, Any]) -> float | None:
    """What servers with this environment pretend; None where the drafter decides."""
    try:
        length = float(env.get(FORCED_ACCEPT_LENGTH, 0))
    except ValueError:
        return None  # the server refuses what is no number
    return length if length > 0 else None


@dataclass(frozen=True, slots=True)
class HostRow:
    """``facts`` is ``HostFacts`` as a JSON object; None before the host was reached."""

    id: int
    name: str
    kind: str
    state: HostState
    note: str | None
    facts: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class ArmRow:
    id: int
    key: str
    role: Role
    config: ArmConfig


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One trial. ``number`` counts from 0 within its study; ``attempt`` from 1. ``verdict`` is None until finished.

    ``values`` (objective key -> figure in the metric's unit) and ``stderr`` are empty unless the verdict is
    ``complete``; ``constraints`` maps a constraint's text to its violation, kept where <= 0.
    """

    id: int
    study_id: int
    number: int
    arm_id: int
    config: ArmConfig
    state: TrialState
    verdict: Verdict | None
    phase: Phase | None
    reason: str | None
    evidence: str | None
    advice: str | None
    retry: Retry | None
    dominates: tuple[str, ...]
    flags: Mapping[str, str]
    origin: str
    why: str
    attempt: int
    host: str | None
    effective: Effective | None
    params: Mapping[str, Any]
    values: Mapping[str, float]
    stderr: Mapping[str, float]
    constraints: Mapping[str, float]
    created_at: float
    started_at: float | None
    finished_at: float | None
    log_path: str | None

    @property
    def seconds(self) -> float | None:
        """From start to finish."""
        if self.started_at is None or self.finished_at is None:
            return None
        return self.finished_at - self.started_at


@dataclass(frozen=True, slots=True)
class LaunchRow:
    """One server process. ``phases`` maps a phase to its seconds; ``log_tail`` are its last lines."""

    id: int
    study_id: int
    trial_id: int | None
    trial: int | None  # the trial's number in its study
    arm_id: int
    arm_key: str
    config: ArmConfig
    role: Role
    host: str
    stage: Stage
    sequence: int
    pair: int | None
    state: LaunchState
    verdict: Verdict | None
    phase: Phase | None
    reason: str | None
    evidence: str | None
    advice: str | None
    argv: tuple[str, ...]
    env_keys: tuple[str, ...]
    run_dir: str | None
    log_path: str | None
    pid: int | None
    port: int | None
    marker: str | None
    begun_at: float
    started_at: float | None
    ready_at: float | None
    ended_at: float | None
    phases: Mapping[str, float]
    effective: Effective | None
    server_info: Mapping[str, Any] | None
    probe: Mapping[str, Any] | None
    stop_report: Mapping[str, Any] | None
    log_tail: tuple[str, ...]


def outcome(row: TrialRow | LaunchRow) -> dict[str, str | None]:
    """How far it is and how it ended, as every answer and table says it."""
    return {
        "state": row.state.value,
        "verdict": row.verdict.value if row.verdict else None,
        "phase": row.phase.value if row.phase else None,
        "reason": row.reason,
        "evidence": row.evidence,
        "advice": row.advice,
    }


class StartedServer(Protocol):
    """What is known of a server once its process runs. ``argv`` is redacted."""

    @property
    def argv(self) -> Sequence[str]: ...
    @property
    def started_at(self) -> float: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def port(self) -> int | None: ...
    @property
    def marker(self) -> str | None: ...
    @property
    def run_dir(self) -> str | None: ...
    @property
    def log_path(self) -> str | None: ...
    @property
    def phases(self) -> Mapping[str, float]: ...


class ReadyServer(StartedServer, Protocol):
    """What is known of a server once it answers. ``ready_s`` counts from its start; ``server_info`` is redacted."""

    @property
    def ready_s(self) -> float | None: ...
    @property
    def effective(self) -> Effective | None: ...
    @property
    def server_info(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class EventRow:
    id: int
    at: float
    host: str | None
    kind: str
    detail: Mapping[str, Any]
