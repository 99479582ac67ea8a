"""Rows of a whole study for reports and comparisons: gains, block figures without requests, GPU-hours.

Nothing here reads request rows, so that thousands of trials cost no more than their blocks.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from storage import codec, schema
from storage.ranking import analysis_summary, ties
from storage.records import LaunchRow
from storage.store import Store
from sweep.model import ArmGain


@dataclass(frozen=True, slots=True)
class BlockFigures:
    """One block with every derived figure of ``schema.BLOCK_FIGURES`` (its metric's unit), without its requests."""

    launch_id: int
    trial: int | None
    role: str
    host: str
    stage: str
    concurrency: int
    round: int
    prompts_hash: str
    started_at: float
    elapsed_s: float
    n_requests: int
    n_ok: int
    invalid: str | None
    accept_histogram: tuple[int, ...] | None
    client: Mapping[str, Any]
    gpus: Sequence[Mapping[str, Any]]
    figures: Mapping[str, float | None]


def gains(store: Store, study_id: int, *, trial: int | None = None) -> list[ArmGain]:
    """Every gain of the study (of one trial number), in the order in which the analysis wrote them."""
    table = schema.gains
    query = (
        sa.select(table, schema.trials.c.number)
        .outerjoin(schema.trials, schema.trials.c.id == table.c.trial_id)
        .where(table.c.study_id == study_id)
        .order_by(table.c.id)
    )
    if trial is not None:
        query = query.where(schema.trials.c.number == trial)
    with store.database.read() as connection:
        because = ties(analysis_summary(connection, study_id))
        return [codec.gain_in(row, because) for row in connection.execute(query)]


def block_figures(store: Store, study_id: int) -> list[BlockFigures]:
    """Every block of the study in time order, references included (``trial`` None)."""
    table, launches = schema.blocks, schema.launches
    query = (
        sa.select(table, launches.c.role, launches.c.host, schema.trials.c.number)
        .join(launches, launches.c.id == table.c.launch_id)
        .outerjoin(schema.trials, schema.trials.c.id == launches.c.trial_id)
        .where(launches.c.study_id == study_id)
        .order_by(table.c.started_at, table.c.id)
    )
    with store.database.read() as connection:
        rows = connection.execute(query).all()
    return [
        BlockFigures(
            launch_id=row.launch_id,
            trial=row.number,
            role=row.role,
            host=row.host,
            stage=row.stage,
            concurrency=row.concurrency,
            round=row.round,
            prompts_hash=row.prompts_hash,
            started_at=row.started_at,
            elapsed_s=row.elapsed_s,
            n_requests=row.n_requests,
            n_ok=row.n_ok,
            invalid=row.invalid,
            accept_histogram=None if row.accept_histogram is None else tuple(row.accept_histogram),
            client=row.client,
            gpus=row.gpus,
            figures={name: row._mapping[name] for name in schema.BLOCK_FIGURES},
        )
        for row in rows
    ]


def gpus_per_launch(spec: Mapping[str, Any]) -> int:
    """GPUs that one server of the study holds: tp-size times pp-size, of an axis over them the largest value."""
    args = (spec.get("server") or {}).get("args") or {}
    axes = (spec.get("space") or {}).get("args") or {}
    product = 1
    for flag in ("tp-size", "pp-size"):
        values = axes.get(flag) or [args.get(flag, 1)]
        product *= max((v for v in values if isinstance(v, int) and not isinstance(v, bool)), default=1)
    return product


def gpu_hours(launches: Sequence[LaunchRow], spec: Mapping[str, Any], *, now: float | None = None) -> float:
    """GPU-hours that launches held: from begin to end (a running one: until ``now``) times the GPUs of one server."""
    at = time.time() if now is None else now
    seconds = sum((launch.ended_at or max(at, launch.begun_at)) - launch.begun_at for launch in launches)
    return seconds * gpus_per_launch(spec) / 3600


def revision(store: Store, study_id: int) -> str:
    """A word that changes whenever the study does: its state, its last event, its last analysis."""
    studies, events, analyses = schema.studies.c, schema.events.c, schema.analyses.c
    last = sa.select(sa.func.max(events.id)).where(events.study_id == study_id).scalar_subquery()
    made = sa.select(analyses.made_at).where(analyses.study_id == study_id).scalar_subquery()
    with store.database.read() as connection:
        state, event, at = connection.execute(sa.select(studies.state, last, made).where(studies.id == study_id)).one()
    return f"{state}-{event}-{at}"


def acceptance(store: Store, study_id: int, number: int) -> list[tuple[int, str, int, int, tuple[int, ...]]]:
    """(concurrency, prompt category, verify steps, accepted drafts, histogram) of every successful request of a trial's
    valid blocks that carries accept counters; ``histogram[j]`` counts verify steps that accepted j drafts."""
    requests, blocks, launches, trials = schema.requests.c, schema.blocks.c, schema.launches.c, schema.trials.c
    query = (
        sa.select(
            blocks.concurrency,
            requests.category,
            requests.verify_steps,
            requests.correct_drafts,
            requests.accept_histogram,
        )
        .join(schema.blocks, blocks.id == requests.block_id)
        .join(schema.launches, launches.id == blocks.launch_id)
        .join(schema.trials, trials.id == launches.trial_id)
        .where(
            launches.study_id == study_id,
            trials.number == number,
            blocks.invalid.is_(None),
            requests.error.is_(None),
            requests.verify_steps > 0,
        )
        .order_by(requests.id)
    )
    with store.database.read() as connection:
        return [
            (
                row.concurrency,
                row.category,
                row.verify_steps,
                row.correct_drafts or 0,
                tuple(row.accept_histogram or ()),
            )
            for row in connection.execute(query)
        ]
