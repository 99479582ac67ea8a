"""Each way in which a database cannot be used has its own words: what, where, what to do."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import schema
from storage.store import Store
from sweep.errors import StoreError
from sweep.model import Role, Stage
from tests.storage_tests.samples import ARM, block, create

ROOT = os.geteuid() == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB of its own."""
    if not ROOT:
        pytest.skip("mounting a small tmpfs needs root")
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"this machine does not let root mount a tmpfs: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


class TestOpening:
    def test_no_database(self, tmp_path: Path) -> None:
        path = tmp_path / "none.db"
        with pytest.raises(StoreError, match=r"no database at .*none\.db\. `sweep start` makes one"):
            Store.open(f"sqlite:///{path}", create=False)
        assert not path.exists()

    def test_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match=r"the folder .*missing does not exist"):
            Store.open(f"sqlite:///{tmp_path}/missing/sweep.db")

    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match="is a folder; name a file in it"):
            Store.open(f"sqlite:///{tmp_path}")

    @pytest.mark.parametrize("content", [b"not a database, but text " * 50, b"\x7fELF" + bytes(4096)])
    def test_not_a_database(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "text.db"
        path.write_bytes(content)
        with pytest.raises(StoreError, match=r"text\.db is not a database"):
            Store.open(f"sqlite:///{path}")
        assert path.read_bytes() == content

    def test_somebody_elses_database(self, tmp_path: Path) -> None:
        path = tmp_path / "optuna.db"
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE studies (study_id INTEGER PRIMARY KEY)")
        other.close()
        with pytest.raises(StoreError, match=r"belongs to something else \(it has tables studies\)"):
            Store.open(f"sqlite:///{path}")

    def test_newer_schema(self, store: Store, url: str) -> None:
        newer = schema.VERSION + 1
        store.database.write(
            lambda connection: connection.exec_driver_sql("UPDATE specsweep_meta SET value = ?", (str(newer),))
        )
        with pytest.raises(StoreError, match=f"has schema version {newer}, this program knows up to {schema.VERSION}"):
            Store.open(url)

    def test_damaged(self, store: Store, url: str, tmp_path: Path) -> None:
        study = create(store)
        for _ in range(50):
            store.add_trial(study.id, ARM, origin="sampler", why="x" * 500)
        store.close()
        path = tmp_path / "sweep.db"
        whole = path.read_bytes()
        path.write_bytes(whole[:100] + b"\xff" * 8192 + whole[8292:])
        with pytest.raises(StoreError, match="is damaged"):
            Store.open(url)

    @pytest.mark.parametrize(
        ("bad", "words"),
        [
            ("sweep.db", "is not a database URL. Use for example sqlite:///sweep.db"),
            ("oracle7://x/y", "cannot be used"),
        ],
    )
    def test_bad_url(self, bad: str, words: str) -> None:
        with pytest.raises(StoreError, match=words):
            Store.open(bad)

    def test_password_is_never_shown(self) -> None:
        with pytest.raises(StoreError) as caught:
            Store.open("postgresql+nodriver://user:hunter2@localhost/x")
        assert "hunter2" not in str(caught.value)


class TestLocked:
    def test_says_so_after_the_timeout(self, store: Store, url: str, tmp_path: Path) -> None:
        holder = sqlite3.connect(tmp_path / "sweep.db", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        try:
            with (
                Store.open(url, busy_timeout_s=0.1) as impatient,
                pytest.raises(StoreError, match=r"sweep\.db is locked: another process"),
            ):
                create(impatient)
        finally:
            holder.execute("ROLLBACK")
            holder.close()
        assert store.studies() == []

    def test_waits_for_a_short_writer(self, store: Store, tmp_path: Path) -> None:
        holder = sqlite3.connect(tmp_path / "sweep.db", isolation_level=None, check_same_thread=False)
        holder.execute("BEGIN IMMEDIATE")
        started = time.monotonic()
        release = threading.Timer(0.4, lambda: holder.execute("COMMIT"))
        release.start()
        create(store)
        assert time.monotonic() - started >= 0.35
        release.join()
        holder.close()
        assert [study.name for study in store.studies()] == ["kimi"]

    def test_reading_goes_on_beside_a_writer(self, store: Store, tmp_path: Path) -> None:
        create(store)
        holder = sqlite3.connect(tmp_path / "sweep.db", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        started = time.monotonic()
        assert store.study().name == "kimi"
        assert time.monotonic() - started < 1.0
        holder.execute("ROLLBACK")
        holder.close()


class TestDisk:
    def test_read_only(self, small_disk: Path) -> None:
        url = f"sqlite:///{small_disk / 'sweep.db'}"
        with Store.open(url) as made:
            create(made)
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
        with pytest.raises(StoreError, match=r"sweep\.db (is read-only|cannot be opened)"):
            Store.open(url)

    if not ROOT:  # root may write to a file of mode 0444: for it the mounted case above is the test

        def test_read_only_file(self, store: Store, url: str, tmp_path: Path) -> None:
            store.close()
            (tmp_path / "sweep.db").chmod(0o444)
            with Store.open(url) as opened, pytest.raises(StoreError, match="is read-only"):
                create(opened)

    def test_full(self, small_disk: Path) -> None:
        url = f"sqlite:///{small_disk / 'sweep.db'}"
        with Store.open(url) as store:
            study = create(store)
            store.add_trial(study.id, ARM, origin="sampler")
            with pytest.raises(StoreError, match=r"the disk that holds .*sweep\.db is full: the last block was not"):
                _add_trials(store, study.id, 2000)
            stored = len(store.trials(study.id))
        subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
        with Store.open(url) as store:
            assert store.check() == []
            assert len(store.trials(study.id)) == stored > 1
            assert store.add_trial(study.id, ARM, origin="sampler").number == stored


def test_one_failed_transaction_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block and its requests are one transaction: no block without its requests."""
    study = create(store)
    made = store.begin_launch(study.id, arm=ARM, role=Role.CANDIDATE, host="h", stage=Stage.SEARCH, sequence=0)

    def fail(*_: object) -> None:
        raise RuntimeError("in the middle")

    monkeypatch.setattr("storage.launches.insert_many", fail)
    with pytest.raises(RuntimeError):
        store.add_block(made, block())
    with store.database.read() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM blocks").scalar() == 0


def _add_trials(store: Store, study_id: int, count: int) -> None:
    for _ in range(count):
        store.add_trial(study_id, ARM, origin="sampler", why="x" * 2000)
