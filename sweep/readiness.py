"""Waiting for a server by its progress, not by the clock alone.

A phase may take as long as its log keeps moving; a phase whose log stands still for longer than its stall limit has
timed out. A step known to be long and silent (kernel compilation) is given the long limit.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from launchers.servers import HostServers, RunningServer
from sweep.diagnoses import cancelled as cancelled_in
from sweep.diagnoses import from_outside
from sweep.model import ArmConfig, Diagnosis, Phase
from sweep.seams import Engine, LogState

MAX_READS = 128  # of one drain, at 1 MiB each: twice what a host keeps, so that a flood cannot hold us for ever
POLL_S = 0.1  # a ready server is noticed within this time plus one read


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds. ``stall_s``: no new log line while loading; ``silent_s``: the same for steps known to be long and
    silent; ``warmup_s``: from the ready line to a ready answer; ``launch_s``: everything together."""

    stall_s: float = 300.0
    silent_s: float = 2400.0
    warmup_s: float = 120.0
    launch_s: float = 5400.0


class LogFollower:
    """Reads a server's log as it grows and keeps what the engine makes of it, and the last 4,000 lines."""

    def __init__(self, servers: HostServers, server: RunningServer, engine: Engine) -> None:
        self._servers = servers
        self._server = server
        self._offset = 0
        self._rest = b""
        self._feed = engine.log_state()
        self.state = LogState()
        self.lines: deque[str] = deque(maxlen=4000)
        self.moved_at = time.monotonic()

    def drain(self) -> None:
        """Take in everything written since the last call. Raises HostError when the host is out of reach."""
        for _ in range(MAX_READS):
            data, self._offset = self._servers.read_log(self._server, self._offset)
            if not data:
                return
            self._take(data)

    def _take(self, data: bytes) -> None:
        self.moved_at = time.monotonic()
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > 1 << 20:  # a server that never ends its line must not fill our memory
            whole, self._rest = [*whole, self._rest], b""
        for raw in whole:
            line = raw.decode("utf-8", errors="replace").rstrip("\r")
            self.lines.append(line)
            self.state = self._feed(line)


def wait_ready(
    log: LogFollower,
    servers: HostServers,
    server: RunningServer,
    engine: Engine,
    arm: ArmConfig,
    deadlines: Deadlines,
    *,
    cancelled: Callable[[], bool],
    note: Callable[[Phase], None],
) -> tuple[dict[str, float], Diagnosis | None]:
    """Until the ready line: (seconds spent per phase, None), or the diagnosis of why it will not come."""
    begun = entered = time.monotonic()
    phases: dict[str, float] = {}
    phase = Phase.START
    while True:
        state = servers.state(server)
        log.drain()
        now = time.monotonic()
        if log.state.phase != phase or log.state.ready:
            phases[phase.value] = phases.get(phase.value, 0.0) + now - entered
            phase, entered = log.state.phase, now
            note(phase)
        if log.state.ready:
            return phases, None
        if cancelled():
            return phases, cancelled_in(phase)
        limit = deadlines.silent_s if log.state.slow_ok else deadlines.stall_s
        late = now - begun > deadlines.launch_s and not log.state.slow_ok
        stalled = late or now - log.moved_at > limit or state.log_dropped > 0
        if not state.alive or log.state.fatal or stalled:
            if not state.alive:
                time.sleep(POLL_S)  # the last lines may still be on their way to the file
                log.drain()
            if (outside := from_outside(state, phase)) is not None:
                return phases, outside
            found = engine.diagnose(
                list(log.lines),
                exit_code=state.exit_code,
                phase=phase,
                timed_out=state.alive and not log.state.fatal,
                arm=arm,
            )
            return phases, replace(found, log_path=server.log_path)
        time.sleep(POLL_S)  # a file on a host: SFTP has nothing that tells when it grows
