"""A controller as a process of its own, to be killed: `python controller.py {start,resume} DB SPACE [key=value ...]`.

Everything is the product's but Ray: owners live in this process, since a Ray of its own for every fault would take most
of the time (what Ray adds has its tests in test_ray.py). Options: ``kill=WHEN:WHAT[:NTH]`` kills this process with
SIGKILL before or after the NTH (default 1st) call WHAT of the store, or ``during`` the NTH call WHAT of a host's owner,
in the middle of it; ``lease=SECONDS``; ``reconnect=SECONDS`` of patience with an SSH host out of reach; ``ray=1`` uses
real Ray; ``silent=ROUNDS`` of heartbeats that an owner may leave unanswered; ``clock=FILE`` adds the seconds in FILE to
what `time.time` says here.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launchers.hosts import ssh
from storage.store import Store
from sweep import assembly, beside, runner, session
from sweep.bench import health
from sweep.config import Overrides, StudySpec, load_text
from sweep.errors import SweepError
from sweep.model import Phase
from sweep.pool import InlinePool, RayPool

# Whether this machine is busy is no question here, and these blocks are too small to be judged by.
health.LAG_P50_LIMIT_S = health.LAG_P99_LIMIT_S = 60.0
health.CPU_SHARE_LIMIT = 10.0
beside.NEIGHBOUR_LIMIT = 10.0


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Counter:
    """True at the n-th call."""

    def __init__(self, number: int) -> None:
        self._left = number

    def __call__(self) -> bool:
        self._left -= 1
        return self._left == 0


def kill_in_store(store: Store, when: str, what: str, due: Counter) -> None:
    """Make the store's method end this process at its n-th call, before anything is written or after all of it is."""
    real: Callable[..., Any] = getattr(store, what)

    def method(*args: Any, **more: Any) -> Any:
        hit = due()
        if hit and when == "before":
            die()
        result = real(*args, **more)
        if hit and when == "after":
            die()
        return result

    setattr(store, what, method)


class KillingPool(InlinePool):
    """Ends this process in the middle of an owner's n-th call of a method."""

    def __init__(self, what: str, due: Counter) -> None:
        super().__init__()
        self._what = what
        self._due = due

    async def call(self, host: str, method: str, *args: Any) -> Any:
        if method == self._what and self._due():
            if method == "launch":
                self._dying = asyncio.create_task(self._die_loading(host))
            else:
                # Closing a host takes a few milliseconds where nothing runs any more: there the call has just begun.
                asyncio.get_running_loop().call_later(0.0 if method == "close" else 0.05, die)
        return await super().call(host, method, *args)

    async def _die_loading(self, host: str) -> None:
        """When the server is there and its log moves, and not in what the owner does before."""
        while self._owners[host].heartbeat()["phase"] in (None, Phase.START, Phase.STOP):
            await asyncio.sleep(0.01)
        die()


class Echo:
    """Says what happens, for the log of a test that failed."""

    def __enter__(self) -> Echo:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def on_event(self, event: Any) -> None:
        if event["kind"] != "progress":
            say(str({key: value for key, value in event.items() if key != "at"}))


def main(command: str, db: str, space: str, *pairs: str) -> int:
    options = dict(pair.split("=", 1) for pair in pairs)
    assembly.LEASE_S = float(options.get("lease", 60.0))
    ssh.RECONNECT_S = float(options.get("reconnect", ssh.RECONNECT_S))
    runner.SILENT_ROUNDS = int(options.get("silent", runner.SILENT_ROUNDS))
    if "clock" in options:
        real, offset = time.time, Path(options["clock"])
        time.time = lambda: real() + float(offset.read_text())
    pool: Any = RayPool() if "ray" in options else InlinePool()
    try:
        with Store.open(f"sqlite:///{db}") as store:
            if command == "start":
                text = Path(space).read_text()
                spec = load_text(text, Overrides(), source=space)
                study = session.create(store, spec, text)
            else:
                study = store.study(None)
                spec = StudySpec.parse(study.spec)
            if "kill" in options:
                when, what, *nth = options["kill"].split(":")
                due = Counter(int(nth[0]) if nth else 1)
                if when == "during":
                    pool = KillingPool(what, due)
                else:
                    kill_in_store(store, when, what, due)
            state = session.run(store, study, spec, lambda books, settings: Echo(), pool)
    except SweepError as error:
        say(f"{type(error).__name__}: {error}")
        return error.exit_code
    say(f"state: {state}")
    return 0 if state == "finished" else 130


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
