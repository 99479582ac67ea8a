"""``--where``: which complete trials a ranking keeps, by the fields of their configuration and of their result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from storage import schema
from storage.ranking import BASELINE, Candidate
from storage.records import StudyRow
from sweep.errors import UsageError
from sweep.expressions import parse
from sweep.model import Objective, Verdict

# Fields of a row besides the study's own further axes (server flags, with _ for -).
CONFIG_FIELDS = ("algorithm", "draft_model", "num_steps", "topk", "num_draft_tokens", "cuda_graph")
RESULT_FIELDS = ("value", "gain", "low", "high", "accept_length", "break_even", "comparison", "stage")
FIELDS = (*CONFIG_FIELDS, *RESULT_FIELDS, "trial", "host", "origin", "flags", "feasible", "metric", "concurrency")
ALIASES: Mapping[str, str] = {"steps": "num_steps", "draft_tokens": "num_draft_tokens", "drafter": "draft_model"}


def facts_of(connection: Connection, study: StudyRow) -> dict[int, dict[str, Any]]:
    """Complete trial's number -> what it ran (its effective configuration where it was read back), host, flags."""
    trials = schema.trials.c
    query = (
        sa.select(trials.number, trials.host, trials.origin, trials.flags, trials.effective, schema.arms.c.config)
        .join(schema.arms, schema.arms.c.id == trials.arm_id)
        .where(trials.study_id == study.id, trials.verdict == Verdict.COMPLETE.value)
    )
    out: dict[int, dict[str, Any]] = {}
    for row in connection.execute(query):
        config = row.effective["config"] if row.effective else row.config
        out[row.number] = {
            **{name: config.get(name) for name in CONFIG_FIELDS},
            **{flag.replace("-", "_"): value for flag, value in (config.get("args") or {}).items()},
            "trial": row.number,
            "host": row.host,
            "origin": row.origin,
            "flags": frozenset(row.flags),
        }
    return out


class Selection:
    """A condition over one study's complete trials. UsageError where it cannot be read."""

    def __init__(self, connection: Connection, study: StudyRow, text: str) -> None:
        self._connection = connection
        self._study = study
        self._facts = facts_of(connection, study)
        flags = {name for row in self._facts.values() for name in row}
        self._condition = parse(text, {*FIELDS, *flags}, ALIASES)

    @property
    def pins_concurrency(self) -> bool:
        return "concurrency" in self._condition.names

    def kept(self, candidates: Sequence[Candidate], objective: Objective) -> list[Candidate]:
        """Those that meet the condition, in their order; results are those at the objective's concurrency."""
        results = self._results(objective)
        fixed = {"metric": objective.metric, "concurrency": objective.concurrency}
        nothing = dict.fromkeys(RESULT_FIELDS)
        return [
            c
            for c in candidates
            if self._condition(
                {**nothing, **self._facts[c.number], **results.get(c.number, {}), **fixed, "feasible": c.feasible}
            )
        ]

    def at_one_level(self, objective: Objective, levels: Sequence[int]) -> Objective:
        """The objective's metric at the one measured concurrency that the condition allows. UsageError where it
        allows several; where it allows none the objective stays and nothing will be kept."""
        fitting = [
            goal for level in levels if self._any(goal := Objective(objective.metric, level, objective.maximize))
        ]
        if len(fitting) > 1:
            there = ", ".join(str(goal.concurrency) for goal in fitting)
            raise UsageError(
                f"the condition {self._condition.text!r} allows the concurrency levels {there}; figures of different "
                "loads have no common rank. Name one, or add --per concurrency."
            )
        return fitting[0] if fitting else objective

    def _any(self, objective: Objective) -> bool:
        results = self._results(objective)
        fixed = {"metric": objective.metric, "concurrency": objective.concurrency, "feasible": True}
        return any(self._condition({**self._facts[n], **row, **fixed}) for n, row in results.items())

    def _results(self, objective: Objective) -> dict[int, dict[str, Any]]:
        gains, trials = schema.gains.c, schema.trials.c
        query = (
            sa.select(trials.number, schema.gains)
            .join(schema.trials, trials.id == gains.trial_id)
            .where(
                gains.study_id == self._study.id,
                gains.metric == objective.metric,
                gains.concurrency == objective.concurrency,
                gains.reference == BASELINE,
                gains.category.is_(None),
                trials.verdict == Verdict.COMPLETE.value,
            )
        )
        return {
            row.number: {name: row._mapping["estimate" if name == "gain" else name] for name in RESULT_FIELDS}
            for row in self._connection.execute(query)
        }
