"""How large the database is, and letting go of request rows of studies that are done."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from storage import schema
from storage.records import StudyRow, StudyState
from storage.store import Store
from sweep.errors import UsageError

TRIMMED = "trimmed_at"  # key of the note that a study carries afterwards
DAY_S = 86400.0


def size_bytes(store: Store) -> int | None:
    """Of the SQLite file with its write-ahead log; None for another backend."""
    path = store.database.path
    if path is None:
        return None
    files = (path, path.with_name(path.name + "-wal"))
    return sum(file.stat().st_size for file in files if file.exists())


def sizes(store: Store) -> list[dict[str, Any]]:
    """{study, state, trimmed, launches, blocks, requests} of every study, the newest first."""
    launches, blocks, requests = schema.launches.c, schema.blocks.c, schema.requests.c
    query = (
        sa.select(
            launches.study_id,
            sa.func.count(sa.distinct(launches.id)).label("launches"),
            sa.func.count(sa.distinct(blocks.id)).label("blocks"),
            sa.func.count(requests.id).label("requests"),
        )
        .select_from(schema.launches)
        .outerjoin(schema.blocks, blocks.launch_id == launches.id)
        .outerjoin(schema.requests, requests.block_id == blocks.id)
        .group_by(launches.study_id)
    )
    with store.database.read() as connection:
        found = {row.study_id: row for row in connection.execute(query)}
    out = []
    for study in store.studies():
        row = found.get(study.id)
        counts = {name: int(getattr(row, name)) if row else 0 for name in ("launches", "blocks", "requests")}
        out.append({"study": study.name, "state": study.state.value, "trimmed": trimmed(study), **counts})
    return out


def trimmed(study: StudyRow) -> bool:
    """True where request rows were deleted: the study can be read but no longer analysed anew, so not resumed."""
    return any(isinstance(note, dict) and TRIMMED in note for note in study.notes)


def to_trim(store: Store, names: Sequence[str], older_than_days: float | None) -> list[StudyRow]:
    """The finished studies named, or all that finished so many days ago; those trimmed before are left out.

    Raises UsageError for a named study that is not finished, StudyNotFoundError for one that is not there.
    """
    if names:
        chosen = [store.study(name) for name in names]
        for study in chosen:
            if study.state is not StudyState.FINISHED:
                raise UsageError(
                    f"study {study.name!r} is {study.state.value}; only a finished study can be trimmed, because a "
                    "resumed one is analysed anew from its requests"
                )
    else:
        before = time.time() - (older_than_days or 0.0) * DAY_S
        chosen = [s for s in store.studies() if s.state is StudyState.FINISHED and (s.finished_at or 0.0) <= before]
    return [study for study in chosen if not trimmed(study)]


def trim(store: Store, studies: Sequence[StudyRow]) -> int:
    """Delete their request rows and give the room back; trials, launches, blocks with every figure, gains and the
    analysis stay. How many rows went."""
    launches = sa.select(schema.launches.c.id).where(schema.launches.c.study_id.in_([s.id for s in studies]))
    blocks = sa.select(schema.blocks.c.id).where(schema.blocks.c.launch_id.in_(launches))

    def work(connection: Connection) -> int:
        gone = connection.execute(schema.requests.delete().where(schema.requests.c.block_id.in_(blocks))).rowcount
        table = schema.studies
        for study in studies:
            notes = [*study.notes, {TRIMMED: time.time()}]
            connection.execute(table.update().where(table.c.id == study.id).values(notes=notes))
        return int(gone)

    gone = store.database.write(work)
    store.database.compact()
    return gone
