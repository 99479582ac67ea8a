"""What the tests of this folder share."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launchers.locks import Holder, this_holder
from launchers.servers import HostServers, RunningServer, ServerState
from sweep.model import LaunchSpec

SERVER = Path(__file__).parent / "server.py"
Make = Callable[..., HostServers]


def launch(*options: str, **more: Any) -> LaunchSpec:
    """A launch of the small test server with these options."""
    return LaunchSpec(argv=("@PYTHON@", str(SERVER), "--port", "@PORT@", *options), **more)


def wait_for(condition: Callable[[], Any], timeout_s: float = 10.0) -> Any:
    """The condition's first true value."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.03)
    return value


def log_until(servers: HostServers, server: RunningServer, word: bytes, timeout_s: float = 10.0) -> bytes:
    """The log up to and including the first read that holds ``word``."""
    text, offset, deadline = b"", 0, time.monotonic() + timeout_s
    while word not in text:
        assert time.monotonic() < deadline, text
        data, offset = servers.read_log(server, offset)
        text += data
        if not data:
            time.sleep(0.05)
    return text


def ended(servers: HostServers, server: RunningServer, timeout_s: float = 10.0) -> ServerState:
    """The state once the server is no longer alive."""
    state: ServerState = wait_for(lambda: None if (s := servers.state(server)).alive else s, timeout_s)
    return state


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except OSError:
        return True


def ours(folder: Path) -> list[int]:
    """Pids of live processes whose environment holds our marker with a base folder below ``folder``."""
    wanted = f"SPECSWEEP_BASE={folder}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if wanted in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def dead_holder() -> Holder:
    """A process of this machine that has ended."""
    me = this_holder()
    return Holder(me.hostname, me.user, me.machine_id, me.boot_id, me.pid, me.start_time - 1)


def keygen(path: Path, *options: str) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", *(options or ("-N", "")), "-f", str(path)], check=True)
    return path
