"""Answers: the ranking as plain dicts in the shape of the JSON contract. Fractions, never percent.

Reads rows of ``trials``, ``gains`` and ``analyses`` alone (blocks only of the few trials shown), so that it stays
quick however many requests were measured. Of the analysis result these keys are read, each optional:

``baseline``   {by_objective: {objective key: figure in the metric's unit}}, the reference level
``ranking``    {objective key: [{trial, rank, ...}]}, best first, equal ranks are ties
``sentences``  what the analysis says in words
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from storage import codec, schema
from storage.records import GainRow, StudyRow, TrialRow
from storage.store import Store
from storage.trials import trial_query
from sweep.errors import UsageError
from sweep.metrics import parse_objective
from sweep.model import Comparison, Flag, Objective, Stage, Verdict

BASELINE = "baseline"
ENGINE_DEFAULT = "engine_default"


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A complete trial with what its place in the ranking depends on."""

    trial: TrialRow
    gain: GainRow | None
    rank: int | None  # the analysis' own; equal ranks are ties
    place: int  # in the analysis' ranking

    @property
    def comparable(self) -> bool:
        return self.gain is not None and self.gain.comparison is not Comparison.NOT_COMPARABLE

    @property
    def confirmed(self) -> bool:
        gain = self.gain.gain if self.gain is not None else None
        return gain is not None and gain.stage is Stage.CONFIRM

    def group(self) -> int:
        """Trials of a later group never stand above one of an earlier: constraints, screening, comparability."""
        flags = self.trial.flags
        if not self.comparable or Flag.NOT_COMPARABLE in flags:
            return 3
        if Flag.SCREENED_OUT in flags:
            return 2
        return 0 if feasible(self.trial) else 1


def feasible(trial: TrialRow) -> bool:
    """Keeps every constraint that was evaluated."""
    return all(violation <= 0 for violation in trial.constraints.values())


def best(store: Store, study: StudyRow, *, objective: str | None = None, limit: int | None = 10) -> dict[str, Any]:
    """The ranking by one objective (the study's first where None) against both references.

    Only complete trials are ranked. Raises UsageError for an objective that was not measured.
    """
    with store.database.read() as connection:
        result = analysis_result(connection, study.id)
        chosen = _objective(connection, study, objective)
        candidates = _ranked(connection, study.id, chosen, result)
        shown = candidates if limit is None else candidates[:limit]
        detail = _gains_of(connection, [c.trial.id for c in shown], chosen)
        default = _engine_default(connection, study)
        measured = _measured(connection, [c.trial.id for c in shown], chosen.concurrency)
    ranks = _ranks(candidates)
    faster = any(c.gain and c.gain.comparison is Comparison.FASTER and c.group() == 0 for c in candidates)
    return {
        "study": study.name,
        "simulated": study.simulated,
        "state": study.state.value,
        "objective": chosen.key,
        "objectives": [o.key for o in study.objectives],
        "baseline": {"by_objective": baseline_levels(result)},
        "engine_default": {"by_objective": default},
        "beats_baseline": faster,
        "sentences": list(result.get("sentences", ())),
        "ranked": len(candidates),
        "best": [
            _best_row(c, rank, detail[c.trial.id], measured.get(c.trial.id, {}), chosen)
            for c, rank in zip(shown, ranks, strict=False)
        ],
    }


# ---------------------------------------------------------------------------------------------- ranking


def _objective(connection: Connection, study: StudyRow, text: str | None) -> Objective:
    if text is None:
        if not study.objectives:
            raise UsageError(f"study {study.name!r} names no objective; use --objective METRIC@CONCURRENCY")
        return study.objectives[0]
    chosen = parse_objective(text, concurrency=study.objectives[0].concurrency if study.objectives else None)
    gains = schema.gains.c
    query = sa.select(gains.metric, gains.concurrency).where(gains.study_id == study.id).distinct()
    known = {o.key for o in study.objectives} | {f"{metric}@{level}" for metric, level in connection.execute(query)}
    if chosen.key not in known:
        raise UsageError(
            f"{chosen.key} was not measured in study {study.name!r}; there are: {', '.join(sorted(known))}"
        )
    return chosen


def _ranked(connection: Connection, study_id: int, objective: Objective, result: Mapping[str, Any]) -> list[_Candidate]:
    gains = {
        gain.trial: gain
        for gain in _gains(
            connection,
            schema.gains.c.study_id == study_id,
            schema.gains.c.metric == objective.metric,
            schema.gains.c.concurrency == objective.concurrency,
            schema.gains.c.reference == BASELINE,
            schema.gains.c.category.is_(None),
        )
    }
    lines = result.get("ranking", {}).get(objective.key, ())
    by_analysis = {line["trial"]: (line["rank"], place) for place, line in enumerate(lines)}
    found = [
        _Candidate(trial, gains.get(trial.number), *by_analysis.get(trial.number, (None, len(lines))))
        for trial in complete_trials(connection, study_id)
    ]
    sign = -1.0 if objective.maximize else 1.0

    def place(candidate: _Candidate) -> tuple[Any, ...]:
        # Where the analysis ranked this objective its order stands; else confirmed before searched, then by gain.
        gain = candidate.gain.gain if candidate.gain is not None else None
        figure = candidate.trial.values.get(objective.key)
        return (
            candidate.group(),
            candidate.place,
            not candidate.confirmed,
            float("inf") if gain is None else -gain.estimate,
            float("inf") if figure is None else sign * figure,
            candidate.trial.number,
        )

    return sorted(found, key=place)


def _ranks(candidates: Sequence[_Candidate]) -> list[int]:
    """1 for the first; the same for ties of one group, else the place in the list."""
    ranks: list[int] = []
    for index, candidate in enumerate(candidates):
        before = candidates[index - 1] if index else None
        tied = (
            before is not None
            and candidate.rank is not None
            and candidate.rank == before.rank
            and candidate.group() == before.group()
        )
        ranks.append(ranks[-1] if tied else index + 1)
    return ranks


def _best_row(
    candidate: _Candidate, rank: int, gains: Sequence[GainRow], measured: Mapping[str, Any], objective: Objective
) -> dict[str, Any]:
    trial, gain = candidate.trial, candidate.gain
    default = next((g for g in gains if g.reference == ENGINE_DEFAULT and g.category is None), None)
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
        "feasible": feasible(trial),
        "flags": list(trial.flags),
        "host": trial.host,
    }


def _interval(gain: GainRow | None) -> dict[str, Any] | None:
    return gain.gain.as_dict() if gain is not None and gain.gain is not None else None


# ---------------------------------------------------------------------------------------------- rows


def analysis_result(connection: Connection, study_id: int) -> Mapping[str, Any]:
    found = connection.scalar(sa.select(schema.analyses.c.result).where(schema.analyses.c.study_id == study_id))
    return found or {}


def baseline_levels(result: Mapping[str, Any]) -> dict[str, float]:
    return dict((result.get(BASELINE) or {}).get("by_objective", {}))


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


def complete_trials(connection: Connection, study_id: int) -> list[TrialRow]:
    table = schema.trials
    query = trial_query().where(table.c.study_id == study_id, table.c.verdict == Verdict.COMPLETE.value)
    return [codec.trial_in(row) for row in connection.execute(query.order_by(table.c.number))]


def _gains(connection: Connection, *where: sa.ColumnElement[bool]) -> Iterable[GainRow]:
    query = sa.select(schema.gains, schema.trials.c.number).join(
        schema.trials, schema.trials.c.id == schema.gains.c.trial_id
    )
    return (codec.gain_in(row) for row in connection.execute(query.where(*where)))


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
