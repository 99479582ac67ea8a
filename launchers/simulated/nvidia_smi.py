"""A stand-in for nvidia-smi over the simulated servers' memory; standard library only, any Python >= 3.8.

::

    python nvidia_smi.py --state DIR [--profile P.json] [--gpus N] --query-gpu=index,... --format=csv,noheader,nounits
    python nvidia_smi.py --state DIR ... --query-compute-apps=gpu_uuid,pid,used_memory --format=csv,noheader,nounits
    python nvidia_smi.py --state DIR ... -L

Simulated servers register their processes as ``DIR/PID.json`` (see ``GpuRegistry`` in server.py); an entry counts while
that very process lives. ``--gpus`` is remembered in the folder, so that servers know how many GPUs their host has.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

IDLE = {"temperature": 34, "sm_clock": 1980, "throttle": False, "power": 76.0}
BUSY = {"temperature": 60, "sm_clock": 1980, "throttle": False, "power": 430.0}


def process_start(pid: int) -> str:
    """The kernel's start time of a process (field 22 of its stat); empty when there is none or it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def living(state: Path) -> list[dict[str, Any]]:
    """Entries of processes that still run; files of dead ones are removed."""
    entries = []
    for path in sorted(state.glob("*.json")):
        if not path.stem.isdigit():
            continue
        try:
            entry = json.loads(path.read_text())
            alive = process_start(int(entry["pid"])) == entry["start"] != ""
        except (OSError, ValueError, KeyError):
            continue  # written at this very moment, or gone
        if alive:
            entries.append(entry)
        else:
            path.unlink(missing_ok=True)
    return entries


def gpu_uuid(state: Path, index: int) -> str:
    """Stable per state folder, which stands for a machine."""
    digits = hashlib.sha1(f"{state.resolve()}/{index}".encode()).hexdigest()
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:32]}"


def gpu_row(state: Path, gpu: dict[str, Any], index: int, entries: list[dict[str, Any]]) -> dict[str, Any]:
    """One GPU: every field that can be asked for (the newer and the older names)."""
    mine = [entry for entry in entries if str(index) in entry["gpus"]]
    shown = dict(BUSY if mine else IDLE)
    for entry in mine:
        shown.update(entry.get("telemetry") or {})
    used = sum(int(entry["gpus"][str(index)]) for entry in mine)
    reasons = "0x0000000000000020" if shown["throttle"] else "0x0000000000000000" if mine else "0x0000000000000001"
    return {
        "index": index,
        "uuid": gpu_uuid(state, index),
        "gpu_uuid": gpu_uuid(state, index),
        "name": gpu["name"],
        "gpu_name": gpu["name"],
        "memory.total": gpu["memory_total_mib"],
        "memory.used": used,
        "memory.free": gpu["memory_total_mib"] - used,
        "driver_version": gpu.get("driver_version", "580.159.04"),
        "utilization.gpu": 90 if mine else 0,
        "clocks.sm": shown["sm_clock"],
        "clocks.current.sm": shown["sm_clock"],
        "clocks.max.sm": 1980,
        "temperature.gpu": shown["temperature"],
        "power.draw": shown["power"],
        "clocks_throttle_reasons.active": reasons,
        "clocks_event_reasons.active": reasons,
        "pstate": "P0",
        "pci.bus_id": "00000000:%02X:00.0" % (index + 1),
    }


UNITS = {
    "memory.total": "MiB", "memory.used": "MiB", "memory.free": "MiB", "used_memory": "MiB", "used_gpu_memory": "MiB",
    "clocks.sm": "MHz", "clocks.current.sm": "MHz", "clocks.max.sm": "MHz", "power.draw": "W", "utilization.gpu": "%",
}  # fmt: skip


def write_csv(fields: list[str], rows: list[dict[str, Any]], form: str) -> int:
    """Print rows as nvidia-smi does; 2 with its words for a field it does not know."""
    options = form.split(",")
    for field in fields:
        if rows and field not in rows[0]:
            sys.stdout.write(f'Field "{field}" is not a valid field to query.\n\n')
            return 2
    if "noheader" not in options:
        heads = [f + (f" [{UNITS[f]}]" if f in UNITS else "") for f in fields]
        sys.stdout.write(", ".join(heads) + "\n")
    for row in rows:
        cells = []
        for field in fields:
            value = row[field]
            text = f"{value:.2f}" if isinstance(value, float) else str(value)
            cells.append(text if "nounits" in options or field not in UNITS else text + " " + UNITS[field])
        sys.stdout.write(", ".join(cells) + "\n")
    return 0


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="nvidia-smi", allow_abbrev=False)
    parser.add_argument("--state", "--gpu-state", required=True)
    parser.add_argument("--profile")
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--query-gpu")
    parser.add_argument("--query-compute-apps")
    parser.add_argument("--format", default="csv")
    parser.add_argument("-i", "--id")
    parser.add_argument("-L", "--list-gpus", action="store_true")
    options = parser.parse_args(argv)
    state = Path(options.state).expanduser()
    state.mkdir(parents=True, exist_ok=True)
    gpu: dict[str, Any] = {"name": "NVIDIA H200", "memory_total_mib": 143771, "count": 1}
    if options.profile:
        gpu.update(json.loads(Path(options.profile).read_text(encoding="utf-8"))["gpu"])
    known = state / "gpus"
    if options.gpus:
        partial = state / ".gpus.tmp"
        partial.write_text(str(options.gpus))
        partial.replace(known)
    count = options.gpus or (int(known.read_text()) if known.exists() else int(gpu["count"]))
    entries = living(state)
    wanted = {int(part) for part in options.id.split(",")} if options.id else set(range(count))
    rows = [gpu_row(state, gpu, index, entries) for index in range(count) if index in wanted]
    if options.query_gpu:
        return write_csv(options.query_gpu.split(","), rows, options.format)
    if options.query_compute_apps:
        uuids = {str(row["index"]): row for row in rows}
        apps = [
            {
                "gpu_uuid": uuids[index]["uuid"],
                "gpu_name": uuids[index]["name"],
                "pid": entry["pid"],
                "process_name": entry["name"],
                "name": entry["name"],
                "used_memory": mib,
                "used_gpu_memory": mib,
            }
            for entry in entries
            for index, mib in sorted(entry["gpus"].items())
            if index in uuids
        ]
        return write_csv(options.query_compute_apps.split(","), apps, options.format)
    for row in rows:
        sys.stdout.write("GPU {index}: {name} (UUID: {uuid})\n".format(**row))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
