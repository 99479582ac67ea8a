"""kill -9 of a writer at any moment loses nothing that a method had returned from."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from storage.store import Store
from sweep.model import Role, Stage
from tests.storage_tests.samples import ARM, block, create

# Writes blocks as quickly as it can and says the id of each one once add_block has returned.
WRITER = """
import sys
from storage.store import Store
from tests.storage_tests.samples import block
store = Store.open(sys.argv[1])
while True:
    print(store.add_block(int(sys.argv[2]), block()), flush=True)
"""


@pytest.mark.parametrize("after", [1, 7, 30])
def test_every_block_that_was_reported_is_there(url: str, store: Store, after: int) -> None:
    study = create(store)
    made = store.begin_launch(study.id, arm=ARM, role=Role.BASELINE, host="h", stage=Stage.SEARCH, sequence=0)
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, url, str(made)], stdout=subprocess.PIPE, text=True, env=here
    )
    assert writer.stdout is not None
    reported = [int(writer.stdout.readline()) for _ in range(after)]
    os.kill(writer.pid, signal.SIGKILL)
    reported += [int(line) for line in writer.stdout.read().split()]
    assert writer.wait() == -signal.SIGKILL
    writer.stdout.close()
    with Store.open(url) as again:
        assert again.check() == []
        with again.database.read() as connection:
            rows = connection.exec_driver_sql(
                "SELECT b.id, count(r.id) FROM blocks b LEFT JOIN requests r ON r.block_id = b.id GROUP BY b.id"
            ).all()
        assert {count for _, count in rows} == {4}
        assert set(reported) <= {row for row, _ in rows}
        assert len(rows) - len(reported) in (0, 1)  # the one being written may have been committed unreported
        again.add_block(made, block())


def test_eight_threads_lose_nothing(store: Store) -> None:
    study = create(store)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(10):
                store.add_trial(study.id, ARM, origin="sampler")
        except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [trial.number for trial in store.trials(study.id)] == list(range(80))
