"""nvidia-smi's answers as values, and a sampler of clocks, temperature, power and throttling.

Fields and reasons as in ``nvidia-smi --help-query-gpu`` and nvml.h (nvmlClocksEventReasons). Where a driver does not
know a value it answers ``[N/A]`` or ``[Not Supported]``; that is None here, 0 for memory.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sweep.errors import HostError
from sweep.model import Gpu, GpuProcess, GpuTelemetry
from sweep.seams import Completed

GPU_OPTION = "--query-gpu=index,uuid,name,memory.total,memory.used,driver_version"
APPS_OPTION = "--query-compute-apps=gpu_uuid,pid,used_memory"
FORMAT_OPTION = "--format=csv,noheader,nounits"
_TELEMETRY = "--query-gpu=uuid,clocks.sm,temperature.gpu,power.draw,{}"
_REASON_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")  # newer and older drivers

GPU_IDLE = 0x1
REASONS = {
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}


def _rows(text: str, columns: int) -> list[list[str]]:
    rows = [[field.strip() for field in line.split(",")] for line in text.splitlines() if line.strip()]
    return [row for row in rows if len(row) == columns]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def parse_gpus(text: str) -> tuple[tuple[Gpu, ...], str | None]:
    """GPUs by index and the driver's version, from the answer to ``GPU_OPTION``."""
    rows = _rows(text, 6)
    gpus = [
        Gpu(int(index), uuid, name, int(_number(total) or 0), int(_number(used) or 0))
        for index, uuid, name, total, used, _ in rows
    ]
    return tuple(sorted(gpus, key=lambda gpu: gpu.index)), rows[0][5] if rows else None


def parse_processes(text: str, who: Mapping[str, Mapping[str, Any]]) -> tuple[GpuProcess, ...]:
    """The compute list, from the answer to ``APPS_OPTION``; ``who``: user, comm and ours by pid, from the host."""
    found = []
    for uuid, pid, memory in _rows(text, 3):
        if pid.isdigit():
            known = who.get(pid, {})
            mib = int(_number(memory) or 0)
            found.append(GpuProcess(uuid, int(pid), mib, known.get("user"), known.get("comm"), bool(known.get("ours"))))
    return tuple(found)


def reasons(text: str) -> tuple[str, ...]:
    """Names of the active reasons other than idle in a hexadecimal mask such as ``0x0000000000000004``."""
    try:
        mask = int(text, 16)
    except ValueError:
        return ()
    names = [name for bit, name in REASONS.items() if mask & bit]
    unknown = mask & ~(GPU_IDLE | sum(REASONS))
    return (*names, *([f"reason_{unknown:#x}"] if unknown else []))


class Telemetry:
    """Asks nvidia-smi about once per ``interval_s`` in a thread of its own, between :meth:`start` and :meth:`stop`.

    ``uuids``: the GPUs to report; with none of them nothing is asked at all.
    """

    def __init__(
        self, ask: Callable[[Sequence[str]], Completed], uuids: Sequence[str], interval_s: float = 1.0
    ) -> None:
        self._ask = ask
        self._uuids = tuple(uuids)
        self._interval_s = interval_s
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._samples: list[list[str]] = []

    def start(self) -> None:
        if self._uuids and self._thread is None:
            self._over.clear()
            self._samples = []
            self._thread = threading.Thread(target=self._sample, name="gpu-telemetry", daemon=True)
            self._thread.start()

    def _sample(self) -> None:
        fields = list(_REASON_FIELDS)
        while fields:
            try:
                answer = self._ask((_TELEMETRY.format(fields[0]), FORMAT_OPTION))
            except HostError:  # telemetry is not worth a block; the block itself will say that the host is gone
                answer = Completed(0, b"", b"")
            if answer.exit_code != 0:
                fields.pop(0)
                continue
            self._samples += _rows(answer.stdout.decode("utf-8", "replace"), 5)
            if self._over.wait(self._interval_s):
                return

    def stop(self) -> tuple[GpuTelemetry, ...]:
        """Medians since :meth:`start` per GPU, and every throttle reason that was active at any time."""
        if self._thread is None:
            return ()
        self._over.set()
        self._thread.join(30)
        self._thread = None
        return tuple(self._summary(uuid, [row for row in self._samples if row[0] == uuid]) for uuid in self._uuids)

    @staticmethod
    def _summary(uuid: str, rows: list[list[str]]) -> GpuTelemetry:
        def median(column: int) -> float | None:
            values = [value for row in rows if (value := _number(row[column])) is not None]
            return statistics.median(values) if values else None

        seen = {name: None for row in rows for name in reasons(row[4])}
        return GpuTelemetry(uuid, median(1), median(2), median(3), tuple(seen))
