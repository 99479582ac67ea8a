"""The order of a study's complete trials by one objective: constraints first, then comparability, then the analysis.

Reads only the columns that order needs: thousands of trials are ranked where ten are shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from storage import schema
from sweep.model import ArmConfig, Comparison, Flag, GainKey, Objective, Stage, Tie, Verdict

BASELINE = "baseline"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A complete trial with what its place in the ranking depends on. ``estimate`` is its gain over the baseline."""

    trial_id: int
    number: int
    flags: frozenset[str]
    feasible: bool
    value: float | None  # of the objective
    comparison: Comparison
    estimate: float | None
    confirmed: bool
    rank: int | None  # the analysis' own; equal ranks are ties
    place: int  # in the analysis' ranking
    ran: str  # key of the configuration that ran: the effective one where it was read back
    also: tuple[int, ...] = ()  # the numbers of other trials of it that :func:`once` left out

    def group(self) -> int:
        """Trials of a later group never stand above one of an earlier."""
        if self.comparison is Comparison.NOT_COMPARABLE or Flag.NOT_COMPARABLE.value in self.flags:
            return 3
        if Flag.SCREENED_OUT.value in self.flags:
            return 2
        return 0 if self.feasible else 1


def feasible(violations: Mapping[str, float] | None) -> bool:
    """Keeps every constraint that was evaluated: violations are kept where <= 0."""
    return all(violation <= 0 for violation in (violations or {}).values())


def ranked(
    connection: Connection,
    study_id: int,
    objective: Objective,
    summary: Mapping[str, Any],
    *,
    category: str | None = None,
    lossy: bool = False,
) -> list[Candidate]:
    """Every complete trial of one class (lossless arms, or ``lossy`` ones), best first by its gain on the prompts of
    one category (None: all of them). ``summary`` is :func:`analysis_summary`'s."""
    gains, trials = schema.gains.c, schema.trials.c
    of_objective = sa.and_(
        gains.study_id == study_id,
        gains.metric == objective.metric,
        gains.concurrency == objective.concurrency,
        gains.reference == BASELINE,
        gains.category.is_(None) if category is None else gains.category == category,
    )
    query = sa.select(gains.trial_id, gains.comparison, gains.estimate, gains.stage).where(of_objective)
    found = {row.trial_id: row for row in connection.execute(query)}
    lines = summary["ranking"].get(objective.key, ()) if category is None else ()  # the analysis ranks whole loads
    order = {trial: (rank, place) for place, (trial, rank) in enumerate(lines)}
    columns = (
        trials.id,
        trials.number,
        trials.flags,
        trials.objective_values,
        trials.constraint_values,
        sa.func.coalesce(trials.effective_key, schema.arms.c.key).label("ran"),
    )
    query = (
        sa.select(*columns, schema.arms.c.config)
        .join(schema.arms, schema.arms.c.id == trials.arm_id)
        .where(trials.study_id == study_id, trials.verdict == Verdict.COMPLETE.value)
    )
    candidates = []
    for row in connection.execute(query):
        if ArmConfig.from_dict(row.config).lossy is not lossy:
            continue
        gain = found.get(row.id)
        rank, place = order.get(row.number, (None, len(order)))
        candidates.append(
            Candidate(
                trial_id=row.id,
                number=row.number,
                flags=frozenset(row.flags),
                feasible=feasible(row.constraint_values),
                value=(row.objective_values or {}).get(objective.key),
                comparison=Comparison.NOT_COMPARABLE if gain is None else Comparison(gain.comparison),
                estimate=None if gain is None else gain.estimate,
                confirmed=gain is not None and gain.stage == Stage.CONFIRM.value,
                rank=rank,
                place=place,
                ran=row.ran,
            )
        )
    sign = -1.0 if objective.maximize else 1.0

    def place_of(candidate: Candidate) -> tuple[Any, ...]:
        # Where the analysis ranked this objective its order stands; else confirmed before searched, then by gain.
        return (
            candidate.group(),
            candidate.place,
            not candidate.confirmed,
            float("inf") if candidate.estimate is None else -candidate.estimate,
            float("inf") if candidate.value is None else sign * candidate.value,
            candidate.number,
        )

    return sorted(candidates, key=place_of)


def once(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Each configuration once, in the order given: of those measured again the trial that speaks is the confirmed one,
    else the newest. (A search measures again what looked good, so a first figure is too high on average.)"""
    speaks: dict[str, Candidate] = {}
    numbers: dict[str, list[int]] = {}
    for candidate in candidates:
        numbers.setdefault(candidate.ran, []).append(candidate.number)
        other = speaks.get(candidate.ran)
        if other is None or _weight(candidate) > _weight(other):
            speaks[candidate.ran] = candidate
    return [
        replace(c, also=tuple(sorted(n for n in numbers[c.ran] if n != c.number)))
        for c in candidates
        if speaks[c.ran] is c
    ]


def _weight(candidate: Candidate) -> tuple[int, bool, int]:
    return -candidate.group(), candidate.confirmed, candidate.number


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


def analysis_summary(connection: Connection, study_id: int) -> Mapping[str, Any]:
    """{baseline: {objective key: level}, ranking: {objective key: [[trial, rank]]}, ties, sentences} of the last
    analysis; an older version's has no ``ties``."""
    query = sa.select(schema.analyses.c.summary).where(schema.analyses.c.study_id == study_id)
    return connection.scalar(query) or {"baseline": {}, "ranking": {}, "ties": [], "sentences": []}


def ties(summary: Mapping[str, Any]) -> dict[GainKey, Tie]:
    """Why gains whose intervals exclude 0 are ties, by what tells a gain from the study's others."""
    return {
        (t["trial"], t["metric"], t["concurrency"], t["category"], t["reference"]): Tie(
            t["reason"], t["low"], t["high"], t["comparisons"]
        )
        for t in summary.get("ties", ())
    }
