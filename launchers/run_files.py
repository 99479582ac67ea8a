"""Reads what the supervisor writes into a launch's folder: its record and the server's log."""

from __future__ import annotations

import json
import time
from typing import Any

from launchers import supervisor
from launchers.host_values import RunningServer, ServerState
from launchers.locks import stat_start
from sweep.errors import HostError
from sweep.seams import Transport

READ_LIMIT = 1 << 20
EXIT_NOTICE_S = 1.0  # how long the supervisor may take to write down the exit of a server that we see is gone


def state(transport: Transport, server: RunningServer) -> ServerState:
    """Alive by the host's process table; the end as the supervisor wrote it down."""
    record = _record(transport, server)
    alive = not _over(record) and _lives(transport, server)
    deadline = time.monotonic() + EXIT_NOTICE_S
    while not alive and not _over(record) and time.monotonic() < deadline:
        time.sleep(0.05)  # the supervisor replaces a file; over SFTP that is seen by looking
        record = _record(transport, server)
    reason = None
    if not alive:
        reason = record["reason"] or ("exited" if record["exit_code"] is not None else "supervisor_lost")
    pids = tuple(process["pid"] for process in record["processes"])
    return ServerState(alive, record["exit_code"], reason, record["ended"], pids, record["log_dropped"])


def read_log(transport: Transport, server: RunningServer, offset: int) -> tuple[bytes, int]:
    """The log from ``offset`` on, at most READ_LIMIT bytes, and the next offset; one line for bytes not kept."""
    number, within = divmod(offset, supervisor.SEGMENT)
    try:
        data = transport.read(server.log_path + (f".{number}" if number else ""), offset=within, limit=READ_LIMIT)
    except FileNotFoundError:
        first = _record(transport, server)["log_first"]
        if first <= offset:
            return b"", offset
        return f"\n[specsweep: {first - offset} bytes of this log were not kept]\n".encode(), first
    return data, offset + len(data)


def _over(record: dict[str, Any]) -> bool:
    return record["exit_code"] is not None or record["finished"]


def _record(transport: Transport, server: RunningServer) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(transport.read(f"{server.run_dir}/state.json"))
    except FileNotFoundError as error:
        raise HostError(f"{server.host}: the record of launch {server.launch_id} is gone: {error}") from error
    return record


def _lives(transport: Transport, server: RunningServer) -> bool:
    try:
        return stat_start(transport.read(f"/proc/{server.pid}/stat")) == server.start_time
    except FileNotFoundError:
        return False
