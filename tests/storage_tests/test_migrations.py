"""Older files are brought forward, each step in one transaction; the schema cannot change without a version."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy.engine import Connection

from storage import migrations, schema
from storage.engine import Database
from storage.schema import BLOCK_FIGURES
from storage.store import Store
from sweep.metrics import METRICS
from sweep.model import Verdict
from tests.storage_tests.samples import SPEED, create

DATA = Path(__file__).parents[1] / "data"


def _load(name: str, path: Path) -> str:
    connection = sqlite3.connect(path)
    connection.executescript((DATA / name).read_text(encoding="utf-8"))
    connection.close()
    return f"sqlite:///{path}"


def _shape(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Columns, keys and indexes of every table."""
    connection = sqlite3.connect(path)
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    shape = {}
    for table in tables:
        parts = [
            connection.execute(f"PRAGMA {what}({table})").fetchall() for what in ("table_info", "foreign_key_list")
        ]
        indexes = sorted(row[1:3] for row in connection.execute(f"PRAGMA index_list({table})"))
        shape[table] = [*parts[0], *parts[1], *indexes]
    connection.close()
    return shape


def test_file_of_version_1_keeps_its_content(tmp_path: Path) -> None:
    url = _load("storage-v1.sql", tmp_path / "v1.db")
    with Store.open(url, create=False) as store:
        study = store.study("kimi")
        assert study.objectives[0] == SPEED
        [first, second] = store.trials(study.id)
        assert (first.verdict, first.values) == (Verdict.COMPLETE, {SPEED.key: 82.3})
        assert (second.verdict, second.evidence) == (Verdict.LAUNCH_OOM, "torch.OutOfMemoryError: CUDA out of memory")
        [measured] = store.measured_launches(study.id)
        assert [r.output_tokens for r in measured.blocks[0].requests] == [100, 100, 100, 100]
        assert store.check() == []


def test_file_of_version_1_ends_in_the_shape_of_a_new_one(tmp_path: Path) -> None:
    """Fails when a table changes without a new version and a step that brings older files there."""
    Store.open(_load("storage-v1.sql", tmp_path / "v1.db")).close()
    Store.open(f"sqlite:///{tmp_path / 'new.db'}").close()
    assert _shape(tmp_path / "v1.db") == _shape(tmp_path / "new.db")


def test_every_metric_has_a_column() -> None:
    assert set(BLOCK_FIGURES) == set(METRICS)


def _add_colour(connection: Connection) -> None:
    connection.exec_driver_sql("ALTER TABLE studies ADD COLUMN colour TEXT")


def _break(connection: Connection) -> None:
    connection.exec_driver_sql("ALTER TABLE studies ADD COLUMN weight TEXT")
    raise RuntimeError("step 3 is broken")


def _colours(url: str) -> tuple[set[str], str | None]:
    database = Database(url)
    with database.read() as connection:
        columns = {row[1] for row in connection.exec_driver_sql("PRAGMA table_info(studies)")}
        version = connection.exec_driver_sql("SELECT value FROM specsweep_meta WHERE key = 'schema_version'").scalar()
    database.close()
    return columns, version


def test_steps_run_in_order_and_once(store: Store, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create(store)
    ran: list[int] = []

    def step(version: int) -> object:
        def run(connection: Connection) -> None:
            ran.append(version)
            if version == schema.VERSION:
                _add_colour(connection)

        return run

    monkeypatch.setattr(migrations, "STEPS", {schema.VERSION + n: step(schema.VERSION + n) for n in (1, 2)})
    monkeypatch.setattr(schema, "VERSION", schema.VERSION + 2)
    for _ in range(2):
        with Store.open(url) as again:
            assert again.studies()[0].name == "kimi"
    assert ran == [schema.VERSION - 1, schema.VERSION]
    columns, version = _colours(url)
    assert "colour" in columns
    assert version == str(schema.VERSION)


def test_a_broken_step_leaves_the_file_as_it_was(store: Store, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = _colours(url)
    monkeypatch.setattr(migrations, "STEPS", {schema.VERSION + 1: _add_colour, schema.VERSION + 2: _break})
    monkeypatch.setattr(schema, "VERSION", schema.VERSION + 2)
    with pytest.raises(RuntimeError, match="step 3"):
        Store.open(url)
    assert _colours(url) == before
