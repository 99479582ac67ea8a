"""Requests brought nothing: a dead server, a broken path, a hang, or answers that are merely wrong."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from launchers.engines.sglang import SglangEngine
from launchers.host_values import RunningServer, ServerState
from sweep import liveness
from sweep.errors import HostError
from sweep.live_server import LONGEST_LINE, LiveServer
from sweep.model import BASELINE, Diagnosis, Phase, Verdict
from sweep.readiness import LogFollower

ALIVE = ServerState(True, None, None, None)
SERVER = RunningServer("1", "gpu", 1, 1, 30000, "m", "/run", 1, 0.0)


@dataclass
class Servers:
    """A host that says of its server what it is told to say."""

    state_now: ServerState = ALIVE
    log: list[bytes] = field(default_factory=list)
    path_losses: int = 0
    away: bool = False

    def state(self, server: RunningServer) -> ServerState:
        if self.away:
            raise HostError("gpu: no answer in 5 s")
        return self.state_now

    def read_log(self, server: RunningServer, offset: int) -> tuple[bytes, int]:
        data = self.log.pop(0) if self.log else b""
        return data, offset + len(data)


def judged(servers: Servers, *, stalled: bool = False, error: str = "http 500", losses: int = 0) -> Diagnosis:
    made: Any = servers
    log = LogFollower(made, SERVER, SglangEngine())
    return liveness.why_failed(
        made, SERVER, log, SglangEngine(), BASELINE, Phase.BENCHMARK, error=error, stalled=stalled, losses=losses
    )


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "DYING_S", 0.0)


def test_silence_of_a_healthy_server_is_a_hang() -> None:
    found = judged(Servers(), stalled=True, error="stalled: no token")
    assert (found.verdict, found.reason) == (Verdict.HUNG, "no_tokens")


def test_wrong_answers_of_a_healthy_server_are_no_hang() -> None:
    found = judged(Servers())
    assert (found.verdict, found.reason, found.evidence) == (
        Verdict.MEASUREMENT_INVALID,
        "requests_failed",
        "http 500",
    )


def test_a_path_that_broke_explains_lost_requests_and_silence() -> None:
    for stalled in (False, True):
        found = judged(Servers(path_losses=3), losses=2, stalled=stalled, error="disconnected")
        assert (found.verdict, found.reason) == (Verdict.INFRA_ERROR, "path_lost")
    assert judged(Servers(path_losses=2), losses=2).reason == "requests_failed", "broken before, not meanwhile"


def test_a_dead_server_explains_everything() -> None:
    line = b"torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
    found = judged(Servers(ServerState(False, -9, "exited", 1.0), [line], path_losses=1))
    assert (found.verdict, found.reason) == (Verdict.CRASHED, "illegal_access")


@pytest.mark.parametrize("reason", ["lease_expired", "released", "supervisor_lost"])
def test_an_end_from_outside_is_no_crash(reason: str) -> None:
    found = judged(Servers(ServerState(False, -9, reason, 1.0)))
    assert found.verdict is Verdict.INFRA_ERROR


def test_a_log_without_room_cannot_be_judged_by() -> None:
    found = judged(Servers(ServerState(False, -9, "exited", 1.0, log_dropped=512)))
    assert found.verdict is Verdict.INFRA_ERROR
    assert "512 bytes" in found.evidence


def test_a_host_out_of_reach() -> None:
    found = judged(Servers(away=True), stalled=True)
    assert (found.verdict, found.evidence) == (Verdict.INFRA_ERROR, "gpu: no answer in 5 s")


def test_a_crash_is_waited_for_when_connections_break(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler dies first, the main process a moment later."""
    monkeypatch.setattr(liveness, "DYING_S", 5.0)
    servers = Servers()
    asked = []

    def dying(server: RunningServer) -> ServerState:
        asked.append(server)
        return ALIVE if len(asked) < 3 else ServerState(False, -9, "exited", 1.0)

    servers.state = dying  # type: ignore[method-assign]  # the one thing that changes here
    assert judged(servers, error="disconnected").verdict is Verdict.CRASHED


def test_the_tail_of_a_log_whose_line_has_no_end() -> None:
    """It costs no time that counts, and a secret where it is cut stays unseen."""
    key = "0123456789abcdef0123456789abcdef"
    lines = ["." * (1 << 20), "x" * (LONGEST_LINE - 10) + key, f"api_key={key}"]
    running, log = SimpleNamespace(api_key=key), SimpleNamespace(lines=lines)
    server = LiveServer(cast(Any, running), cast(Any, SimpleNamespace(secret_env={})), cast(Any, log))
    begun = time.process_time()
    long, cut, whole = server.tail()
    assert time.process_time() - begun < 10.0
    assert (len(long), len(cut), whole) == (LONGEST_LINE, LONGEST_LINE - 10 + len("***"), "api_key=***")
    assert key[:4] not in cut
