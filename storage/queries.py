"""Answers about studies as plain dicts in the shape of the JSON contract. Fractions, never percent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import sqlalchemy as sa

from storage import schema
from storage.best import best
from storage.reading import gpu_hours
from storage.records import LaunchRow, LaunchState
from storage.search_state import search_state
from storage.store import Store
from sweep.model import Role, Stage, Verdict

__all__ = ["best", "counts", "status", "studies", "summary"]


def summary(store: Store, study_id: int) -> dict[str, Any]:
    """What `start` and `resume` end with: {study, state, counts, best} and more of :func:`best`."""
    answer = best(store, study_id)
    head = {key: answer.pop(key) for key in ("study", "simulated", "state")}
    search = search_state(store, store.study_by_id(study_id))
    return {**head, "counts": counts(store, study_id), "search": search, **answer}


def counts(store: Store, study_id: int) -> dict[str, int]:
    """Trials by verdict, and by state where they have none yet; only what occurs."""
    table = schema.trials
    word = sa.func.coalesce(table.c.verdict, table.c.state)
    query = sa.select(word, sa.func.count()).where(table.c.study_id == study_id).group_by(word).order_by(word)
    with store.database.read() as connection:
        return {str(name): int(count) for name, count in connection.execute(query)}


def status(store: Store, study_id: int) -> dict[str, Any]:
    """{study, state, counts, launches: {search, total}, search, gpu_hours, hosts}.

    A search launch measures a candidate for the search; GPU-hours are those that launches held, a running one until
    now. ``search`` is :func:`storage.search_state.search_state`.
    """
    study = store.study_by_id(study_id)
    table = schema.launches
    query = sa.select(table.c.stage, table.c.role, sa.func.count()).where(table.c.study_id == study.id)
    with store.database.read() as connection:
        launched = connection.execute(query.group_by(table.c.stage, table.c.role)).all()
    launches = store.launches(study.id)
    running = {launch.host: launch for launch in launches if launch.state is not LaunchState.ENDED}
    why = {trial.number: trial.why for trial in store.trials(study.id)} if running else {}
    return {
        "study": study.name,
        "simulated": study.simulated,
        "state": study.state.value,
        "stop_requested": study.stop_requested,
        "created_at": study.created_at,
        "finished_at": study.finished_at,
        "controller": study.controller,
        "heartbeat_at": study.heartbeat_at,
        "counts": counts(store, study.id),
        "launches": {
            "search": sum(n for stage, role, n in launched if (stage, role) == (Stage.SEARCH, Role.CANDIDATE)),
            "total": sum(n for _, _, n in launched),
        },
        "search": search_state(store, study),
        "gpu_hours": gpu_hours(launches, study.spec),
        "hosts": [
            {"name": host.name, "kind": host.kind, "state": host.state.value, "note": host.note}
            | _doing(running.get(host.name), why, launches)
            for host in store.hosts(study.id)
        ],
    }


def _doing(launch: LaunchRow | None, why: Mapping[int, str], launches: Sequence[LaunchRow]) -> dict[str, Any]:
    if launch is None:
        return {"phase": None, "launch": None, "trial": None, "arm": None, "why": None, "since": None}
    phase = launch.phase.value if launch.phase else launch.state.value
    since = launch.ready_at or launch.started_at or launch.begun_at
    return {
        "phase": phase,
        "launch": launch.id,
        "trial": launch.trial,
        "arm": launch.config.label(),
        "why": None if launch.trial is None else why.get(launch.trial),
        "stage": launch.stage.value,
        "since": since,
        "begun_at": launch.begun_at,
        "expected_s": _expected_s(launch, launches),
    }


def _expected_s(launch: LaunchRow, launches: Sequence[LaunchRow]) -> float | None:
    """The median of the launches that were measured to their end, of the same stage where there are any."""
    ended = [x for x in launches if x.ended_at is not None and x.verdict is Verdict.COMPLETE]
    alike = [x for x in ended if x.stage is launch.stage] or ended
    took = [x.ended_at - x.begun_at for x in alike if x.ended_at is not None]
    return median(took) if took else None


def studies(store: Store) -> list[dict[str, Any]]:
    """All studies, the newest first."""
    return [
        {
            "study": study.name,
            "simulated": study.simulated,
            "state": study.state.value,
            "engine": study.engine,
            "created_at": study.created_at,
            "finished_at": study.finished_at,
            "counts": counts(store, study.id),
        }
        for study in store.studies()
    ]
