"""The order of a study's complete trials by one objective: constraints first, then comparability, then the analysis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from storage import codec, schema
from storage.records import GainRow, TrialRow
from storage.trials import trial_query
from sweep.model import Comparison, Flag, Objective, Stage, Verdict

BASELINE = "baseline"
ENGINE_DEFAULT = "engine_default"


@dataclass(frozen=True, slots=True)
class Candidate:
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


def ranked(connection: Connection, study_id: int, objective: Objective, result: Mapping[str, Any]) -> list[Candidate]:
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
        Candidate(trial, gains.get(trial.number), *by_analysis.get(trial.number, (None, len(lines))))
        for trial in complete_trials(connection, study_id)
    ]
    sign = -1.0 if objective.maximize else 1.0

    def place(candidate: Candidate) -> tuple[Any, ...]:
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


def ranks(candidates: Sequence[Candidate]) -> list[int]:
    """1 for the first; the same for ties of one group, else the place in the list."""
    out: list[int] = []
    for index, candidate in enumerate(candidates):
        before = candidates[index - 1] if index else None
        tied = (
            before is not None
            and candidate.rank is not None
            and candidate.rank == before.rank
            and candidate.group() == before.group()
        )
        out.append(out[-1] if tied else index + 1)
    return out


def analysis_result(connection: Connection, study_id: int) -> Mapping[str, Any]:
    found = connection.scalar(sa.select(schema.analyses.c.result).where(schema.analyses.c.study_id == study_id))
    return found or {}


def baseline_levels(result: Mapping[str, Any]) -> dict[str, float]:
    return dict((result.get(BASELINE) or {}).get("by_objective", {}))


def complete_trials(connection: Connection, study_id: int) -> list[TrialRow]:
    table = schema.trials
    query = trial_query().where(table.c.study_id == study_id, table.c.verdict == Verdict.COMPLETE.value)
    return [codec.trial_in(row) for row in connection.execute(query.order_by(table.c.number))]


def _gains(connection: Connection, *where: sa.ColumnElement[bool]) -> Iterable[GainRow]:
    query = sa.select(schema.gains, schema.trials.c.number).join(
        schema.trials, schema.trials.c.id == schema.gains.c.trial_id
    )
    return (codec.gain_in(row) for row in connection.execute(query.where(*where)))
