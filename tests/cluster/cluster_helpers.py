"""A Ray cluster of two nodes on this machine, started by the test: own ports, folders, homes and token.

Each node is a `ray start --block` in a session of its own, ended by pid with everything that carries its home.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TOKEN = "0123456789abcdef0123456789abcdef0123456789abcdef"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "SWEEP_", "SPECSWEEP_", "SSH_"))}
    ray = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_USAGE_STATS_ENABLED": "0", "SPT_NOENV": "1"}
    return {**kept, **ray, "HOME": str(home), **more}


@dataclass
class Node:
    """One node: its home folder, and the process that keeps it."""

    home: Path
    process: subprocess.Popen[bytes]

    def pids(self) -> list[int]:
        """Every process that has this node's home: raylet, workers, actors, and the servers they started."""
        wanted = f"HOME={self.home}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    def end(self) -> None:
        """As a power cut would."""
        while pids := self.pids():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=0.1)
        self.process.wait()


@dataclass
class Cluster:
    """The head, which is no GPU host, and whatever nodes were added. ``temp`` must be short: sockets lie there."""

    folder: Path
    temp: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="sw-", dir="/tmp")))
    port: int = field(default_factory=free_port)
    nodes: list[Node] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def head(self) -> Node:
        return self._start("head", "--head", "--port", str(self.port), "--include-dashboard", "false")

    def add(self, name: str, **resources: float) -> Node:
        return self._start(name, "--address", self.address, "--resources", json.dumps(resources))

    def _start(self, name: str, *options: str) -> Node:
        home = self.folder / name
        home.mkdir()
        common = [
            "--block", "--node-ip-address", "127.0.0.1", "--num-cpus", "1", "--num-gpus", "0",
            "--object-store-memory", str(80 * 1024 * 1024), "--min-worker-port", "0", "--max-worker-port", "0",
            "--dashboard-agent-listen-port", str(free_port()), "--metrics-export-port", str(free_port()),
        ]  # fmt: skip
        if "--head" in options:
            common += ["--temp-dir", str(self.temp)]
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(Path(sys.executable).parent / "ray"), "start", *options, *common],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(home, SWEEP_SSH_CONFIG=str(home / "ssh_config")),
                start_new_session=True,
            )
        node = Node(home, process)
        self.nodes.append(node)
        said = self.folder / f"{name}.log"
        wait_for(lambda: b"Ray runtime started" in said.read_bytes() or process.poll() is not None, 120)
        assert process.poll() is None, said.read_text()
        return node

    def end(self) -> None:
        for node in reversed(self.nodes):
            node.end()
        shutil.rmtree(self.temp, ignore_errors=True)


@dataclass
class Driver:
    """A user who runs `sweep` against the cluster, from a home of their own."""

    home: Path
    cluster: Cluster

    @property
    def db(self) -> Path:
        return self.home / "t.db"

    def write(self, hosts: list[dict[str, Any]], **changes: Any) -> None:
        space = {
            "name": "spread",
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
                "num_steps": [1, 2, 3],
                "topk": [1],
                "num_draft_tokens": [2, 3, 4],
            },
            "workload": {
                "categories": ["code"], "per_category": 2, "max_tokens": 24, "concurrency": [1], "repeats": 1,
            },
            "objectives": ["output_throughput@1"],
            "budget": {"trials": 3},
            "measurement": {
                "calibrate_launches": 1, "engine_default": False, "confirm_top": 0, "max_attempts": 5,
                "pairing": "bracketed", "tolerance": 0.99,
            },
            "simulate": {"profile": "tiny", "time_scale": 1.0},
            "hosts": hosts,
            **changes,
        }  # fmt: skip
        (self.home / "space.yaml").write_text(json.dumps(space))

    def spawn(self, *words: str, code: str | None = None, **env: str) -> subprocess.Popen[str]:
        """`sweep WORDS`; with ``code`` it is run by python after these lines."""
        run = ["-c", f"{code}\nfrom sweep.cli.main import main\nmain()"] if code else ["-m", "sweep"]
        variables = {"RAY_ADDRESS": self.cluster.address, "SWEEP_DB": f"sqlite:///{self.db}", **env}
        return subprocess.Popen(
            [sys.executable, *run, *words],
            cwd=self.home,
            env=environment(self.home, **variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, exit_code: int = 0, code: str | None = None, **env: str) -> tuple[str, str]:
        """(stdout, stderr) of a command that must end with this exit code."""
        process = self.spawn(*words, code=code, **env)
        try:
            out, err = process.communicate(timeout=240)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == exit_code, (process.returncode, out[-3000:], err[-3000:])
        return out, err

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        import sqlite3

        if not self.db.exists():
            return []
        with contextlib.closing(sqlite3.connect(self.db, timeout=10)) as connection:
            try:
                return connection.execute(sql).fetchall()
            except sqlite3.OperationalError:
                return []  # its tables are being made


def wait_for(condition: Callable[[], Any], timeout_s: float) -> Any:
    """The condition's first true value."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return value
