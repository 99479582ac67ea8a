"""Studies, their hosts, arms, events and analysis."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from storage import codec, schema
from storage.base import Part, insert, insert_many, now, update
from storage.records import EventRow, StudyRow, StudyState
from sweep.errors import StudyExistsError, StudyNotFoundError
from sweep.model import ArmGain, Constraint, Objective


class Studies(Part):
    """See ``storage.store.Store``."""

    def create_study(
        self,
        name: str,
        *,
        engine: str,
        spec: Mapping[str, Any],
        yaml: str,
        space_hash: str,
        seed: int,
        tool_version: str,
        objectives: Sequence[Objective],
        constraints: Sequence[Constraint] = (),
        simulated: bool = False,
        profile: str | None = None,
        controller: Mapping[str, Any] | None = None,
        notes: Sequence[Any] = (),
    ) -> StudyRow:
        """A new study in state ``running``. ``spec`` and ``yaml`` must carry ``${VAR}`` references, never secrets.

        Raises StudyExistsError, which names ``resume``.
        """

        def work(connection: Connection) -> int:
            if connection.scalar(sa.select(schema.studies.c.id).where(schema.studies.c.name == name)) is not None:
                raise StudyExistsError(
                    f"study {name!r} exists in {self.database.shown}. `sweep resume {name}` carries it on; "
                    "--name gives the new one another name."
                )
            values = {
                "name": name,
                "created_at": now(),
                "state": StudyState.RUNNING.value,
                "engine": engine,
                "simulated": simulated,
                "profile": profile,
                "spec": dict(spec),
                "yaml": yaml,
                "space_hash": space_hash,
                "seed": seed,
                "tool_version": tool_version,
                "objectives": [asdict(o) for o in objectives],
                "constraints": [asdict(c) for c in constraints],
                "controller": None if controller is None else dict(controller),
                "stop_requested": False,
                "notes": list(notes),
            }
            return insert(connection, schema.studies, values)

        return self.study_by_id(self.database.write(work))

    def studies(self) -> list[StudyRow]:
        """All studies, the newest first."""
        order = (schema.studies.c.created_at.desc(), schema.studies.c.id.desc())
        with self.database.read() as connection:
            return [codec.study_in(row) for row in connection.execute(sa.select(schema.studies).order_by(*order))]

    def study(self, name: str | None = None) -> StudyRow:
        """By name, the newest where None. Raises StudyNotFoundError with the near names."""
        query = sa.select(schema.studies)
        if name is None:
            query = query.order_by(schema.studies.c.created_at.desc(), schema.studies.c.id.desc()).limit(1)
        else:
            query = query.where(schema.studies.c.name == name)
        with self.database.read() as connection:
            row = connection.execute(query).first()
            if row is not None:
                return codec.study_in(row)
            names = list(connection.scalars(sa.select(schema.studies.c.name).order_by(schema.studies.c.name)))
        if not names:
            raise StudyNotFoundError(f"no study in {self.database.shown}. `sweep start SPACE.yaml` makes one.")
        near = difflib.get_close_matches(name or "", names, n=3, cutoff=0.5)
        hint = f"Near: {', '.join(near)}." if near else f"There are: {', '.join(names[:10])}."
        raise StudyNotFoundError(f"no study {name!r} in {self.database.shown}. {hint}")

    def study_by_id(self, study_id: int) -> StudyRow:
        with self.database.read() as connection:
            row = connection.execute(sa.select(schema.studies).where(schema.studies.c.id == study_id)).first()
        if row is None:
            raise StudyNotFoundError(f"study {study_id} was deleted from {self.database.shown}")
        return codec.study_in(row)

    def set_state(self, study_id: int, state: StudyState) -> None:
        """``finished`` stamps the time; ``running`` takes stamp and stop request away."""
        values: dict[str, Any] = {"state": state.value}
        if state is StudyState.RUNNING:
            values |= {"finished_at": None, "stop_requested": False}
        else:
            values |= {"finished_at": now() if state is StudyState.FINISHED else None}
        self._update(schema.studies, study_id, values)

    def request_stop(self, study_id: int) -> None:
        """Ask the controller, from any process, to stop."""
        self._update(schema.studies, study_id, {"stop_requested": True})

    def stop_requested(self, study_id: int) -> bool:
        with self.database.read() as connection:
            query = sa.select(schema.studies.c.stop_requested).where(schema.studies.c.id == study_id)
            return bool(connection.scalar(query))

    def controller_heartbeat(self, study_id: int) -> None:
        """The controller is alive."""
        self._update(schema.studies, study_id, {"heartbeat_at": now()})

    def set_controller(self, study_id: int, controller: Mapping[str, Any] | None) -> None:
        """Who runs the study (machine, boot, pid, start time); None when nobody does."""
        self._update(schema.studies, study_id, {"controller": None if controller is None else dict(controller)})

    def take_controller(self, study_id: int, controller: Mapping[str, Any], *, seen: Mapping[str, Any] | None) -> bool:
        """Become the controller where it is still the one that was ``seen``; False where another was quicker."""

        def work(connection: Connection) -> bool:
            query = sa.select(schema.studies.c.controller).where(schema.studies.c.id == study_id).with_for_update()
            if connection.scalar(query) != (None if seen is None else dict(seen)):
                return False
            update(connection, schema.studies, study_id, {"controller": dict(controller), "heartbeat_at": now()})
            return True

        return self.database.write(work)

    def extend_study(
        self, study_id: int, *, spec: Mapping[str, Any], yaml: str, space_hash: str, notes: Sequence[Any]
    ) -> None:
        """The YAML was extended between start and resume; ``notes`` (what changed) are added to those there."""

        def work(connection: Connection) -> None:
            query = sa.select(schema.studies.c.notes).where(schema.studies.c.id == study_id)
            before = connection.scalar(query) or []
            values = {"spec": dict(spec), "yaml": yaml, "space_hash": space_hash, "notes": [*before, *notes]}
            update(connection, schema.studies, study_id, values)

        self.database.write(work)

    def delete_study(self, study_id: int) -> None:
        """The study and everything measured in it."""
        table = schema.studies
        self.database.write(lambda connection: connection.execute(table.delete().where(table.c.id == study_id)))

    # ------------------------------------------------------------------ events and analysis

    def add_event(self, study_id: int, host: str | None, kind: str, detail: Mapping[str, Any]) -> int:
        values = {"study_id": study_id, "at": now(), "host": host, "kind": kind, "detail": dict(detail)}
        return self._insert(schema.events, values)

    def events(self, study_id: int, *, kind: str | None = None) -> list[EventRow]:
        """In the order in which they were written."""
        query = sa.select(schema.events).where(schema.events.c.study_id == study_id).order_by(schema.events.c.id)
        if kind is not None:
            query = query.where(schema.events.c.kind == kind)
        with self.database.read() as connection:
            return [codec.event_in(row) for row in connection.execute(query)]

    def replace_analysis(self, study_id: int, gains: Iterable[ArmGain], result: Mapping[str, Any]) -> None:
        """Gains and the study-wide result in one transaction; what was there before goes.

        Of ``result`` these keys are read by the queries, each optional:

        ``baseline``   {by_objective: {objective key: figure in the metric's unit}}, the reference level
        ``ranking``    {objective key: [{trial, rank, ...}]}, best first, equal ranks are ties
        ``ties``       [{trial, metric, concurrency, category, reference, and the keys of a Tie}]
        ``sentences``  what the analysis says in words
        """

        ranking = result.get("ranking", {})
        summary = {
            "baseline": result.get("baseline", {}).get("by_objective", {}),
            "ranking": {key: [(line["trial"], line["rank"]) for line in lines] for key, lines in ranking.items()},
            "ties": list(result.get("ties", ())),
            "sentences": list(result.get("sentences", ())),
        }

        def work(connection: Connection) -> None:
            trials = schema.trials
            numbers = sa.select(trials.c.number, trials.c.id).where(trials.c.study_id == study_id)
            ids: dict[int, int] = {row.number: row.id for row in connection.execute(numbers)}
            connection.execute(schema.gains.delete().where(schema.gains.c.study_id == study_id))
            rows = [
                {"study_id": study_id, "trial_id": None if g.trial is None else ids[g.trial], **codec.gain_out(g)}
                for g in gains
            ]
            insert_many(connection, schema.gains, rows)
            connection.execute(schema.analyses.delete().where(schema.analyses.c.study_id == study_id))
            values = {"study_id": study_id, "made_at": now(), "summary": summary, "result": dict(result)}
            connection.execute(schema.analyses.insert().values(**values))

        self.database.write(work)

    def analysis(self, study_id: int) -> dict[str, Any] | None:
        """What :meth:`replace_analysis` stored last; None before the first."""
        with self.database.read() as connection:
            query = sa.select(schema.analyses.c.result).where(schema.analyses.c.study_id == study_id)
            found: dict[str, Any] | None = connection.scalar(query)
            return found
