"""Between model values and what a column holds. JSON columns hold plain dicts and lists only.

A little over 300 lines on purpose: what is written and how it is read again stand side by side.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sqlalchemy import Row

from storage.records import (
    ArmRow,
    EventRow,
    HostRow,
    HostState,
    LaunchRow,
    LaunchState,
    StudyRow,
    StudyState,
    TrialRow,
    TrialState,
)
from sweep.model import (
    ArmConfig,
    ArmGain,
    Basis,
    BlockResult,
    ClientHealth,
    Comparison,
    Constraint,
    Diagnosis,
    Difference,
    Effective,
    Gain,
    GainKey,
    GpuTelemetry,
    Objective,
    Phase,
    RequestRecord,
    Retry,
    Role,
    Stage,
    Tie,
    Verdict,
)

if TYPE_CHECKING:
    from sweep.metrics import Slo


def clean(text: str) -> str:
    """Text as every backend takes it: no NUL (PostgreSQL refuses it), no lone surrogates."""
    return text.replace("\0", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace").decode("utf-8")


def effective_out(effective: Effective | None) -> dict[str, Any] | None:
    if effective is None:
        return None
    return {
        "config": effective.config.as_dict(),
        "pins": dict(effective.pins),
        "differences": [asdict(d) for d in effective.differences],
        "version": effective.version,
        "status": effective.status,
    }


def effective_in(value: Mapping[str, Any] | None) -> Effective | None:
    if value is None:
        return None
    return Effective(
        config=ArmConfig.from_dict(value["config"]),
        pins=value["pins"],
        differences=tuple(Difference(**d) for d in value["differences"]),
        version=value["version"],
    )


def diagnosis_out(diagnosis: Diagnosis) -> dict[str, Any]:
    """The columns a trial and a launch share."""
    return {
        "verdict": diagnosis.verdict.value,
        "phase": diagnosis.phase.value,
        "reason": diagnosis.reason,
        "evidence": clean(diagnosis.evidence),
        "advice": clean(diagnosis.advice),
    }


def study_in(row: Row[Any]) -> StudyRow:
    value = dict(row._mapping)
    value["state"] = StudyState(value["state"])
    value["objectives"] = tuple(Objective(**o) for o in value["objectives"])
    value["constraints"] = tuple(Constraint(**c) for c in value["constraints"])
    value["notes"] = tuple(value["notes"])
    return StudyRow(**value)


def host_in(row: Row[Any]) -> HostRow:
    return HostRow(row.id, row.name, row.kind, HostState(row.state), row.note, row.facts)


def arm_in(row: Row[Any]) -> ArmRow:
    return ArmRow(row.id, row.key, Role(row.role), ArmConfig.from_dict(row.config))


def event_in(row: Row[Any]) -> EventRow:
    return EventRow(row.id, row.at, row.host, row.kind, row.detail)


def trial_in(row: Row[Any]) -> TrialRow:
    """From a row of ``trials`` joined with its arm's ``config``."""
    return TrialRow(
        id=row.id,
        study_id=row.study_id,
        number=row.number,
        arm_id=row.arm_id,
        config=ArmConfig.from_dict(row.config),
        state=TrialState(row.state),
        verdict=Verdict(row.verdict) if row.verdict else None,
        phase=Phase(row.phase) if row.phase else None,
        reason=row.reason,
        evidence=row.evidence,
        advice=row.advice,
        retry=Retry(row.retry) if row.retry else None,
        dominates=tuple(row.dominates or ()),
        flags=row.flags,
        origin=row.origin,
        why=row.why,
        attempt=row.attempt,
        host=row.host,
        effective=effective_in(row.effective),
        params=row.params,
        values=row.objective_values or {},
        stderr=row.objective_stderr or {},
        constraints=row.constraint_values or {},
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        log_path=row.log_path,
    )


def launch_in(row: Row[Any]) -> LaunchRow:
    """From a row of ``launches`` joined with ``arm_key``, ``config`` and the trial's number as ``trial``."""
    value = dict(row._mapping)
    value["config"] = ArmConfig.from_dict(value["config"])
    value["role"] = Role(value["role"])
    value["stage"] = Stage(value["stage"])
    value["state"] = LaunchState(value["state"])
    value["verdict"] = Verdict(value["verdict"]) if value["verdict"] else None
    value["phase"] = Phase(value["phase"]) if value["phase"] else None
    value["effective"] = effective_in(value["effective"])
    for name in ("argv", "env_keys", "log_tail"):
        value[name] = tuple(value[name] or ())
    return LaunchRow(**value)


def block_out(block: BlockResult, *, slo: Slo | None, num_draft_tokens: int | None) -> dict[str, Any]:
    """Columns of ``blocks`` without its launch: the derived figures are stored so that queries need no request rows."""
    from sweep import metrics  # brings numpy, which reading does without

    return {
        "stage": block.stage.value,
        "concurrency": block.concurrency,
        "round": block.round,
        "prompts_hash": block.prompts_hash,
        "started_at": block.started_at,
        "elapsed_s": block.elapsed_s,
        "n_requests": len(block.requests),
        "n_ok": sum(r.ok for r in block.requests),
        "output_tokens": block.output_tokens,
        "accept_histogram": list(metrics.accept_histogram(block)) or None,
        "client": asdict(block.client),
        "gpus": [asdict(g) for g in block.gpus],
        "log_flags": {flag: clean(line) for flag, line in block.log_flags.items()},
        "invalid": block.invalid,
        **metrics.block_summary(block, slo=slo, num_draft_tokens=num_draft_tokens),
    }


def client_in(value: Mapping[str, Any]) -> ClientHealth:
    return ClientHealth(**{**value, "by_process": tuple(value.get("by_process", ()))})


def block_in(row: Row[Any], requests: Sequence[RequestRecord]) -> BlockResult:
    """``requests`` as read with :func:`request_in`; empty where only what surrounds them is wanted."""
    return BlockResult(
        stage=Stage(row.stage),
        concurrency=row.concurrency,
        round=row.round,
        prompts_hash=row.prompts_hash,
        started_at=row.started_at,
        elapsed_s=row.elapsed_s,
        requests=tuple(requests),
        client=client_in(row.client),
        gpus=tuple(GpuTelemetry(**{**g, "throttle_reasons": tuple(g["throttle_reasons"])}) for g in row.gpus),
        log_flags=row.log_flags,
        invalid=row.invalid,
    )


_SAME = (
    "prompt_id",
    "category",
    "sent_s",
    "ttft_s",
    "end_s",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "token_source",
    "verify_steps",
    "correct_drafts",
    "finish_reason",
    "retractions",
    "chunks",
)


def request_out(request: RequestRecord) -> dict[str, Any]:
    """Columns of ``requests`` without its block. Output ids are kept as a hash: equal outputs, not their text."""
    ids = request.output_ids
    return {
        "idx": request.index,
        **{name: getattr(request, name) for name in _SAME},
        "accept_histogram": None if request.accept_histogram is None else list(request.accept_histogram),
        "error": None if request.error is None else clean(request.error),
        "output_hash": None if ids is None else hashlib.sha256(repr(ids).encode()).hexdigest()[:16],
    }


def request_in(row: Row[Any]) -> RequestRecord:
    histogram = row.accept_histogram
    return RequestRecord(
        index=row.idx,
        prompt_id=row.prompt_id,
        category=row.category,
        sent_s=row.sent_s,
        ttft_s=row.ttft_s,
        end_s=row.end_s,
        prompt_tokens=row.prompt_tokens,
        cached_tokens=row.cached_tokens,
        output_tokens=row.output_tokens,
        token_source=row.token_source,
        verify_steps=row.verify_steps,
        correct_drafts=row.correct_drafts,
        accept_histogram=None if histogram is None else tuple(histogram),
        finish_reason=row.finish_reason,
        retractions=row.retractions,
        chunks=row.chunks,
        error=row.error,
    )


_GAIN_SAME = (
    "metric",
    "concurrency",
    "category",
    "reference",
    "log_se",
    "df",
    "p_adjusted",
    "n_pairs",
    "n_launches",
    "value",
    "value_se",
    "accept_length",
    "break_even",
)


def gain_out(line: ArmGain) -> dict[str, Any]:
    """Columns of ``gains`` without study and trial."""
    gain = line.gain
    return {
        **{name: getattr(line, name) for name in _GAIN_SAME},
        "comparison": line.comparison.value,
        "estimate": gain.estimate if gain else None,
        "low": gain.low if gain else None,
        "high": gain.high if gain else None,
        "basis": gain.basis.value if gain else None,
        "stage": gain.stage.value if gain else None,
        "search_gain": line.search_gain.as_dict() if line.search_gain else None,
    }


def gain_in(row: Row[Any], ties: Mapping[GainKey, Tie]) -> ArmGain:
    """From a row of ``gains`` joined with the trial's ``number``; ``ties`` of the same analysis."""
    gain = None
    if row.estimate is not None:
        gain = Gain(row.estimate, row.low, row.high, Basis(row.basis), Stage(row.stage))
    before = row.search_gain
    if before is not None:
        before = Gain(**{**before, "basis": Basis(before["basis"]), "stage": Stage(before["stage"])})
    return ArmGain(
        trial=row.number,
        comparison=Comparison(row.comparison),
        gain=gain,
        search_gain=before,
        tie=ties.get((row.number, row.metric, row.concurrency, row.category, row.reference)),
        **{name: getattr(row, name) for name in _GAIN_SAME},
    )
