"""Trials: queued, running, finished. The row is finished here before the sampler is told."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from storage import codec, schema
from storage.arms import Arms
from storage.base import insert, now
from storage.records import TrialRow, TrialState
from sweep.model import ArmConfig, Diagnosis, Effective, Flag, Role, Verdict

ORIGINS = frozenset({"known_good", "seed", "sampler", "enumerated", "requeued"})

AGAIN = "; again: "  # in a trial's why: between why it was proposed and why it is tried again
_OF_ONE_ATTEMPT = (
    "verdict",
    "phase",
    "reason",
    "evidence",
    "advice",
    "retry",
    "dominates",
    "host",
    "effective",
    "effective_key",
    "objective_values",
    "objective_stderr",
    "constraint_values",
    "started_at",
    "finished_at",
    "log_path",
)


class Trials(Arms):
    """See ``storage.store.Store``."""

    def add_trial(
        self,
        study_id: int,
        config: ArmConfig,
        *,
        origin: str,
        why: str = "",
        params: Mapping[str, Any] | None = None,
        attempt: int = 1,
    ) -> TrialRow:
        """A queued trial of a candidate arm, with the study's next number, from 0."""
        if origin not in ORIGINS:
            raise ValueError(f"origin {origin!r} is none of {sorted(ORIGINS)}")
        arm_id = self.ensure_arm(study_id, config, Role.CANDIDATE).id

        def work(connection: Connection) -> int:
            table = schema.trials
            last = connection.scalar(sa.select(sa.func.max(table.c.number)).where(table.c.study_id == study_id))
            number = 0 if last is None else int(last) + 1
            values = {
                "study_id": study_id,
                "number": number,
                "arm_id": arm_id,
                "state": TrialState.QUEUED.value,
                "flags": {},
                "origin": origin,
                "why": why,
                "attempt": attempt,
                "params": dict(params or {}),
                "created_at": now(),
            }
            insert(connection, table, values)
            return number

        return self.trial(study_id, self.database.write(work))

    def start_trial(self, study_id: int, number: int, host: str) -> None:
        values = {"state": TrialState.RUNNING.value, "host": host, "started_at": now()}
        self.database.write(lambda connection: _change(connection, study_id, number, values))

    def finish_trial(
        self,
        study_id: int,
        number: int,
        diagnosis: Diagnosis | None = None,
        *,
        values: Mapping[str, float] | None = None,
        stderr: Mapping[str, float] | None = None,
        constraints: Mapping[str, float] | None = None,
        flags: Mapping[str, str] | None = None,
        effective: Effective | None = None,
        log_path: str | None = None,
    ) -> None:
        """``diagnosis`` None (or of verdict complete) is ``complete`` and may carry figures; any other carries none.

        ``flags`` maps a flag to its evidence. Raises ValueError for a failed trial with figures and for a figure that
        is not finite: nothing that failed is a number.
        """
        complete = diagnosis is None or diagnosis.verdict is Verdict.COMPLETE
        if not complete and (values or stderr):
            raise ValueError("a trial that failed has no values")
        row: dict[str, Any] = {"state": TrialState.FINISHED.value, "finished_at": now()}
        if diagnosis is None:
            row["verdict"] = Verdict.COMPLETE.value
        else:
            row |= codec.diagnosis_out(diagnosis)
            row |= {"retry": diagnosis.retry.value, "dominates": list(diagnosis.dominates)}
        if effective is not None:
            row |= {"effective": codec.effective_out(effective), "effective_key": effective.config.key}
        if log_path is not None or (diagnosis is not None and diagnosis.log_path is not None):
            row["log_path"] = log_path or (diagnosis.log_path if diagnosis else None)
        if complete:
            row |= _figures(values or {}, stderr or {}, constraints or {})

        def work(connection: Connection) -> None:
            query = sa.select(schema.studies.c.simulated).where(schema.studies.c.id == study_id)
            simulated = bool(connection.scalar(query))
            _change(connection, study_id, number, row | {"flags": _flags(flags or {}, simulated)})

        self.database.write(work)

    def update_trial_values(
        self,
        study_id: int,
        number: int,
        *,
        values: Mapping[str, float],
        stderr: Mapping[str, float] | None = None,
        constraints: Mapping[str, float] | None = None,
        flags: Mapping[str, str] | None = None,
    ) -> None:
        """Figures of a complete trial seen anew (drift known better, confirm stage done); ``flags`` None keeps them.

        Raises ValueError for a trial that is not complete.
        """
        row = _figures(values, stderr or {}, constraints or {})

        def work(connection: Connection) -> None:
            table = schema.trials
            one = sa.and_(table.c.study_id == study_id, table.c.number == number)
            found = connection.execute(sa.select(table.c.verdict, table.c.flags).where(one)).one()
            if found.verdict != Verdict.COMPLETE.value:
                raise ValueError(f"trial {number} is not complete ({found.verdict}): it has no values")
            if flags is not None:
                row["flags"] = _flags(flags, Flag.SIMULATED.value in found.flags)
            _change(connection, study_id, number, row)

        self.database.write(work)

    def requeue_trial(self, study_id: int, number: int, why: str) -> TrialRow:
        """Back to ``queued`` with the next attempt number; verdict, figures and host of the attempt before go.

        Why it was proposed stays; ``why`` it is tried again is added to that.

        Its launches and their finished blocks stay as rows. For trials cut off by a crash and for those whose
        surroundings were at fault.
        """

        proposed = self.trial(study_id, number).why.split(AGAIN)[0]

        def work(connection: Connection) -> None:
            values: dict[str, Any] = dict.fromkeys(_OF_ONE_ATTEMPT)
            attempt = schema.trials.c.attempt + 1
            words = f"{proposed}{AGAIN}{why}" if proposed else why
            values |= {"state": TrialState.QUEUED.value, "flags": {}, "why": words, "attempt": attempt}
            _change(connection, study_id, number, values)

        self.database.write(work)
        return self.trial(study_id, number)

    def trials(self, study_id: int, *, state: TrialState | None = None) -> list[TrialRow]:
        """In order of their numbers."""
        query = trial_query().where(schema.trials.c.study_id == study_id).order_by(schema.trials.c.number)
        if state is not None:
            query = query.where(schema.trials.c.state == state.value)
        return self._trials(query)

    def trial(self, study_id: int, number: int) -> TrialRow:
        """By its number in the study; LookupError where there is none."""
        query = trial_query().where(schema.trials.c.study_id == study_id, schema.trials.c.number == number)
        found = self._trials(query)
        if not found:
            raise LookupError(f"no trial {number}")
        return found[0]

    def _trials(self, query: sa.Select[Any]) -> list[TrialRow]:
        with self.database.read() as connection:
            return [codec.trial_in(row) for row in connection.execute(query)]


def trial_query() -> sa.Select[Any]:
    """Trials with their arm's configuration, as ``codec.trial_in`` reads them."""
    return sa.select(schema.trials, schema.arms.c.config).join(schema.arms, schema.arms.c.id == schema.trials.c.arm_id)


def _change(connection: Connection, study_id: int, number: int, values: Mapping[str, Any]) -> None:
    table = schema.trials
    change = table.update().where(table.c.study_id == study_id, table.c.number == number).values(**values)
    if connection.execute(change).rowcount != 1:
        raise LookupError(f"no trial {number}")


def _flags(flags: Mapping[str, str], simulated: bool) -> dict[str, str]:
    out = {Flag(flag).value: codec.clean(evidence) for flag, evidence in flags.items()}
    if simulated:
        out[Flag.SIMULATED.value] = "measured on the simulated engine"
    return out


def _figures(
    values: Mapping[str, float], stderr: Mapping[str, float], constraints: Mapping[str, float]
) -> dict[str, Any]:
    for name, figures in (("value", values), ("standard error", stderr), ("constraint", constraints)):
        for key, figure in figures.items():
            if not math.isfinite(figure):
                raise ValueError(f"{name} of {key} is {figure}: leave out what is not known")
    return {
        "objective_values": dict(values),
        "objective_stderr": dict(stderr),
        "constraint_values": dict(constraints),
    }
