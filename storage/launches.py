"""Launches, their blocks and requests. A launch is on disk before its server starts, a block before the next begins."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from storage import codec, schema
from storage.base import insert, insert_many, now
from storage.records import LaunchRow, LaunchState, ReadyServer, StartedServer, TrialState
from storage.studies import Studies
from storage.trials import Trials
from sweep.model import (
    ArmConfig,
    BlockResult,
    ClientHealth,
    Diagnosis,
    Effective,
    MeasuredLaunch,
    RequestRecord,
    Role,
    Stage,
    StopReport,
    Verdict,
)

if TYPE_CHECKING:
    from sweep.metrics import Slo


class Launches(Studies, Trials):
    """See ``storage.store.Store``."""

    def next_sequence(self, study_id: int, host: str) -> int:
        """The number of the host's next launch in the study, from 0."""
        table = schema.launches
        query = sa.select(sa.func.max(table.c.sequence)).where(table.c.study_id == study_id, table.c.host == host)
        with self.database.read() as connection:
            last = connection.scalar(query)
        return 0 if last is None else int(last) + 1

    def last_baseline(self, study_id: int, host: str) -> Effective | None:
        """What the newest ready baseline of a host ran; None before there is one."""
        launches = schema.launches.c
        query = (
            sa.select(launches.effective)
            .where(launches.study_id == study_id, launches.host == host, launches.role == Role.BASELINE.value)
            .where(launches.effective.is_not(None))
            .order_by(launches.id.desc())
            .limit(1)
        )
        with self.database.read() as connection:
            return codec.effective_in(connection.scalar(query))

    def last_client(self, study_id: int, host: str, concurrency: int) -> tuple[ClientHealth, str | None] | None:
        """The client of the host's newest block at this concurrency, and why that block is invalid; None before any."""
        blocks, launches = schema.blocks, schema.launches
        query = (
            sa.select(blocks.c.client, blocks.c.invalid)
            .join(launches, launches.c.id == blocks.c.launch_id)
            .where(launches.c.study_id == study_id, launches.c.host == host, blocks.c.concurrency == concurrency)
            .order_by(blocks.c.id.desc())
            .limit(1)
        )
        with self.database.read() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else (codec.client_in(row.client), row.invalid)

    def begin_launch(
        self,
        study_id: int,
        *,
        arm: ArmConfig,
        role: Role,
        host: str,
        stage: Stage,
        sequence: int,
        trial: int | None = None,
        pair: int | None = None,
    ) -> int:
        """The launch's id. Call before anything is started. ``trial`` is the trial's number; None for a reference."""
        arm_id = self.ensure_arm(study_id, arm, role).id
        trial_id = None if trial is None else self.trial(study_id, trial).id
        values: dict[str, Any] = {
            "study_id": study_id,
            "trial_id": trial_id,
            "arm_id": arm_id,
            "host": host,
            "stage": stage.value,
            "role": role.value,
            "sequence": sequence,
            "pair": pair,
            "state": LaunchState.BEGUN.value,
            "begun_at": now(),
            "phases": {},
        }
        return self._insert(schema.launches, values)

    def launch_started(self, launch_id: int, server: StartedServer, *, env_keys: Iterable[str] = ()) -> None:
        """The process was started, whatever became of it. Only the names of environment variables are kept."""
        values = {
            "state": LaunchState.STARTED.value,
            "started_at": server.started_at,
            "argv": list(server.argv),
            "env_keys": sorted(env_keys),
            "pid": server.pid,
            "port": server.port,
            "marker": server.marker,
            "run_dir": server.run_dir,
            "log_path": server.log_path,
            "phases": dict(server.phases),
        }
        self._update(schema.launches, launch_id, values)

    def launch_ready(self, launch_id: int, server: ReadyServer) -> None:
        """The server answers."""
        values = {
            "state": LaunchState.READY.value,
            "ready_at": None if server.ready_s is None else server.started_at + server.ready_s,
            "phases": dict(server.phases),
            "effective": codec.effective_out(server.effective),
            "server_info": dict(server.server_info),
        }
        self._update(schema.launches, launch_id, values)

    def launch_probed(
        self, launch_id: int, accept_length: float | None, verify_steps: int, histogram: Sequence[int]
    ) -> None:
        """What the quick check right after ready found."""
        probe = {"accept_length": accept_length, "verify_steps": verify_steps, "histogram": list(histogram)}
        self._update(schema.launches, launch_id, {"probe": probe})

    def launch_phase(self, launch_id: int, phase: str) -> None:
        """Where a running launch is now, for `status`."""
        self._update(schema.launches, launch_id, {"phase": phase})

    def finish_launch(
        self,
        launch_id: int,
        diagnosis: Diagnosis | None = None,
        stop: StopReport | None = None,
        *,
        log_tail: Sequence[str] = (),
    ) -> None:
        """The server is gone. ``diagnosis`` None is ``complete``: only then do its blocks enter the analysis.

        ``log_tail`` defaults to the diagnosis' own.
        """
        values: dict[str, Any] = {"state": LaunchState.ENDED.value, "ended_at": now()}
        if diagnosis is None:
            values |= {"verdict": Verdict.COMPLETE.value, "phase": None}
        else:
            values |= codec.diagnosis_out(diagnosis)
            log_tail = log_tail or diagnosis.log_tail
            if diagnosis.log_path is not None:
                values["log_path"] = diagnosis.log_path
        if stop is not None:
            values["stop_report"] = asdict(stop)
        values["log_tail"] = [codec.clean(line) for line in log_tail]
        self._update(schema.launches, launch_id, values)

    def add_block(self, launch_id: int, block: BlockResult, *, slo: Slo | None = None) -> int:
        """One finished block with its requests and derived figures, on disk when this returns; the block's id.

        ``slo`` is needed for goodput.
        """
        requests = [codec.request_out(request) for request in block.requests]

        def work(connection: Connection) -> int:
            arm = _running_arm(connection, launch_id)
            row = codec.block_out(block, slo=slo, num_draft_tokens=arm.num_draft_tokens)
            block_id = insert(connection, schema.blocks, {"launch_id": launch_id, **row})
            insert_many(connection, schema.requests, [{"block_id": block_id, **request} for request in requests])
            return block_id

        return self.database.write(work)

    def launches(self, study_id: int, *, trial_id: int | None = None, open_only: bool = False) -> list[LaunchRow]:
        """In the order in which they began. ``open_only``: those not ended, which a crash may have left."""
        table = schema.launches
        query = (
            sa.select(
                table, schema.arms.c.key.label("arm_key"), schema.arms.c.config, schema.trials.c.number.label("trial")
            )
            .join(schema.arms, schema.arms.c.id == table.c.arm_id)
            .outerjoin(schema.trials, schema.trials.c.id == table.c.trial_id)
            .where(table.c.study_id == study_id)
            .order_by(table.c.id)
        )
        if trial_id is not None:
            query = query.where(table.c.trial_id == trial_id)
        if open_only:
            query = query.where(table.c.state != LaunchState.ENDED.value)
        with self.database.read() as connection:
            return [codec.launch_in(row) for row in connection.execute(query)]

    def measured_launches(self, study_id: int, *, requests: bool = True, running: bool = False) -> list[MeasuredLaunch]:
        """Launches that may be analysed, ordered by host and sequence, with their finished blocks.

        Left out: launches that ended otherwise than ``complete`` and those of trials that failed. ``running`` adds
        launches still open. ``requests=False`` leaves the request rows out (metrics above are then not derivable).
        """
        table, trials = schema.launches, schema.trials
        fine = table.c.verdict == Verdict.COMPLETE.value
        if running:
            fine = sa.or_(fine, table.c.state != LaunchState.ENDED.value)
        not_failed = sa.or_(
            trials.c.id.is_(None),
            trials.c.state != TrialState.FINISHED.value,
            trials.c.verdict == Verdict.COMPLETE.value,
        )
        query = (
            sa.select(
                table.c.id,
                schema.arms.c.key.label("arm_key"),
                table.c.role,
                trials.c.number,
                table.c.host,
                table.c.stage,
                table.c.sequence,
                table.c.begun_at,
                table.c.started_at,
                table.c.pair,
            )
            .join(schema.arms, schema.arms.c.id == table.c.arm_id)
            .outerjoin(trials, trials.c.id == table.c.trial_id)
            .where(table.c.study_id == study_id, fine, not_failed)
            .order_by(table.c.host, table.c.sequence)
        )
        with self.database.read() as connection:
            found = connection.execute(query).all()
            blocks = _blocks(connection, study_id, requests)
        return [
            MeasuredLaunch(
                launch_id=row.id,
                arm_key=row.arm_key,
                role=Role(row.role),
                trial=row.number,
                host=row.host,
                stage=Stage(row.stage),
                sequence=row.sequence,
                started_at=row.started_at if row.started_at is not None else row.begun_at,
                blocks=tuple(blocks[row.id]),
                pair=row.pair,
            )
            for row in found
            if blocks[row.id]
        ]


def _running_arm(connection: Connection, launch_id: int) -> ArmConfig:
    """The launch's arm as it really runs; as asked for where that was not read back."""
    query = (
        sa.select(schema.launches.c.effective, schema.arms.c.config)
        .join(schema.arms, schema.arms.c.id == schema.launches.c.arm_id)
        .where(schema.launches.c.id == launch_id)
    )
    row = connection.execute(query).one()
    effective = codec.effective_in(row.effective)
    return ArmConfig.from_dict(row.config) if effective is None else effective.config


def _blocks(connection: Connection, study_id: int, with_requests: bool) -> defaultdict[int, list[BlockResult]]:
    """Launch id -> its blocks in the order in which they were measured."""
    of_study = schema.launches.c.study_id == study_id
    records: defaultdict[int, list[RequestRecord]] = defaultdict(list)
    if with_requests:
        query = (
            sa.select(schema.requests)
            .join(schema.blocks, schema.blocks.c.id == schema.requests.c.block_id)
            .join(schema.launches, schema.launches.c.id == schema.blocks.c.launch_id)
            .where(of_study)
            .order_by(schema.requests.c.block_id, schema.requests.c.idx)
        )
        for row in connection.execute(query):
            records[row.block_id].append(codec.request_in(row))
    query = (
        sa.select(schema.blocks)
        .join(schema.launches, schema.launches.c.id == schema.blocks.c.launch_id)
        .where(of_study)
        .order_by(schema.blocks.c.id)
    )
    out: defaultdict[int, list[BlockResult]] = defaultdict(list)
    for row in connection.execute(query):
        out[row.launch_id].append(codec.block_in(row, records[row.id]))
    return out
