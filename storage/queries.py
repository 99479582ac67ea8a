"""Answers about studies as plain dicts in the shape of the JSON contract. Fractions, never percent.

`best` reads rows of ``trials``, ``gains`` and ``analyses`` alone (blocks only of the few trials shown), so that it
stays quick however many requests were measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from storage import codec, schema
from storage.ranking import BASELINE, analysis_summary, feasible, ranked, ranks
from storage.records import GainRow, LaunchRow, StudyRow, TrialRow
from storage.store import Store
from storage.trials import trial_query
from sweep.errors import UsageError
from sweep.model import Comparison, Objective, Role, Stage, Verdict

ENGINE_DEFAULT = "engine_default"


def best(
    store: Store, study_id: int, *, objective: str | None = None, limit: int | None = 10, lossy: bool = False
) -> dict[str, Any]:
    """The ranking by one objective (the study's first where None) against both references.

    Only complete trials are ranked, and lossless arms alone: ``lossy`` ranks those that may change what is answered,
    a class of their own. Raises UsageError for an objective that was not measured.
    """
    study = store.study_by_id(study_id)
    with store.database.read() as connection:
        found = analysis_summary(connection, study.id)
        chosen = _objective(connection, study, objective)
        candidates = ranked(connection, study.id, chosen, found, lossy=lossy)
        shown = candidates if limit is None else candidates[:limit]
        ids = [candidate.trial_id for candidate in shown]
        trials = _trials(connection, ids)
        detail = _gains_of(connection, ids, chosen)
        default = _engine_default(connection, study)
        measured = _measured(connection, ids, chosen.concurrency)
    places = ranks(candidates)
    faster = any(c.comparison is Comparison.FASTER and c.group() == 0 for c in candidates)
    return {
        "study": study.name,
        "simulated": study.simulated,
        "state": study.state.value,
        "objective": chosen.key,
        "objectives": [o.key for o in study.objectives],
        "baseline": {"by_objective": found["baseline"]},
        "engine_default": {"by_objective": default},
        "lossy": lossy,
        "beats_baseline": faster,
        "sentences": found["sentences"],
        "ranked": len(candidates),
        "best": [
            _best_row(trials[key], rank, detail[key], measured.get(key, {}), chosen)
            for key, rank in zip(ids, places, strict=False)
        ],
    }


def summary(store: Store, study_id: int) -> dict[str, Any]:
    """What `start` and `resume` end with: {study, state, counts, best} and more of :func:`best`."""
    answer = best(store, study_id)
    head = {key: answer.pop(key) for key in ("study", "simulated", "state")}
    return {**head, "counts": counts(store, study_id), **answer}


def counts(store: Store, study_id: int) -> dict[str, int]:
    """Trials by verdict, and by state where they have none yet; only what occurs."""
    table = schema.trials
    word = sa.func.coalesce(table.c.verdict, table.c.state)
    query = sa.select(word, sa.func.count()).where(table.c.study_id == study_id).group_by(word).order_by(word)
    with store.database.read() as connection:
        return {str(name): int(count) for name, count in connection.execute(query)}


def status(store: Store, study_id: int) -> dict[str, Any]:
    """{study, state, counts, launches: {search, total}, hosts}. A search launch measures a candidate for the search."""
    study = store.study_by_id(study_id)
    table = schema.launches
    query = sa.select(table.c.stage, table.c.role, sa.func.count()).where(table.c.study_id == study.id)
    with store.database.read() as connection:
        launched = connection.execute(query.group_by(table.c.stage, table.c.role)).all()
    running = {launch.host: launch for launch in store.launches(study.id, open_only=True)}
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
        "hosts": [
            {"name": host.name, "kind": host.kind, "state": host.state.value, "note": host.note}
            | _doing(running.get(host.name))
            for host in store.hosts(study.id)
        ],
    }


def _doing(launch: LaunchRow | None) -> dict[str, Any]:
    if launch is None:
        return {"phase": None, "launch": None, "trial": None, "arm": None, "since": None}
    phase = launch.phase.value if launch.phase else launch.state.value
    since = launch.ready_at or launch.started_at or launch.begun_at
    return {
        "phase": phase,
        "launch": launch.id,
        "trial": launch.trial,
        "arm": launch.config.label(),
        "stage": launch.stage.value,
        "since": since,
    }


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


# ---------------------------------------------------------------------------------------------- ranking


def _objective(connection: Connection, study: StudyRow, text: str | None) -> Objective:
    if text is None:
        if not study.objectives:
            raise UsageError(f"study {study.name!r} names no objective; use --objective METRIC@CONCURRENCY")
        return study.objectives[0]
    from sweep.metrics import parse_objective  # brings numpy, which the plain question does without

    chosen = parse_objective(text, concurrency=study.objectives[0].concurrency if study.objectives else None)
    gains = schema.gains.c
    query = sa.select(gains.metric, gains.concurrency).where(gains.study_id == study.id).distinct()
    known = {o.key for o in study.objectives} | {f"{metric}@{level}" for metric, level in connection.execute(query)}
    if chosen.key not in known:
        raise UsageError(
            f"{chosen.key} was not measured in study {study.name!r}; there are: {', '.join(sorted(known))}"
        )
    return chosen


def _best_row(
    trial: TrialRow, rank: int, gains: Sequence[GainRow], measured: Mapping[str, Any], objective: Objective
) -> dict[str, Any]:
    whole = {g.reference: g for g in gains if g.category is None}
    gain, default = whole.get(BASELINE), whole.get(ENGINE_DEFAULT)
    categories = {g.category: g for g in gains if g.reference == BASELINE and g.category is not None}
    accept_length = gain.accept_length if gain is not None and gain.accept_length is not None else None
    value = gain.value if gain is not None and gain.value is not None else trial.values.get(objective.key)
    throughput = value if objective.metric == "output_throughput" else None
    return {
        "rank": rank,
        "trial": trial.number,
        "label": trial.config.label(),
        "config": trial.config.as_dict(),
        "effective": (trial.effective.config if trial.effective else trial.config).as_dict(),
        "value": value,
        "throughput": throughput if throughput is not None else measured.get("throughput"),
        "accept_length": accept_length if accept_length is not None else measured.get("accept_length"),
        "gain": _interval(gain),
        "gain_over_engine_default": _interval(default),
        "search_gain": gain.search_gain.as_dict() if gain is not None and gain.search_gain is not None else None,
        "by_category": {str(category): _interval(g) for category, g in sorted(categories.items()) if g.gain},
        "break_even_accept_length": gain.break_even if gain is not None else None,
        "verdict": Verdict.COMPLETE.value,
        "comparison": (gain.comparison if gain is not None else Comparison.NOT_COMPARABLE).value,
        "comparison_with_engine_default": default.comparison.value if default is not None else None,
        "feasible": feasible(trial.constraints),
        "flags": list(trial.flags),
        "host": trial.host,
    }


def _interval(gain: GainRow | None) -> dict[str, Any] | None:
    return gain.gain.as_dict() if gain is not None and gain.gain is not None else None


# ---------------------------------------------------------------------------------------------- rows


def _trials(connection: Connection, trial_ids: Sequence[int]) -> dict[int, TrialRow]:
    query = trial_query().where(schema.trials.c.id.in_(trial_ids))
    return {row.id: codec.trial_in(row) for row in connection.execute(query)}


def _gains_of(connection: Connection, trial_ids: Sequence[int], objective: Objective) -> dict[int, list[GainRow]]:
    """Trial id -> its gains in one objective, every category and reference."""
    gains = schema.gains.c
    query = sa.select(schema.gains, schema.trials.c.number).join(schema.trials, schema.trials.c.id == gains.trial_id)
    where = (
        gains.trial_id.in_(trial_ids),
        gains.metric == objective.metric,
        gains.concurrency == objective.concurrency,
    )
    out: defaultdict[int, list[GainRow]] = defaultdict(list)
    for row in connection.execute(query.where(*where)):
        out[row.trial_id].append(codec.gain_in(row))
    return out


def _measured(connection: Connection, trial_ids: Sequence[int], concurrency: int) -> dict[int, dict[str, float]]:
    """Trial id -> mean throughput and accept length of its valid blocks, of the confirm stage where there is one."""
    blocks, launches = schema.blocks.c, schema.launches.c
    query = (
        sa.select(
            launches.trial_id,
            launches.stage,
            sa.func.avg(blocks.output_throughput).label("throughput"),
            sa.func.avg(blocks.accept_length).label("accept_length"),
        )
        .join(schema.launches, launches.id == blocks.launch_id)
        .where(
            launches.trial_id.in_(trial_ids),
            launches.verdict == Verdict.COMPLETE.value,
            blocks.concurrency == concurrency,
            blocks.invalid.is_(None),
        )
        .group_by(launches.trial_id, launches.stage)
    )
    out: dict[int, dict[str, float]] = {}
    for row in connection.execute(query):
        if row.trial_id not in out or row.stage == Stage.CONFIRM.value:
            out[row.trial_id] = {"throughput": row.throughput, "accept_length": row.accept_length}
    return out


def _engine_default(connection: Connection, study: StudyRow) -> dict[str, float]:
    """Objective key -> the engine default's figure, where it was measured."""
    gains = schema.gains.c
    query = sa.select(gains.metric, gains.concurrency, gains.value).where(
        gains.study_id == study.id,
        gains.trial_id.is_(None),
        gains.reference == BASELINE,
        gains.category.is_(None),
        gains.value.is_not(None),
    )
    found = {f"{metric}@{level}": value for metric, level, value in connection.execute(query)}
    return {o.key: found[o.key] for o in study.objectives if o.key in found}
