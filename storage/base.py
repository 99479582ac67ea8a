"""What the parts of the store share: the database and the plain reading and writing of one row."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from storage.engine import Database


def now() -> float:
    return time.time()


def insert(connection: Connection, table: sa.Table, values: Mapping[str, Any]) -> int:
    """Insert one row; its id."""
    result = connection.execute(table.insert().values(**values))
    key = result.inserted_primary_key
    assert key is not None
    return int(key[0])


def insert_many(connection: Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        connection.execute(table.insert(), rows)


def update(connection: Connection, table: sa.Table, row_id: int, values: Mapping[str, Any]) -> None:
    """Change one row; LookupError where it is not there (a mistake of the caller, not of the user)."""
    if connection.execute(table.update().where(table.c.id == row_id).values(**values)).rowcount != 1:
        raise LookupError(f"no row {row_id} in {table.name}")


class Part:
    """Base of the store's parts. Every public method that writes is one durable transaction."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def _insert(self, table: sa.Table, values: Mapping[str, Any]) -> int:
        return self.database.write(lambda connection: insert(connection, table, values))

    def _update(self, table: sa.Table, row_id: int, values: Mapping[str, Any]) -> None:
        self.database.write(lambda connection: update(connection, table, row_id, values))
