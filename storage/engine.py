"""The connection to the database: URL, WAL, busy timeout, transactions, and errors in words.

The only place that knows SQLite from other databases. Everything else is SQLAlchemy Core and runs on any URL.

SQLite: WAL, ``synchronous=FULL`` (a committed block survives a power cut, not only a killed process), foreign keys on,
``BEGIN IMMEDIATE`` for every writing transaction (a deferred one that upgrades from read to write fails at once on a
busy database, whatever the timeout).
"""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.engine import URL, Connection, Engine, make_url

from sweep.errors import StoreError

T = TypeVar("T")

BUSY_TIMEOUT_S = 10.0  # SQLite's own wait for a lock, before each of our retries
BUSY_RETRIES = 2

_WRITE = "sweep_write"


class Database:
    """One database: reading and writing transactions on it. Thread-safe; one connection per thread in use."""

    def __init__(self, url: str, *, create: bool = True, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        """``create=False`` refuses a SQLite file that does not exist. Raises StoreError on a URL that is none."""
        self.url = _parse(url)
        self.busy_timeout_s = busy_timeout_s
        path = self.path
        if path is not None:
            _check_place(path, create=create)
        try:
            self._engine: Engine = sa.create_engine(self.url, json_serializer=to_json)
        except (exc.ArgumentError, exc.NoSuchModuleError, ImportError) as error:
            raise StoreError(
                f"database URL {self.shown!r} cannot be used: {error}. "
                "Use sqlite:///FILE, or install the driver that the URL names."
            ) from error
        if self.sqlite:
            event.listen(self._engine, "connect", self._on_connect)
            event.listen(self._engine, "begin", _on_begin)
        self._writer = self._engine.execution_options(**{_WRITE: True})

    @property
    def sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    @property
    def path(self) -> Path | None:
        """The SQLite file; None for a memory database or another backend."""
        name = self.url.database
        return Path(name) if self.sqlite and name and name != ":memory:" and not name.startswith("file:") else None

    @property
    def shown(self) -> str:
        """The URL as it may be printed: without its password."""
        return self.url.render_as_string(hide_password=True)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One reading transaction: everything read in it is of one moment."""
        try:
            with self._engine.connect() as connection, connection.begin():
                yield connection
        except exc.DBAPIError as error:
            raise self.explain(error, "reading") from error

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in one durable transaction and return its result; repeated while the database is busy, so
        ``work`` must have no effect outside its connection. Raises StoreError."""
        for attempt in range(BUSY_RETRIES + 1):
            try:
                with self._writer.connect() as connection, connection.begin():
                    return work(connection)
            except exc.DBAPIError as error:
                if not _busy(error) or attempt == BUSY_RETRIES:
                    raise self.explain(error, "writing") from error
                time.sleep(0.05 * 2**attempt)  # another process holds the write lock, and tells nobody when it is free
        raise AssertionError("unreachable: the last attempt returns or raises")

    def backup(self, target: Path) -> None:
        """Copy a SQLite database, safe while it is written to. Raises StoreError where the target exists or the
        backend has a tool of its own for this."""
        if not self.sqlite:
            raise StoreError(f"{self.shown}: back it up with the database's own tool (for PostgreSQL: pg_dump)")
        if target.exists():
            raise StoreError(f"backup target {target} exists already; name a new file")
        try:
            with self._engine.connect() as connection:
                source = connection.connection.driver_connection
                assert isinstance(source, sqlite3.Connection)
                copy = sqlite3.connect(target)
                try:
                    source.backup(copy)
                finally:
                    copy.close()
        except sqlite3.Error as error:
            target.unlink(missing_ok=True)
            raise StoreError(
                f"backup to {target} failed: {error}. Check that the place exists and has room."
            ) from error

    def integrity(self) -> list[str]:
        """Complaints of the backend about its own file; empty when there are none or the backend has no such check."""
        if not self.sqlite:
            return []
        with self.read() as connection:
            found = [str(row[0]) for row in connection.exec_driver_sql("PRAGMA integrity_check(20)")]
            broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
        complaints = [] if found == ["ok"] else found
        return complaints + [f"table {row[0]}: row {row[1]} points to a missing row of {row[2]}" for row in broken[:20]]

    def compact(self) -> None:
        """Give the room of deleted rows back to the disk. Raises StoreError (locked, disk full)."""
        if not self.sqlite:
            return  # other backends do it by themselves
        try:
            with self._engine.connect() as connection:
                source = connection.connection.driver_connection
                assert isinstance(source, sqlite3.Connection)
                source.execute("VACUUM")
                source.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            raise StoreError(
                f"rows were deleted, but their room was not given back: {error}. It will be used again; "
                "`sqlite3 FILE VACUUM` gives it back when nothing else uses the file."
            ) from error

    def close(self) -> None:
        self._engine.dispose()

    def explain(self, error: exc.DBAPIError, doing: str) -> StoreError:
        """The StoreError for a driver's error: what, where and what to do."""
        name = getattr(error.orig, "sqlite_errorname", "")
        where = self.path if self.path is not None else self.shown
        for prefix, text in _SQLITE_WORDS:
            if name.startswith(prefix):
                return StoreError(text.format(where=where, seconds=self.busy_timeout_s * (BUSY_RETRIES + 1)))
        detail = str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else type(error.orig).__name__
        return StoreError(f"database {where}: {detail} (while {doing}). Check that it can be reached and used.")

    def _on_connect(self, connection: sqlite3.Connection, _record: Any) -> None:
        # The driver's own transaction handling commits behind SQLAlchemy's back; BEGIN is ours (see _on_begin).
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {int(self.busy_timeout_s * 1000)}")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.execute("PRAGMA synchronous = FULL")
        if cursor.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            cursor.execute("PRAGMA journal_mode = WAL")
        cursor.close()


# Prefix of sqlite3's error name -> words. Order matters only where one name is a prefix of another.
_SQLITE_WORDS = (
    (
        "SQLITE_BUSY",
        "database {where} is locked: another process has been writing to it for more than {seconds:.0f} s. "
        "End that process (`fuser {where}` names it) or use another --db.",
    ),
    (
        "SQLITE_READONLY",
        "database {where} is read-only. Make the file and its folder writable (SQLite writes -wal and -shm beside it), "
        "or copy it elsewhere and use --db.",
    ),
    (
        "SQLITE_NOTADB",
        "{where} is not a database (its first bytes are not SQLite's). Name another file with --db.",
    ),
    (
        "SQLITE_CORRUPT",
        "database {where} is damaged. Copy it, then try `sqlite3 FILE .recover`, or go back to a backup.",
    ),
    (
        "SQLITE_FULL",
        "the disk that holds {where} is full: the last block was not stored. Free some space, then `sweep resume`.",
    ),
    (
        "SQLITE_IOERR",
        "the disk that holds {where} gave an input/output error. Check it and its free space, then `sweep resume`.",
    ),
    (
        "SQLITE_CANTOPEN",
        "database {where} cannot be opened. Check that its folder exists and that you may read and write there.",
    ),
)


def to_json(value: Any) -> str:
    """JSON text for a column. Not-a-number and infinities, which JSON has not, become null."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _busy(error: exc.DBAPIError) -> bool:
    """True where the same transaction may succeed a moment later."""
    if getattr(error.orig, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
        return True
    # SQLSTATE of PostgreSQL: serialization_failure, deadlock_detected, lock_not_available.
    return getattr(error.orig, "sqlstate", None) in {"40001", "40P01", "55P03"}


def _on_begin(connection: Connection) -> None:
    write = connection.get_execution_options().get(_WRITE, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _parse(url: str) -> URL:
    try:
        return make_url(url)
    except exc.ArgumentError as error:
        raise StoreError(f"{url!r} is not a database URL. Use for example sqlite:///sweep.db (a file here).") from error


def _check_place(path: Path, *, create: bool) -> None:
    """Words for what SQLite would only call "unable to open database file"."""
    if path.is_dir():
        raise StoreError(f"database {path} is a folder; name a file in it, for example sqlite:///{path}/sweep.db")
    if not path.parent.is_dir():
        raise StoreError(f"database {path}: the folder {path.parent} does not exist. Make it or use another --db.")
    if not create and not path.exists():
        raise StoreError(f"no database at {path}. `sweep start` makes one; --db or SWEEP_DB names another.")
