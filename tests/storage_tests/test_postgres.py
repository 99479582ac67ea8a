"""The same store on a real PostgreSQL by URL: started here, on a free port, in a folder of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp

import pytest
from click.testing import CliRunner

from storage import details, frames, queries
from storage.pareto import pareto
from storage.records import TrialState
from storage.store import Store
from sweep import session
from sweep.cli.main import cli
from sweep.cli.progress import PlainProgress
from sweep.config import Overrides, load_text
from sweep.errors import StoreError, StudyExistsError
from sweep.model import Role, Stage
from sweep.pool import InlinePool
from tests.e2e_tests.inline import space
from tests.storage_tests.samples import (
    ARM,
    LATENCY,
    OOM,
    SPEED,
    Server,
    block,
    create,
    gain,
)


def _binaries() -> Path | None:
    """The folder of initdb and postgres: Debian keeps them off PATH."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    return max((path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")), default=None)


def _account() -> int | None:
    """PostgreSQL refuses to run as root: its own account there, nobody where there is none."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name: entry.pw_uid for entry in pwd.getpwall()}
    return names.get("postgres", names.get("nobody"))


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    folder = _binaries()
    if folder is None:
        pytest.skip("no PostgreSQL server is installed (apt: postgresql)")
    if find_spec("psycopg") is None:
        pytest.skip("no PostgreSQL driver is installed (pip: psycopg[binary])")
    account = _account()
    place = Path(mkdtemp(prefix="pg-"))  # outside pytest's own folder, which only its owner may enter
    if account is not None:
        os.chown(place, account, -1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    quick = ["-c", "fsync=off", "-c", f"port={port}", "-c", "listen_addresses=127.0.0.1"]
    server = None
    try:
        init = [str(folder / "initdb"), "-D", str(place / "data"), "-U", "sweep", "-A", "trust", "-E", "UTF8"]
        subprocess.run(init, check=True, capture_output=True, user=account, cwd=place)
        server = subprocess.Popen(
            [str(folder / "postgres"), "-D", str(place / "data"), "-k", str(place), *quick],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=account,
            cwd=place,
        )
        ready = [str(folder / "pg_isready"), "-h", "127.0.0.1", "-p", str(port), "-t", "1"]
        for _ in range(100):
            if subprocess.run(ready, capture_output=True, check=False).returncode == 0:
                break
            assert server.poll() is None, "PostgreSQL ended at its start"
        yield f"postgresql+psycopg://sweep@127.0.0.1:{port}/postgres"
    finally:
        if server is not None:
            server.terminate()
            server.wait(30)
        shutil.rmtree(place)


def test_a_study_from_start_to_end(postgres: str) -> None:
    with Store.open(postgres) as store:
        study = create(store, simulated=True)
        with pytest.raises(StudyExistsError):
            create(store)
        store.add_host(study.id, "gpu-a", "ssh")
        store.add_trial(study.id, ARM, origin="known_good")
        store.start_trial(study.id, 0, "gpu-a")
        made = store.begin_launch(
            study.id, arm=ARM, role=Role.CANDIDATE, host="gpu-a", stage=Stage.SEARCH, sequence=0, trial=0
        )
        store.launch_started(made, Server())
        store.launch_ready(made, Server())
        store.add_block(made, block())
        store.finish_launch(made, None, log_tail=["nul \0 and surrogate \udcff"])
        store.finish_trial(study.id, 0, values={SPEED.key: 82.3, LATENCY.key: 40.0})
        store.add_trial(study.id, ARM, origin="sampler")
        store.finish_trial(study.id, 1, OOM)
        store.add_trial(study.id, ARM, origin="sampler")
        assert store.requeue_trial(study.id, 2, "again").attempt == 2
        levels = {SPEED.key: 90.0, LATENCY.key: 50.0}
        store.replace_analysis(study.id, [gain(0, -0.086)], {"baseline": {"by_objective": levels}})
    with Store.open(postgres, create=False) as store:
        study = store.study()
        assert [t.state for t in store.trials(study.id)] == [
            TrialState.FINISHED,
            TrialState.FINISHED,
            TrialState.QUEUED,
        ]
        [measured] = store.measured_launches(study.id)
        assert len(measured.blocks[0].requests) == 4
        [row] = queries.best(store, study.id)["best"]
        assert (row["trial"], row["gain"]["estimate"]) == (0, -0.086)
        assert [p["on_front"] for p in pareto(store, study.id)["points"]] == [True, True]
        assert queries.status(store, study.id)["counts"] == {"complete": 1, "launch_oom": 1, "queued": 1}
        assert details.show(store, study.id, 0)["launches"][0]["blocks"][0]["n_ok"] == 4
        assert len(frames.requests(store, study)) == 4
        assert store.check() == []
        with pytest.raises(StoreError, match="pg_dump"):
            store.backup(Path("copy.db"))
        store.delete_study(study.id)
        assert store.studies() == []


def test_a_study_is_run_and_asked_about(postgres: str, tmp_path: Path) -> None:
    """By the controller itself, which also takes the study, beats, and writes events; then by the commands."""
    host = {"name": "here", "kind": "local", "gpus": [0], "base_dir": str(tmp_path / "host"), "python": sys.executable}
    text = space([host], tokens=(4,)) + "budget: {trials: 1}\n"
    spec = load_text(text, Overrides())
    with Store.open(postgres) as store:
        study = session.create(store, spec, text)
        seen: list[str] = []
        assert session.run(store, study, spec, lambda *_: PlainProgress(seen.append), InlinePool()) == "finished", seen
        assert queries.status(store, study.id)["counts"] == {"complete": 1}
        assert store.study_by_id(study.id).controller is None
        assert {event.kind for event in store.events(study.id)} >= {"prepare", "launch", "block", "finished"}
        assert store.check() == []
    asked = [["status"], ["best"], ["show", "0"], ["pareto"], ["ls"], ["report", "--output", str(tmp_path / "r.html")]]
    for words in [*asked, ["db", "check"], ["rm", "small", "--yes"]]:
        answer = CliRunner().invoke(cli, [*words, "--db", postgres])
        assert answer.exit_code == 0, (words, answer.output)


def test_a_server_that_is_not_there(postgres: str) -> None:
    gone = postgres.rsplit(":", 1)[0] + ":1/postgres"
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:1/postgres: .*refused.*Check that it can be reached"):
        Store.open(gone)
