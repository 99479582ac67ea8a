"""The figure of every complete trial, and of the baseline, in any measured metric at any measured concurrency.

Objectives of the study stand in the trials' own rows. Another metric comes from the analysis (drift removed) where it
was analysed, else it is the plain mean of the valid blocks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from storage import schema
from storage.ranking import BASELINE, analysis_summary
from storage.records import StudyRow
from sweep.errors import UsageError
from sweep.model import Objective, Role, Stage, Verdict

Figure = tuple[float, float | None]  # value and standard error in the metric's unit


def parse(connection: Connection, study: StudyRow, text: str | None) -> Objective:
    """An objective as a user writes it, the study's first where None. UsageError where it was not measured."""
    if text is None:
        if not study.objectives:
            raise UsageError(f"study {study.name!r} names no objective; use --objective METRIC@CONCURRENCY")
        return study.objectives[0]
    from sweep.metrics import parse_objective  # brings numpy, which the plain question does without

    chosen = parse_objective(text, concurrency=study.objectives[0].concurrency if study.objectives else None)
    if chosen in study.objectives:
        return chosen
    measured = levels(connection, study.id)
    if chosen.concurrency not in measured:
        there = ", ".join(map(str, measured)) or "none yet"
        ranked = ", ".join(analysed_keys(connection, study))
        raise UsageError(
            f"{chosen.key} was not measured in study {study.name!r}; concurrency levels: {there}; ranked are: {ranked}"
        )
    return chosen


def analysed(connection: Connection, study: StudyRow, objective: Objective) -> bool:
    """True where the analysis has gains for it, so that it can rank."""
    gains = schema.gains.c
    query = sa.select(gains.id).where(
        gains.study_id == study.id, gains.metric == objective.metric, gains.concurrency == objective.concurrency
    )
    return objective in study.objectives or connection.execute(query.limit(1)).first() is not None


def analysed_keys(connection: Connection, study: StudyRow) -> list[str]:
    """Every ``metric@concurrency`` that can rank."""
    gains = schema.gains.c
    query = sa.select(gains.metric, gains.concurrency).where(gains.study_id == study.id).distinct()
    found = {f"{metric}@{level}" for metric, level in connection.execute(query)}
    return sorted(found | {o.key for o in study.objectives})


def levels(connection: Connection, study_id: int) -> list[int]:
    """Concurrency levels at which anything was measured."""
    query = (
        sa.select(schema.blocks.c.concurrency)
        .join(schema.launches, schema.launches.c.id == schema.blocks.c.launch_id)
        .where(schema.launches.c.study_id == study_id)
        .distinct()
    )
    analysed = sa.select(schema.gains.c.concurrency).where(schema.gains.c.study_id == study_id).distinct()
    return sorted({*connection.scalars(query), *connection.scalars(analysed)})


def figures(
    connection: Connection, study: StudyRow, objectives: Sequence[Objective]
) -> dict[str, dict[int | None, Figure]]:
    """Objective key -> trial number (None: the baseline) -> its figure; trials that are not complete have none."""
    own = [o.key for o in objectives if o in study.objectives]
    out = _own(connection, study, own) if own else {}
    for objective in objectives:
        if objective.key not in out:
            found = _from_blocks(connection, study.id, objective)
            out[objective.key] = found | _analysed(connection, study.id, objective)
    return out


def _own(connection: Connection, study: StudyRow, keys: Sequence[str]) -> dict[str, dict[int | None, Figure]]:
    """Of the study's objectives, from the trials' rows."""
    trials = schema.trials.c
    query = sa.select(trials.number, trials.objective_values, trials.objective_stderr).where(
        trials.study_id == study.id, trials.verdict == Verdict.COMPLETE.value
    )
    baseline = analysis_summary(connection, study.id)["baseline"]
    out: dict[str, dict[int | None, Figure]] = {
        key: {None: (baseline[key], None)} if baseline.get(key) is not None else {} for key in keys
    }
    for row in connection.execute(query):
        for key in keys:
            if row.objective_values and key in row.objective_values:
                out[key][row.number] = (row.objective_values[key], (row.objective_stderr or {}).get(key))
    return out


def _analysed(connection: Connection, study_id: int, objective: Objective) -> dict[int | None, Figure]:
    trials, gains = schema.trials.c, schema.gains.c
    query = (
        sa.select(trials.number, gains.value, gains.value_se)
        .join(schema.trials, trials.id == gains.trial_id)
        .where(
            gains.study_id == study_id,
            gains.metric == objective.metric,
            gains.concurrency == objective.concurrency,
            gains.reference == BASELINE,
            gains.category.is_(None),
            gains.value.is_not(None),
            trials.verdict == Verdict.COMPLETE.value,
        )
    )
    return {row.number: (row.value, row.value_se) for row in connection.execute(query)}


def _from_blocks(connection: Connection, study_id: int, objective: Objective) -> dict[int | None, Figure]:
    """Means over valid blocks per launch, then over launches: geometric for the baseline as the analysis takes it."""
    if objective.metric not in schema.BLOCK_FIGURES:
        return {}
    launches, blocks = schema.launches.c, schema.blocks.c
    figure = blocks[objective.metric]
    query = (
        sa.select(schema.trials.c.number, launches.role, launches.stage, sa.func.avg(figure).label("mean"))
        .join(schema.launches, launches.id == blocks.launch_id)
        .outerjoin(schema.trials, schema.trials.c.id == launches.trial_id)
        .where(
            launches.study_id == study_id,
            launches.role.in_([Role.BASELINE.value, Role.CANDIDATE.value]),
            blocks.concurrency == objective.concurrency,
            blocks.invalid.is_(None),
            figure.is_not(None),
            sa.or_(launches.role == Role.BASELINE.value, schema.trials.c.verdict == Verdict.COMPLETE.value),
        )
        .group_by(launches.id, schema.trials.c.number, launches.role, launches.stage)
    )
    means: defaultdict[int | None, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in connection.execute(query):
        means[row.number][row.stage].append(row.mean)
    return {number: (_mean(number, by_stage), None) for number, by_stage in means.items()}


def _mean(number: int | None, by_stage: dict[str, list[float]]) -> float:
    if number is not None:
        values = by_stage.get(Stage.CONFIRM.value) or [v for values in by_stage.values() for v in values]
        return sum(values) / len(values)
    search = {stage: values for stage, values in by_stage.items() if stage != Stage.CONFIRM.value}
    values = [v for values in (search or by_stage).values() for v in values]
    if min(values) <= 0:
        return sum(values) / len(values)
    return math.exp(sum(map(math.log, values)) / len(values))
