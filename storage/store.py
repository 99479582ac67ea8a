"""The store: everything that is known about studies, on disk the moment a method returns.

One process writes measurements, the controller of a study; other processes may read at any time and ask for a stop.
Every writing method is one transaction. All methods raise ``StoreError`` (locked, read-only, disk full, ...) with
what, where and what to do; rows come back as the frozen values of ``storage.records`` and ``sweep.model``.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from storage import migrations
from storage.engine import BUSY_TIMEOUT_S, Database
from storage.launches import Launches


class Store(Launches):
    """Open with :meth:`open`, close with :meth:`close` or as a context manager."""

    @classmethod
    def open(cls, url: str, *, create: bool = True, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Self:
        """``create=False`` (queries) refuses a SQLite file that does not exist. Older schemas are brought forward.

        Raises StoreError for a newer schema, a file that is no database or somebody else's, a read-only or locked one.
        """
        database = Database(url, create=create, busy_timeout_s=busy_timeout_s)
        try:
            migrations.prepare(database)
        except BaseException:
            database.close()
            raise
        return cls(database)

    def backup(self, path: Path) -> None:
        """A consistent copy of a SQLite database in a new file, also while a study runs."""
        self.database.backup(path)

    def check(self) -> list[str]:
        """What is wrong with the database; empty when nothing is."""
        return self.database.integrity()

    def close(self) -> None:
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
