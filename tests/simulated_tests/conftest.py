"""Starts real simulated servers on loopback and speaks to them; every one is ended by its pid."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SIMULATED = Path(__file__).parents[2] / "launchers" / "simulated"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    port: int
    log: Path
    state: Path

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, words: str, timeout: float = 10.0) -> str:
        """Until the log holds ``words``; the log."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if words in self.text():
                return self.text()
            if self.process.poll() is not None and words not in self.text():
                pytest.fail(f"server ended with {self.process.returncode} before {words!r}:\n{self.text()[-3000:]}")
            time.sleep(0.01)
        pytest.fail(f"{words!r} not in the log:\n{self.text()[-3000:]}")

    def ready(self) -> Server:
        self.wait_for("The server is fired up and ready to roll!")
        return self

    def exit(self, timeout: float = 10.0) -> int:
        return self.process.wait(timeout)

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def json(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        status, data = self.request(method, path, body, headers)
        assert status == 200, data
        return json.loads(data)

    def generate(self, text: str = "hello", **sampling: Any) -> Any:
        return self.json("POST", "/generate", {"text": text, "sampling_params": {"temperature": 0, **sampling}})

    def events(self, path: str, body: Any) -> list[Any]:
        """The data of every event of a stream, JSON decoded, ``[DONE]`` left off but required."""
        status, data = self.request("POST", path, {**body, "stream": True})
        assert status == 200, data
        events = [part[6:] for part in data.decode().split("\n\n") if part]
        assert events[-1] == "[DONE]"
        return [json.loads(event) for event in events[:-1]]

    def children(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    stat = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if int(stat[1]) == self.process.pid and stat[0] != "Z":
                    found.append(int(entry.name))
        return sorted(found)


Launch = Callable[..., Server]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """``launch(*flags, profile="tiny", scale=1.0, sim=None, env=None, state=None, port=None, own=())``."""
    started: list[Server] = []

    def start(
        *flags: str,
        profile: str | Path = "tiny",
        scale: float = 1.0,
        sim: Any = None,
        env: dict[str, str] | None = None,
        state: Path | None = None,
        port: int | None = None,
        own: tuple[str, ...] = (),
    ) -> Server:
        port = port or free_port()
        state = state or tmp_path / f"gpus-{len(started)}"  # a host of its own unless told
        log = tmp_path / f"server-{len(started)}.log"
        path = profile if isinstance(profile, Path) else SIMULATED / "profiles" / f"{profile}.json"
        argv = [sys.executable, str(SIMULATED / "server.py"), "--profile", str(path), "--time-scale", str(scale)]
        argv += ["--gpu-state", str(state), "--seed", "1", "--host-name", "host-a", *own]
        argv += ["--model-path", "/models/target"]
        argv += ["--host", "127.0.0.1", "--port", str(port), *flags]
        surroundings = {"PATH": os.environ["PATH"], "SPT_NOENV": "1", "MARKER": "specsweep-test", **(env or {})}
        if sim is not None:
            surroundings["SPECSWEEP_SIM"] = json.dumps(sim)
        with log.open("wb") as out:
            process = subprocess.Popen(argv, stdout=out, stderr=out, env=surroundings, start_new_session=True)
        server = Server(process, port, log, state)
        started.append(server)
        return server

    yield start
    for server in started:
        if server.process.poll() is None:
            os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait(10)


EAGLE3 = ("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "/models/my-eagle3")


@pytest.fixture
def eagle3() -> Callable[[int, int, int], tuple[str, ...]]:
    """Flags of an EAGLE3 arm: steps, topk, draft tokens."""

    def flags(steps: int, topk: int, draft_tokens: int) -> tuple[str, ...]:
        return (
            *EAGLE3,
            *("--speculative-num-steps", str(steps), "--speculative-eagle-topk", str(topk)),
            *("--speculative-num-draft-tokens", str(draft_tokens), "--attention-backend", "triton"),
        )

    return flags
