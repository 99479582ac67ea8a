"""Schema versions: forward only, each step one function, the version in a table of our own (so it works on any URL).

Version 1 is the first. A newer database than this program is refused: an older program must not write to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from storage import schema
from storage.engine import Database
from sweep.errors import StoreError

# version reached -> the step that leads there from the one before. Steps name tables and columns in SQL of their own:
# ``storage.schema`` is the newest form and would change what an old step does.
STEPS: Mapping[int, Callable[[Connection], None]] = {}


def prepare(database: Database) -> None:
    """Make the tables in an empty database, bring an older one forward. StoreError for a newer or foreign one."""
    with database.read() as connection:
        found = _version(connection, database.shown)
    if found == schema.VERSION:
        return
    database.write(lambda connection: _bring_forward(connection, database.shown))


def _bring_forward(connection: Connection, shown: str) -> None:
    # Looked up again: another process may have done it between our look and this transaction.
    found = _version(connection, shown)
    if found is None:
        schema.metadata.create_all(connection)
        connection.execute(schema.meta.insert().values(key="schema_version", value=str(schema.VERSION)))
        return
    for version in range(found + 1, schema.VERSION + 1):
        STEPS[version](connection)
    connection.execute(
        schema.meta.update().where(schema.meta.c.key == "schema_version").values(value=str(schema.VERSION))
    )


def _version(connection: Connection, shown: str) -> int | None:
    """The schema version found; None for an empty database."""
    tables = sa.inspect(connection).get_table_names()
    if schema.meta.name not in tables:
        if tables:
            raise StoreError(
                f"database {shown} belongs to something else (it has tables {', '.join(sorted(tables)[:4])}). "
                "Name a file or database of its own with --db."
            )
        return None
    value = connection.scalar(sa.select(schema.meta.c.value).where(schema.meta.c.key == "schema_version"))
    version = int(value) if value is not None else 0
    if version > schema.VERSION:
        raise StoreError(
            f"database {shown} has schema version {version}, this program knows up to {schema.VERSION}. "
            "Use the newer sweep that wrote it, or another --db."
        )
    return version
