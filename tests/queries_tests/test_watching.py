"""What is shown of a study that runs: `status`, `status --watch` on a terminal, and the live table of `start`."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from storage.records import StudyState
from storage.store import Store
from sweep.cli.progress import LiveProgress, Outlook
from sweep.model import Role, Stage
from tests.commands import Run
from tests.report_tests.made import LONG, make


@pytest.fixture
def running(own_url: str) -> str:
    """The study as it would be while a trial's second launch runs, twenty seconds old."""
    with Store.open(own_url) as store:
        study = store.study("night")
        launch = store.begin_launch(
            study.id, arm=LONG, role=Role.CANDIDATE, host="gpu-a", stage=Stage.CONFIRM, sequence=99, trial=1
        )
        store.launch_phase(launch, "graph_capture")
        store.set_state(study.id, StudyState.RUNNING)
    return own_url


def test_a_launch_is_shown_against_what_such_launches_take(running: str, sweep: Run) -> None:
    answer = json.loads(sweep("status", "night", "--json", db=running)[1])
    (host,) = answer["hosts"]
    assert host["phase"] == "graph_capture"
    assert host["expected_s"] >= 0
    assert abs(time.time() - host["begun_at"]) < 60
    text = sweep("status", "night", db=running)[1]
    assert "host gpu-a: trial 1 EAGLE3 good 3/1/4 (confirm): graph capture, 0:0" in text
    assert " of about 0:0" in text
    assert "EAGLE3 good 3/1/4 is " in text  # the best so far


def test_nothing_is_expected_before_a_launch_has_ended(tmp_path: Path, sweep: Run) -> None:
    url = f"sqlite:///{tmp_path / 'early.db'}"
    with Store.open(url) as store:
        study = make(store, arms=(), baseline=False)
        store.begin_launch(
            study.id, arm=LONG, role=Role.CANDIDATE, host="gpu-a", stage=Stage.SEARCH, sequence=1, trial=0
        )
    text = sweep("status", "night", db=url)[1]
    assert "EAGLE3 good 3/1/4: begun, 0:0" in text
    assert "of about" not in text
    assert "nothing to rank" in text


def test_watch_follows_on_a_terminal_until_the_study_ends(running: str) -> None:
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "sweep", "status", "night", "--watch", "--db", running]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as process:
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # EIO: the other end has closed
            while piece := os.read(ours, 4096):
                said += piece
                if b"night: running" in said and b"night: finished" not in said:
                    with Store.open(running) as store:
                        store.set_state(store.study("night").id, StudyState.FINISHED)
    os.close(ours)
    assert process.returncode == 0, said
    assert said.index(b"night: running") < said.index(b"night: finished")


class TestLiveTable:
    @staticmethod
    def shown(live: LiveProgress) -> str:
        console = Console(file=io.StringIO(), width=140)
        console.print(live._render())
        return console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO

    @staticmethod
    def event(kind: str, at: float, **more: Any) -> dict[str, Any]:
        return {"kind": kind, "host": "gpu-a", "at": at, "arm": "EAGLE3 good 3/1/4", "trial": 0, **more}

    def test_what_a_host_said_is_no_markup(self) -> None:
        live = LiveProgress(Console(file=io.StringIO()), "night", ["gpu-a"], lambda confirmed: Outlook(1, 4, 3, None))
        live.on_event({"kind": "host_aside", "host": "gpu-a", "at": 0.0, "why": "[rank0] lost [/models/x] [bold]"})
        assert "[rank0] lost [/models/x] [bold]" in " ".join(self.shown(live).split())

    def test_launches_of_the_past_say_how_long_the_next_will_take(self) -> None:
        live = LiveProgress(Console(file=io.StringIO()), "night", ["gpu-a"], lambda confirmed: Outlook(1, 4, 3, None))
        now = time.time()
        live.on_event(self.event("launch", now - 100))
        assert "of about" not in self.shown(live)
        live.on_event(self.event("finished", now - 40, diagnosis=None))
        live.on_event(self.event("launch", now - 15))
        assert "0:15 of about 1:00" in self.shown(live)
        died = {"verdict": "launch_oom", "evidence": "", "advice": ""}
        live.on_event(self.event("finished", now - 10, diagnosis=died))
        live.on_event(self.event("launch", now - 5))
        assert "0:05 of about 1:00" in self.shown(live)  # one that died says nothing of the others


def test_an_export_says_on_a_terminal_what_it_does_and_elsewhere_nothing(own_url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sweep", "export", "--format", "csv", "--db", own_url, "-o"]
    quiet = subprocess.run([*command, str(tmp_path / "quiet")], capture_output=True, text=True, timeout=60)
    assert (quiet.returncode, quiet.stderr) == (0, "")
    ours, theirs = os.openpty()
    with subprocess.Popen(
        [*command, str(tmp_path / "seen")], stdin=theirs, stdout=subprocess.DEVNULL, stderr=theirs
    ) as process:
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # EIO: the other end has closed
            while piece := os.read(ours, 4096):
                said += piece
    os.close(ours)
    assert process.returncode == 0
    assert b"0:00:0" in said
    assert b"ing " in said  # reading or writing a table: which one is on the screen then is a matter of milliseconds
