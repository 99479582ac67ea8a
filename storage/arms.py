"""The arms of a study and the hosts they run on."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from storage import codec, schema
from storage.base import Part, insert, update
from storage.records import ArmRow, HostRow, HostState
from sweep.model import ArmConfig, HostFacts, Role


class Arms(Part):
    """See ``storage.store.Store``."""

    def add_host(self, study_id: int, name: str, kind: str, facts: HostFacts | None = None) -> HostRow:
        """Insert or renew a host of the study; an existing one keeps its id and becomes idle."""

        def work(connection: Connection) -> int:
            table = schema.hosts
            query = sa.select(table.c.id).where(table.c.study_id == study_id, table.c.name == name)
            found = connection.scalar(query)
            values: dict[str, Any] = {"kind": kind, "state": HostState.IDLE.value, "note": None}
            if facts is not None:
                values["facts"] = asdict(facts)
            if found is None:
                return insert(connection, table, {"study_id": study_id, "name": name, **values})
            update(connection, table, found, values)
            return int(found)

        host_id = self.database.write(work)
        return next(host for host in self.hosts(study_id) if host.id == host_id)

    def set_host_state(self, study_id: int, name: str, state: HostState, note: str | None = None) -> None:
        table = schema.hosts
        change = table.update().where(table.c.study_id == study_id, table.c.name == name)
        self.database.write(lambda connection: connection.execute(change.values(state=state.value, note=note)))

    def hosts(self, study_id: int) -> list[HostRow]:
        query = sa.select(schema.hosts).where(schema.hosts.c.study_id == study_id).order_by(schema.hosts.c.id)
        with self.database.read() as connection:
            return [codec.host_in(row) for row in connection.execute(query)]

    # ------------------------------------------------------------------ arms

    def ensure_arm(self, study_id: int, config: ArmConfig, role: Role) -> ArmRow:
        """The arm's row, made where it is new. One configuration may stand in several roles."""

        def work(connection: Connection) -> int:
            table = schema.arms
            found = connection.scalar(
                sa.select(table.c.id).where(
                    table.c.study_id == study_id, table.c.key == config.key, table.c.role == role.value
                )
            )
            if found is not None:
                return int(found)
            values = {"study_id": study_id, "key": config.key, "role": role.value, "config": config.as_dict()}
            return insert(connection, table, values)

        return ArmRow(self.database.write(work), config.key, role, config)

    def arms(self, study_id: int) -> list[ArmRow]:
        query = sa.select(schema.arms).where(schema.arms.c.study_id == study_id).order_by(schema.arms.c.id)
        with self.database.read() as connection:
            return [codec.arm_in(row) for row in connection.execute(query)]

    def arm_configs(self, study_id: int) -> dict[str, ArmConfig]:
        """Arm key -> configuration, as the analysis takes it."""
        return {arm.key: arm.config for arm in self.arms(study_id)}
