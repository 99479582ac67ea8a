"""What owning hosts costs: noticing a ready server, verifying a stop, and sixteen hosts beside sixteen bare actors.

    python benchmarks/hosts.py [--hosts 16] [--repeats 8] [--window 20] [--json]

``ready_noticed_s``: from the ready line in the log on the host to the end of the wait for it. ``stop_verified_s``: from
the end of the server's own process to the report that nothing is left. Both through a real owner on this machine and on
simulated servers; medians and worst of ``--repeats``. ``cpu_share`` (of one core) and ``pss_mib``: this process, Ray
and its actors during ``--window`` seconds without load, every host with a server that idles, heartbeats and leases
running; less the same with as many Ray actors that do nothing but answer. What runs on the GPU host itself is beside
it: one supervisor a server. Prints a table; with ``--json`` one object last.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from launchers.hosts.local import LocalSettings
from launchers.locks import Owner, start_time, this_holder
from sweep.model import BASELINE
from sweep.owner import HostOwner
from sweep.pool import RayPool
from sweep.ray_home import carriers
from sweep.reports import LaunchRequest, OwnerSettings

LIMITS = {"ready_noticed_s": 0.3, "stop_verified_s": 1.0, "cpu_share": 0.25, "pss_mib": 400.0}
HEARTBEAT_S = 2.0
TICKS = os.sysconf("SC_CLK_TCK")


def settings(name: str, folder: Path) -> OwnerSettings:
    return OwnerSettings(
        host=name,
        kind="local",
        transport=LocalSettings(name, base_dir=str(folder / name), gpus=(0,)),
        python=sys.executable,
        activate=None,
        base_dir=str(folder / name),
        gpus=(0,),
        engine="simulated",
        engine_args={"profile": "tiny"},
        owner=Owner("hosts", this_holder(), 1),
    )


def request(launch_id: str) -> LaunchRequest:
    args = {"attention-backend": "triton", "cuda-graph-bs-decode": (1, 2), "max-running-requests": 2}
    return LaunchRequest(launch_id, BASELINE, {"path": "some/model"}, {}, args, {}, gpus=(0,))


# ---------------------------------------------------------------------------------------------- one server's life


class Watch(threading.Thread):
    """Notes when the ready line reached the log, and later when the server's process was gone."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder = folder
        self.ready_at = self.gone_at = 0.0
        self.pid = 0

    def run(self) -> None:
        while not self.ready_at:
            for log in self.folder.glob("*/*/runs/*/server.log"):
                if b"fired up and ready to roll" in log.read_bytes():
                    self.ready_at = time.monotonic()
                    self.pid = json.loads((log.parent / "state.json").read_text())["server"]["pid"]
            time.sleep(0.005)  # what is timed is another process: it is seen by looking
        while start_time(self.pid) is not None:
            time.sleep(0.005)  # what is timed is another process: it is seen by looking
        self.gone_at = time.monotonic()


def lives(folder: Path, repeats: int) -> tuple[list[float], list[float]]:
    """(seconds until a ready server was noticed, seconds from its end to the verified stop), one of each per launch."""
    noticed, verified = [], []
    for number in range(repeats):
        place = folder / f"life{number}"
        owner = HostOwner(settings("gpu", place))
        prepared = owner.prepare()
        assert prepared.error is None, prepared.error
        watch = Watch(place)
        watch.start()
        report = owner.launch(request(str(number)))
        ready = time.monotonic()
        assert report.ready, report.diagnosis
        noticed.append(ready - watch.ready_at)
        stopped = owner.stop(str(number))
        done = time.monotonic()
        assert stopped.report.clean, stopped.report
        watch.join(5)
        verified.append(done - watch.gone_at)
        owner.close()
    return noticed, verified


# ---------------------------------------------------------------------------------------------- many hosts


def cpu_s(pids: Iterable[int]) -> float:
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def pss_mib(pids: Iterable[int]) -> float:
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
    return total / 1024


async def window(pool: RayPool, names: list[str], seconds: float) -> tuple[float, float]:
    """(share of a core, MiB) of this process and everything of its Ray, while heartbeats go round."""
    assert pool._home is not None
    answers = await asyncio.gather(*(pool.call(name, "heartbeat") for name in names))
    assert all(isinstance(answer, dict) for answer in answers), answers
    ours = [os.getpid(), *carriers(pool._home.path)]
    begun, before = time.monotonic(), cpu_s(ours)
    while time.monotonic() < begun + seconds:
        await asyncio.gather(*(pool.call(name, "heartbeat") for name in names))
        await asyncio.sleep(HEARTBEAT_S)
    return (cpu_s(ours) - before) / (time.monotonic() - begun), pss_mib(ours)


def bare(hosts: int, seconds: float) -> tuple[float, float]:
    """As many actors that do nothing, on a cluster started alike."""
    pool = RayPool()
    pool.open({})
    import ray  # only now: it reads its environment when it is imported

    class Bare:
        """An actor that does nothing."""

        def heartbeat(self) -> dict[str, Any]:
            return {}

    actor = ray.remote(Bare)
    names = [f"h{i}" for i in range(hosts)]
    for name in names:
        pool._actors[name] = actor.options(num_cpus=0, num_gpus=0, max_concurrency=8).remote()

    async def work() -> tuple[float, float]:
        return await window(pool, names, seconds)

    try:
        return asyncio.run(work())
    finally:
        pool.close()


def owned(hosts: int, seconds: float, folder: Path) -> tuple[float, float, float, float]:
    """The same with owners, each with an idle server; then what the supervisors took (share of a core, MiB)."""
    names = [f"h{i}" for i in range(hosts)]
    pool = RayPool()
    pool.open({name: settings(name, folder) for name in names})

    async def work() -> tuple[float, float, float, float]:
        for name in names:
            prepared = await pool.call(name, "prepare")
            assert prepared.error is None, prepared.error
        for name in names:  # one after another: they share this machine
            report = await pool.call(name, "launch", request("1"))
            assert report.ready, report.diagnosis
        records = [json.loads(path.read_text()) for path in folder.glob("*/*/runs/*/state.json")]
        guards = [record["supervisor"]["pid"] for record in records]
        await window(pool, names, 60)  # a supervisor looks more often during a server's first minute
        guard_begun, guard_before = time.monotonic(), cpu_s(guards)
        cpu, pss = await window(pool, names, seconds)
        guard_cpu = (cpu_s(guards) - guard_before) / (time.monotonic() - guard_begun)
        guard_pss = pss_mib(guards)
        await asyncio.gather(*(pool.call(name, "close") for name in names))
        return cpu, pss, guard_cpu, guard_pss

    try:
        return asyncio.run(work())
    finally:
        pool.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--window", type=float, default=20.0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hosts-") as name:
        folder = Path(name)
        os.environ["HOME"] = name
        noticed, verified = lives(folder / "lives", args.repeats)
        # A process each: Ray keeps what it read of its environment.
        with get_context("spawn").Pool(1, maxtasksperchild=1) as processes:
            idle_cpu, idle_pss = processes.apply(bare, (args.hosts, args.window))
            cpu, pss, guard_cpu, guard_pss = processes.apply(owned, (args.hosts, args.window, folder / "many"))
    result: dict[str, Any] = {
        "hosts": args.hosts,
        "ready_noticed_s": statistics.median(noticed),
        "ready_noticed_worst_s": max(noticed),
        "stop_verified_s": statistics.median(verified),
        "stop_verified_worst_s": max(verified),
        "cpu_share": cpu - idle_cpu,
        "pss_mib": pss - idle_pss,
        "bare_cpu_share": idle_cpu,
        "bare_pss_mib": idle_pss,
        "supervisor_cpu_share_each": guard_cpu / args.hosts,
        "supervisor_pss_mib_each": guard_pss / args.hosts,
    }
    result["within_limits"] = all(result[key] <= limit for key, limit in LIMITS.items())
    lines = [
        f"{key:28}{value:10.3f}" + (f"   limit {LIMITS[key]:g}" if key in LIMITS else "")
        for key, value in result.items()
    ]
    sys.stdout.write("\n".join([*lines, *([json.dumps(result)] if args.json else [])]) + "\n")


if __name__ == "__main__":
    main()
