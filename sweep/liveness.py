"""Requests failed: is the server dead, the path broken, or does it hang? The one place that decides."""

from __future__ import annotations

import time
from dataclasses import replace

from launchers.servers import HostServers, RunningServer
from sweep import diagnoses
from sweep.errors import HostError
from sweep.model import ArmConfig, BlockResult, Diagnosis, Phase
from sweep.readiness import LogFollower
from sweep.seams import Engine

DYING_S = 3.0  # from the first broken answers of a server whose scheduler died to the end of its main process


def why_ended(
    servers: HostServers,
    server: RunningServer,
    log: LogFollower,
    engine: Engine,
    arm: ArmConfig,
    phase: Phase,
    *,
    timed_out: bool,
) -> Diagnosis:
    """Why a server died or, where it lives, why it did not do its work in time. Never raises for what a host does."""
    try:
        state = servers.state(server)
        log.drain()
    except HostError as error:
        return diagnoses.infra(phase, str(error))
    if (outside := diagnoses.from_outside(state, phase)) is not None:
        return outside
    found = engine.diagnose(list(log.lines), exit_code=state.exit_code, phase=phase, timed_out=timed_out, arm=arm)
    return replace(found, log_path=server.log_path)


def why_failed(
    servers: HostServers,
    server: RunningServer,
    log: LogFollower,
    engine: Engine,
    arm: ArmConfig,
    phase: Phase,
    *,
    error: str,
    stalled: bool,
    losses: int,
) -> Diagnosis:
    """Why requests brought no answer that can be used. ``error``: the words of one of them; ``stalled``: no token came
    for the stall limit; ``losses``: ``HostServers.path_losses`` before they were sent.

    A server that is gone explains everything, then a path that broke; only after these is silence a hang.
    """
    deadline = time.monotonic() + (0.0 if stalled else DYING_S)
    try:
        while (alive := servers.state(server).alive) and servers.path_losses == losses and time.monotonic() < deadline:
            time.sleep(0.1)  # the end of a process on another machine is seen by looking, as in wait_ready
    except HostError as lost:
        return diagnoses.infra(phase, str(lost))
    if alive and servers.path_losses != losses:
        return diagnoses.path_lost(phase, error)
    if alive and not stalled:
        return diagnoses.requests_failed(phase, error)
    return why_ended(servers, server, log, engine, arm, phase, timed_out=alive)


def first_error(block: BlockResult) -> str:
    """The words of the block's first failed request."""
    return next((r.error for r in block.requests if r.error is not None), block.invalid or "no request was sent")
