"""The private folder of a Ray cluster of ours, and the end of what a killed controller left of an earlier one.

Ray's own processes notice a killed driver after seconds to a minute; some never do when it dies while they start.
Every process of ours carries the folder's path in its environment, and the folder says which controller made it: what
belongs to a dead one is ended before a new cluster starts. Names and command lines are never looked at.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

from launchers.locks import Holder, known_dead, start_time, this_holder

VARIABLE = "SPECSWEEP_RAY_HOME"
PREFIX = "sweep-ray-"
GONE_S = 5.0  # what SIGKILL gets to take effect

# Ray's sockets must stay under 107 characters, and its default folder belongs to whichever account used Ray first.
BASE = Path("/tmp") if Path("/tmp").is_dir() else Path(tempfile.gettempdir())


class RayHome:
    """One cluster's folder: ``path`` is ours alone (0700), ``temp`` is what Ray is given (it opens that to all)."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=BASE))
        self.temp = self.path / "r"
        (self.path / "owner.json").write_text(json.dumps(this_holder().as_dict()))

    def remove(self) -> None:
        """End what still runs of this cluster, then forget it."""
        end_processes(self.path)
        shutil.rmtree(self.path, ignore_errors=True)


def end_stale(base: Path = BASE) -> list[Path]:
    """End the clusters of this account whose controller is dead and remove their folders; returns these."""
    stale: list[Path] = []
    for path in sorted(base.glob(f"{PREFIX}*")):
        try:
            if path.stat().st_uid != os.getuid():
                continue
            holder = Holder.from_dict(json.loads((path / "owner.json").read_text()))
        except (OSError, ValueError, LookupError):
            continue  # being made or removed at this moment, or not ours
        if known_dead(holder):
            end_processes(path)
            shutil.rmtree(path, ignore_errors=True)
            stale.append(path)
    return stale


def end_processes(path: Path) -> list[int]:
    """SIGKILL every process that carries ``path`` in its environment, but us; returns what lives on after GONE_S."""
    deadline = time.monotonic() + GONE_S
    while left := carriers(path):
        if time.monotonic() > deadline:
            return left
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)  # a process may have forked before it died: look again
    return []


def carriers(path: Path) -> list[int]:
    """Live processes of this account with ``path`` as their cluster, this one left out."""
    wanted = f"{VARIABLE}={path}".encode()
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # gone, or of another account
        if wanted in environment and start_time(int(entry.name)) is not None:
            found.append(int(entry.name))
    return found
