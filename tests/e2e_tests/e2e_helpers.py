"""Drives the `sweep` command as a user does: a private home and folder, real processes, real Ray."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SPACES = Path(__file__).parents[2] / "search_spaces"
WAIT_S = 60.0


@dataclass
class User:
    """A user with a home of their own. ``db`` is the database in their folder."""

    home: Path
    more_env: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    name: str = "t.db"

    @property
    def db(self) -> Path:
        return self.home / self.name

    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "SWEEP_", "SPECSWEEP_", "SSH_"))}
        return {**kept, "HOME": str(self.home), "SWEEP_DB": f"sqlite:///{self.db}", **self.more_env}

    def run(self, *args: str, exit_code: int | None = 0, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """A command to its end, which must come with this exit code (None: any)."""
        process = subprocess.Popen(
            [sys.executable, "-m", "sweep", *args],
            cwd=self.home,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        stdout, stderr = process.communicate(timeout=timeout_s)
        done = subprocess.CompletedProcess(args, process.returncode, stdout, stderr)
        assert exit_code is None or done.returncode == exit_code, (done.returncode, done.stdout, done.stderr)
        return done

    def json(self, *args: str, exit_code: int = 0, timeout_s: float = 120.0) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.run(*args, "--json", exit_code=exit_code, timeout_s=timeout_s).stdout)

    def spawn(self, *args: str) -> subprocess.Popen[str]:
        """A command in the background, leading a process group of its own as under a shell's job control."""
        with (self.home / "spawned.log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "sweep", *args],
                cwd=self.home,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                process_group=0,
            )
        self.started.append(process)
        return process

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of the database as they are now; none while it is not there."""
        if not self.db.exists():
            return []
        connection = sqlite3.connect(self.db, timeout=10)
        try:
            return connection.execute(sql).fetchall()
        except sqlite3.OperationalError:
            return []  # its tables are being made
        finally:
            connection.close()

    def until(self, sql: str, timeout_s: float = WAIT_S) -> None:
        """Wait for the query to give a row."""
        wait_for(lambda: self.query(sql), timeout_s, lambda: self.log())

    def log(self) -> str:
        path = self.home / "spawned.log"
        return path.read_text() if path.exists() else ""

    def left(self) -> list[str]:
        """Processes of this user that outlive their commands: servers, supervisors, anything of Ray's."""
        mine = f"HOME={self.home}".encode()
        alive = {process.pid for process in self.started if process.poll() is None}
        found: list[str] = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) in alive:
                continue
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            except OSError:
                continue
            base = any(word.startswith(b"SPECSWEEP_BASE=" + str(self.home).encode()) for word in environment)
            if (mine in environment or base) and command:
                found.append(f"{entry.name} {command[:200]}")
        return found

    def ray_homes(self) -> list[Path]:
        """Folders of clusters that this user's commands started."""
        pids = {process.pid for process in self.started}
        found: list[Path] = []
        for path in Path("/tmp").glob("sweep-ray-*/owner.json"):
            with contextlib.suppress(OSError):
                if json.loads(path.read_text())["pid"] in pids:
                    found.append(path.parent)
        return found

    def require_clean(self, within_s: float = 10.0) -> None:
        """Nothing of this user runs any more, and no folder of a cluster of theirs is left."""
        wait_for(lambda: not self.left(), within_s, lambda: "\n".join(self.left()))
        assert self.ray_homes() == []

    def end(self) -> None:
        """End what a failed test may have left, by pid."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        for line in self.left():
            try:
                os.kill(int(line.split()[0]), signal.SIGKILL)
            except ProcessLookupError:
                continue


def wait_for(condition: Callable[[], Any], timeout_s: float, said: Callable[[], str] = lambda: "") -> Any:
    """The condition's first true value."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain: {said()}"
        time.sleep(0.03)
    return value
