"""Diagnoses that are ours to make, not the engine's: the host, the user, the read-back, someone else's process."""

from __future__ import annotations

from typing import Any

from launchers.servers import ServerState
from sweep.model import Diagnosis, Effective, GpuProcess, Phase, Retry, Verdict

# Ends of a server that were neither its own doing nor asked for by us -> what happened.
_OUTSIDE = {
    "lease_expired": "the server was ended on the host: no controller had been heard of for a whole lease",
    "released": "the server was ended on the host: the host had been given back",
    "supervisor_lost": "server and supervisor are gone without a word: the host was rebooted, or somebody ended them",
}


def in_words(diagnosis: Diagnosis) -> dict[str, Any]:
    """What an event says of a diagnosis."""
    return {
        "verdict": diagnosis.verdict.value,
        "reason": diagnosis.reason,
        "evidence": diagnosis.evidence,
        "advice": diagnosis.advice,
    }


def infra(phase: Phase, evidence: str) -> Diagnosis:
    return Diagnosis(
        Verdict.INFRA_ERROR,
        phase,
        "host",
        evidence,
        "The configuration is not at fault; it is tried again.",
        Retry.LATER,
    )


def cancelled(phase: Phase) -> Diagnosis:
    return Diagnosis(
        Verdict.CANCELLED, phase, "cancelled", "stopped on request", "`sweep resume` tries it again.", Retry.LATER
    )


def from_outside(state: ServerState, phase: Phase) -> Diagnosis | None:
    """The diagnosis of a server that was ended by something outside it, or whose log the host had no room for; None
    where it lives or ended by itself and said why."""
    if state.log_dropped:
        return infra(phase, f"the host's disk is full: {state.log_dropped} bytes of the server's log were lost")
    return infra(phase, _OUTSIDE[state.reason]) if state.reason in _OUTSIDE else None


def path_lost(phase: Phase, error: str) -> Diagnosis:
    return Diagnosis(
        Verdict.INFRA_ERROR,
        phase,
        "path_lost",
        f"the connection to the host broke while requests ran: {error}",
        "The server is alive and reached again. The requests lost are marked; the block is measured once more.",
        Retry.LATER,
    )


def requests_failed(phase: Phase, error: str) -> Diagnosis:
    return Diagnosis(
        Verdict.MEASUREMENT_INVALID,
        phase,
        "requests_failed",
        error,
        "The server lives, but its answers cannot be used. Its log is kept with the launch; it is tried again.",
        Retry.LATER,
    )


def neighbour_ended(phase: Phase, evidence: str) -> Diagnosis:
    """Of a server whose partner on the same GPUs ended: what it measured alone is no pair."""
    return Diagnosis(
        Verdict.CANCELLED, phase, "neighbour_ended", evidence, "It is measured again with the next pair.", Retry.LATER
    )


def mismatch(effective: Effective, log_path: str) -> Diagnosis:
    wrong = [d for d in effective.differences if d.rule is None]
    text = "; ".join(f"{d.key}: asked {d.asked!r}, runs {d.effective!r}" for d in wrong)
    return Diagnosis(
        Verdict.LAUNCH_CONFIG_ERROR,
        Phase.READY,
        "effective_mismatch",
        text,
        "The server runs something else than asked for, by no rule we know. Pin the argument it changed, or ask for "
        "what it runs.",
        log_path=log_path,
    )


def dirty(host: str, processes: tuple[GpuProcess, ...]) -> Diagnosis:
    names = ", ".join(
        f"pid {p.pid} ({p.command or '?'}) of user {p.user or '?'}, {p.memory_mib} MiB" for p in processes
    )
    return Diagnosis(
        Verdict.INFRA_ERROR,
        Phase.START,
        "gpu_dirty",
        f"host {host}: GPU memory is held by {names}",
        "Someone else's process is on the GPU. It is not ours to end: wait for it, or give this study other GPUs.",
        Retry.LATER,
    )
