"""A small study on one simulated host, its controller as a process, and what must hold after every fault."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CONTROLLER = Path(__file__).parent / "controller.py"
WAIT_S = 120.0  # how long anything may take on a machine that is busy with other things

# Two candidates between two baselines; each launch has two blocks of two requests.
SPACE: dict[str, Any] = {
    "name": "faults",
    "engine": "simulated",
    "model": {"path": "meta-llama/Llama-3.1-8B-Instruct"},
    "server": {
        "args": {
            "attention-backend": "triton",
            "page-size": 1,
            "max-running-requests": 8,
            "cuda-graph-bs-decode": [1, 2, 4, 8],
        }
    },
    "space": {
        "algorithm": ["EAGLE3"],
        "draft_model": [{"name": "head", "path": "some/eagle3-head"}],
        "num_steps": [1, 3],
        "topk": [1],
        "num_draft_tokens": [2, 4],
    },
    "workload": {
        "categories": ["code", "writing"],
        "per_category": 1,
        "max_tokens": 24,
        "concurrency": [1],
        "repeats": 2,
        "ignore_eos": True,
    },
    "objectives": ["output_throughput@1"],
    "budget": {"trials": 2},
    "sampler": "grid",
    "measurement": {
        "calibrate_launches": 1,
        "engine_default": False,
        "confirm_top": 0,
        "max_attempts": 3,
        "pairing": "bracketed",
        "tolerance": 0.99,  # a busy machine disturbs short blocks; noise is no question here
    },
    "simulate": {"profile": "tiny", "time_scale": 1.0},
}
EXPECTED = {(1, "complete"), (3, "complete")}


def changed(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with nested ``changes``."""
    out = dict(base)
    for key, value in changes.items():
        out[key] = changed(out.get(key) or {}, value) if isinstance(value, Mapping) else value
    return out


def failing(kind: str, *, steps: int | None = 3, **more: Any) -> dict[str, Any]:
    """Changes that make the server fail so, on the arm with ``steps`` draft steps (None: on every arm)."""
    when = {} if steps is None else {"num_steps": steps}
    switch = {"failures": [{"kind": kind, "when": when, **more}]}  # `more` may hold another `when`
    return {"server": {"env": {"SPECSWEEP_SIM": json.dumps(switch)}}}


@dataclass
class Lab:
    """One study: its folder, its host's entry in the YAML, the controllers that were started."""

    folder: Path
    host: dict[str, Any]
    environment: dict[str, str] = field(default_factory=dict)
    controllers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    place: Path | None = None  # where the database lies; None: the folder

    @property
    def db(self) -> Path:
        return (self.place or self.folder) / "t.db"

    @property
    def base(self) -> Path:
        """Where our files go on the host."""
        return Path(self.host["base_dir"])

    def write(self, changes: Mapping[str, Any] | None = None) -> None:
        """The search space; JSON is YAML."""
        self.save({**changed(SPACE, changes or {}), "hosts": [self.host]})

    def save(self, space: Mapping[str, Any]) -> None:
        (self.folder / "space.yaml").write_text(json.dumps(space))

    def space(self) -> dict[str, Any]:
        space: dict[str, Any] = json.loads((self.folder / "space.yaml").read_text())
        return space

    def spawn(self, command: str, **options: Any) -> subprocess.Popen[bytes]:
        words = [f"{key}={value}" for key, value in options.items()]
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "SWEEP_", "SPECSWEEP_", "SSH_"))}
        with (self.folder / "controller.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, str(CONTROLLER), command, str(self.db), str(self.folder / "space.yaml"), *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**kept, "HOME": str(self.folder), **self.environment},
                cwd=self.folder,
            )
        self.controllers.append(process)
        return process

    def run(self, command: str, exit_code: int = 0, **options: Any) -> None:
        """A controller to its end, which must come with this exit code (-9: killed by itself)."""
        process = self.spawn(command, **options)
        code = process.wait(timeout=WAIT_S)
        assert code == exit_code, (code, self.said())

    def ends(self, process: subprocess.Popen[bytes], exit_code: int = 0) -> None:
        code = process.wait(timeout=WAIT_S)
        assert code == exit_code, (code, self.said())

    def said(self) -> str:
        return (self.folder / "controller.log").read_text(errors="replace")[-6000:]

    # ------------------------------------------------------------------ what is in the database

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        if not self.db.exists():
            return []
        with contextlib.closing(sqlite3.connect(self.db, timeout=10)) as connection:
            try:
                return connection.execute(sql).fetchall()
            except sqlite3.OperationalError:
                return []  # its tables are being made

    def until(self, sql: str, timeout_s: float = WAIT_S) -> None:
        """Wait for the query to give a row; the controller must not have ended before."""
        process = self.controllers[-1]
        wait_for(lambda: self.query(sql) or process.poll() is not None, timeout_s, self.said)
        assert self.query(sql), self.said()

    def measuring(self, trial: int | None = 0, block: int = 1) -> str:
        """SQL: the n-th block of a trial's launch (None: the first baseline's) is under way."""
        which = "l.trial_id IS NULL" if trial is None else f"t.number = {trial}"
        return (
            "SELECT 1 FROM events e JOIN launches l ON l.id = json_extract(e.detail, '$.launch') "
            f"LEFT JOIN trials t ON t.id = l.trial_id WHERE e.kind = 'block' AND {which} "
            f"GROUP BY l.id HAVING count(*) >= {block}"
        )

    def blocks(self) -> dict[int, tuple[Any, ...]]:
        """Every block that is stored, with its requests."""
        rows = self.query(
            "SELECT b.id, b.launch_id, b.round, b.elapsed_s, b.output_tokens, b.invalid, count(r.id), sum(r.end_s) "
            "FROM blocks b LEFT JOIN requests r ON r.block_id = b.id GROUP BY b.id"
        )
        return {row[0]: row[1:] for row in rows}

    def results(self) -> set[tuple[int, str | None]]:
        """(num_steps, verdict) of every trial."""
        rows = self.query("SELECT a.config, t.verdict FROM trials t JOIN arms a ON a.id = t.arm_id")
        assert len(rows) == len({config for config, _ in rows}), "a configuration became two trials"
        return {(json.loads(config)["num_steps"], verdict) for config, verdict in rows}

    def verdicts(self, steps: int = 3) -> list[tuple[str, str, str]]:
        """(verdict, reason, evidence) of every launch of the arm with so many steps, in order."""
        rows = self.query(
            "SELECT a.config, l.verdict, l.reason, l.evidence FROM launches l JOIN arms a ON a.id = l.arm_id "
            "WHERE l.state = 'ended' ORDER BY l.id"
        )
        return [row[1:] for row in rows if json.loads(row[0])["num_steps"] == steps]

    # ------------------------------------------------------------------ what must hold afterwards

    def check(self, before: Mapping[int, tuple[Any, ...]], expected: set[tuple[int, str]] | None = None) -> None:
        """The study has finished: ``expected`` results, the blocks of ``before`` still there, no failure scored,
        nothing of ours left running."""
        assert self.results() == (EXPECTED if expected is None else expected), self.said()
        assert self.query("SELECT state FROM studies") == [("finished",)]
        now = self.blocks()
        assert {number: now.get(number) for number in before} == dict(before), "a finished block was lost or changed"
        self.check_scores()
        self.check_nothing_left()

    def check_scores(self) -> None:
        """Nothing that failed carries a value."""
        scored = self.query("SELECT number FROM trials WHERE verdict != 'complete' AND objective_values NOT NULL")
        assert [row for row in scored if row] == []
        assert self.query("SELECT id FROM requests WHERE error NOT NULL AND output_tokens NOT NULL") == []
        assert self.query("SELECT number FROM trials WHERE verdict = 'complete' AND objective_values IS NULL") == []
        gained = (
            "SELECT g.id FROM gains g JOIN trials t ON t.id = g.trial_id "
            "WHERE t.verdict IS NOT 'complete' AND g.estimate NOT NULL"
        )
        assert self.query(gained) == []

    def check_nothing_left(self) -> None:
        """No process with our marker: servers, their children, supervisors."""
        wait_for(lambda: not marked(self.base) and not supervisors(self.base), 30, lambda: str(marked(self.base)))

    def end(self) -> None:
        """End what a failed test may have left, by pid."""
        for process in self.controllers:
            if process.poll() is None:
                process.kill()
            process.wait()
        for pid in {*marked(self.base), *supervisors(self.base)}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def marked(base: Path) -> list[int]:
    """Live processes whose environment holds our marker with a base folder below ``base``."""
    wanted = f"SPECSWEEP_BASE={base}".encode()
    return [pid for pid in processes() if wanted in read(pid, "environ")]


def supervisors(base: Path) -> list[int]:
    """Live processes that were started on a base folder below ``base``."""
    return [pid for pid in processes() if f"{base}/".encode() in read(pid, "cmdline")]


def processes() -> list[int]:
    return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and p.name != str(os.getpid())]


def read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def wait_for(condition: Callable[[], Any], timeout_s: float = WAIT_S, said: Callable[[], str] = lambda: "") -> Any:
    """The condition's first true value."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain: {said()}"
        time.sleep(0.02)
    return value
