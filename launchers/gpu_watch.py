"""One host's GPUs over time: what is in use, by whom, and whether it is given back."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from launchers.gpus import Telemetry
from launchers.host_values import RunningServer
from launchers.remote import Remote
from sweep.model import Gpu, GpuProcess
from sweep.seams import Transport

MEMORY_SLACK_MIB = 256
MEMORY_WAIT_S = 30.0
FRESH_S = 5.0


class GpuWatch:
    """Asks ``query`` (an nvidia-smi) on the host."""

    def __init__(self, transport: Transport, remote: Remote, query: Sequence[str]) -> None:
        self._transport = transport
        self._remote = remote
        self._query = query
        self._asked_at = float("-inf")
        self._seen: tuple[Gpu, ...] = ()
        self._program: list[str] = []  # argv of nvidia-smi, as of the last time

    def ask(self) -> tuple[tuple[Gpu, ...], tuple[GpuProcess, ...], str | None]:
        """GPUs, compute list and driver version as they are now; nothing at all on a host without nvidia-smi."""
        self._seen, processes, driver, self._program = self._remote.gpus(self._query)
        self._asked_at = time.monotonic()
        return self._seen, processes, driver

    def memory(self, wanted: Collection[int]) -> dict[str, int]:
        """MiB in use per uuid of the GPUs ``wanted``, not older than five seconds."""
        if not wanted:
            return {}
        if time.monotonic() - self._asked_at > FRESH_S:
            self.ask()
        return {gpu.uuid: gpu.memory_used_mib for gpu in self._seen if gpu.index in wanted}

    def foreign(self, wanted: Collection[int]) -> tuple[GpuProcess, ...]:
        """Processes on these GPUs that are not ours."""
        gpus, processes, _ = self.ask()
        uuids = {gpu.uuid for gpu in gpus if gpu.index in wanted}
        return tuple(p for p in processes if p.gpu_uuid in uuids and not p.ours)

    def room(self, wanted: Collection[int]) -> tuple[int, int]:
        """(most MiB that processes of ours hold on one of the GPUs, by pid; least MiB free on one of them)."""
        gpus, processes, _ = self.ask()
        mine = [gpu for gpu in gpus if gpu.index in wanted]
        held = [sum(p.memory_mib for p in processes if p.ours and p.gpu_uuid == gpu.uuid) for gpu in mine]
        return max(held, default=0), min((gpu.memory_total_mib - gpu.memory_used_mib for gpu in mine), default=0)

    def freed(self, server: RunningServer, pids: Collection[int], *, shared: bool) -> tuple[tuple[int, ...], int]:
        """Wait until a server that has ended has given its GPUs back, for MEMORY_WAIT_S at most.

        Returns what is left: ``pids`` still in the compute list, and MiB in use above what was before the start
        (0 where the GPUs are ``shared`` with another server of ours, whose use cannot be told apart).
        """
        if not server.gpus:
            return (), 0
        deadline = time.monotonic() + MEMORY_WAIT_S
        pause = 0.1
        while True:
            gpus, processes, _ = self.ask()
            listed = tuple(p.pid for p in processes if p.pid in pids)
            before = server.memory_before
            excess = [gpu.memory_used_mib - before[gpu.uuid] for gpu in gpus if gpu.uuid in before]
            memory = 0 if shared else max([0, *excess])
            if (not listed and memory <= MEMORY_SLACK_MIB) or time.monotonic() > deadline:
                return listed, memory
            time.sleep(pause)  # the driver gives memory back some time after the process has gone
            pause = min(pause * 2, 1.0)

    def telemetry(self, wanted: Collection[int], interval_s: float) -> Telemetry:
        """A sampler for the GPUs ``wanted``, as last seen."""
        uuids = [gpu.uuid for gpu in self._seen if gpu.index in wanted]
        command = self._program
        return Telemetry(lambda options: self._transport.run([*command, *options]), uuids, interval_s)
