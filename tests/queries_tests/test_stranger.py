"""Commands as somebody meets them who has nothing yet, names what is not there, pipes on, has a narrow window."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from launchers.locks import this_holder
from storage.records import StudyState
from storage.store import Store
from sweep.cli import render
from sweep.cli.common import is_tty
from sweep.cli.main import COMMANDS
from sweep.cli.progress import PlainProgress
from tests.commands import Run

# Every command that reads a study, as it is typed; `night` and `1` are there. What it answers with exit code 0 is one
# JSON document under --json.
QUERIES: dict[str, tuple[str, ...]] = {
    "status": ("status", "night"),
    "best": ("best", "night"),
    "pareto": ("pareto", "night"),
    "show": ("show", "1", "night"),
    "whatif": ("whatif", "night"),
    "logs": ("logs", "1", "night"),
    "command": ("command", "1", "night"),
    "export": ("export", "night", "-o", "{folder}/tables"),
    "report": ("report", "night", "-o", "{folder}/report.html"),
    "compare": ("compare", "night", "night"),
    "history": ("history", "1", "night"),
    "db": ("db", "trim", "night", "--yes"),
    "rm": ("rm", "night", "--yes"),
}
NO_JSON = {"resume": ("resume", "night"), "stop": ("stop", "night"), "ui": ("ui", "night")}
# They read no study: a search space, hosts or nothing at all; `ls` is below.
OTHERS = {"start", "ls", "calibrate", "plan", "init", "completion", "doctor", "ps", "clean"}
STUDIES = QUERIES | NO_JSON


def typed(name: str, folder: Path, study: str = "night") -> list[str]:
    return [study if word == "night" else word.replace("{folder}", str(folder)) for word in STUDIES[name]]


def test_no_command_is_forgotten() -> None:
    assert STUDIES.keys() | OTHERS == COMMANDS.keys()


@pytest.mark.parametrize("name", STUDIES)
def test_what_is_not_there_has_its_exit_code_and_one_message(sweep: Run, tmp_path: Path, name: str) -> None:
    empty = f"sqlite:///{tmp_path / 'empty.db'}"
    Store.open(empty).close()
    (tmp_path / "blank.db").touch()
    cases = [
        (typed(name, tmp_path), f"sqlite:///{tmp_path / 'none.db'}", 3, "`sweep start` makes one"),
        (typed(name, tmp_path), empty, 5, "no study in"),
        (typed(name, tmp_path), f"sqlite:///{tmp_path / 'blank.db'}", 5, "no study in"),
        (typed(name, tmp_path, "nigth"), None, 5, "Near: night"),
    ]
    for words, db, code, said in cases:
        ended, out, err = sweep(*words, **({} if db is None else {"db": db}))
        assert (ended, out) == (code, ""), words
        assert re.fullmatch(r"sweep: .*\n", err)
        assert said in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blank.db", "empty.db"]  # nothing was made


def test_json_is_one_document(sweep: Run, own_url: str, tmp_path: Path) -> None:
    for name in QUERIES:
        code, out, err = sweep(*typed(name, tmp_path), "--json", db=own_url)
        assert (code, err) == (0, ""), name
        assert isinstance(json.loads(out), dict), name


def test_what_cannot_be_one_document_is_refused(sweep: Run) -> None:
    code, out, err = sweep("report", "night", "-o", "-", "--json")
    assert (code, out) == (2, "")
    assert "both want standard output" in err


def test_ls(sweep: Run, tmp_path: Path) -> None:
    empty = f"sqlite:///{tmp_path / 'empty.db'}"
    long = "a-study-whose-name-says-on-which-night-and-hosts-it-was-measured-and-why-again [bold]"
    with Store.open(empty) as store:
        assert sweep("ls", db=empty)[:2] == (0, "No study yet: `sweep start SPACE.yaml` makes one.\n")
        assert json.loads(sweep("ls", "--json", db=empty)[1]) == []
        store.create_study(
            long, engine="sglang", spec={}, yaml="", space_hash="", seed=1, tool_version="1", objectives=()
        )
    assert sweep("ls", db=empty)[1].splitlines()[1].startswith(f"{long}  running  sglang")


def test_what_cannot_start_leaves_no_study_behind(sweep: Run, own_url: str) -> None:
    for words, code, said in (
        (("--simulate", "--warm-start", "nigth"), 5, "no study 'nigth'"),
        (("--simulate", "--warm-start", "night"), 2, "study 'night' teaches nothing here"),
        (("--simulate=tyni",), 2, "no simulation profile 'tyni'"),
    ):
        ended, out, err = sweep("start", "smoke", *words, db=own_url)
        assert (ended, out) == (code, "")
        assert said in err
    assert [study["study"] for study in json.loads(sweep("ls", "--json", db=own_url)[1])] == ["night"]


def test_a_controller_that_was_killed_runs_nothing(sweep: Run, own_url: str) -> None:
    """`status`, `ls` and `stop` agree, and `stop` does not wait for it."""
    with Store.open(own_url) as store:
        study = store.study("night")
        store.set_state(study.id, StudyState.RUNNING)
        store.set_controller(study.id, this_holder().as_dict())
        assert sweep("status", db=own_url)[1].startswith("night: running\n")
        store.set_controller(study.id, replace(this_holder(), start_time=1).as_dict())  # this pid, another process
        carries = "`sweep resume night` carries it on\n"
        assert sweep("status", db=own_url)[1].startswith(f"night: stopped, its controller was killed; {carries}")
        assert json.loads(sweep("ls", "--json", db=own_url)[1])[0]["state"] == "stopped"
        assert sweep("stop", db=own_url)[:2] == (0, f"study 'night' is not running; {carries}")


def test_a_watch_for_machines_prints_the_last_state_alone(sweep: Run, own_url: str) -> None:
    with Store.open(own_url) as store:
        study = store.study("night")
        store.set_state(study.id, StudyState.RUNNING)
        store.set_controller(study.id, this_holder().as_dict())
        end = threading.Timer(0.5, lambda: store.set_state(study.id, StudyState.FINISHED))
        end.start()
        answer = json.loads(sweep("status", "--watch", "--json", db=own_url)[1])
        end.join()
    assert answer["state"] == "finished"


# ---------------------------------------------------------------------------------------------- a reader that leaves


def test_a_reader_that_leaves_is_no_error(url: str) -> None:
    """As in front of `| head -1`: no traceback, no words, and the exit code that shells have for it."""
    for words in (["best", "night"], ["best", "--help"], ["--help"]):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(
            [sys.executable, "-m", "sweep", *words],
            env={**os.environ, "SWEEP_DB": url}, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60,
        )  # fmt: skip
        os.close(write)
        assert (done.returncode, done.stderr) == (141, "")


def test_a_study_goes_on_where_its_lines_find_no_reader() -> None:
    heard: list[str] = []

    def write(line: str) -> None:
        if heard:
            raise BrokenPipeError
        heard.append(line)

    progress = PlainProgress(write)
    for _ in range(3):
        progress.on_event({"kind": "stopping", "why": "interrupted", "at": 0.0})
    assert len(heard) == 1


# ---------------------------------------------------------------------------------------------- a narrow window


@pytest.mark.parametrize("columns", [60, 100])
@pytest.mark.parametrize("name", ["best", "pareto", "show", "compare", "history"])
def test_no_word_breaks_in_a_narrow_window(
    sweep: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, columns: int
) -> None:
    plain = sweep(*typed(name, tmp_path))[1]
    monkeypatch.setattr(render, "is_tty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = sweep(*typed(name, tmp_path))[1]
    left_out = {"-", "over", "engine", "default", "flags", "notes"}  # what no row has is no part of a paragraph
    assert set(plain.replace(";", " ").split()) - left_out <= set(shown.replace(";", " ").split())


def test_widths() -> None:
    columns, rows = ["trial", "configuration"], [["1", "EAGLE3 good 3/1/4"]]
    assert render.fitted(columns, rows, 80) == [5, 17]
    assert render.fitted(columns, rows, 22) == [5, 15]
    assert render.fitted(columns, rows, 20) == [5, 13]
    assert render.fitted(columns, rows, 19) is None  # "configuration" would break


def test_no_colour_where_none_is_wanted(sweep: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_tty()
    monkeypatch.setattr(render, "is_tty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert re.findall(r"\x1b\[3\d", sweep("best", "night")[1]) == []
