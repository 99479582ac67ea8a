"""Who holds a study or a host: one process named for ever, and whether it still lives."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Holder:
    """One process. Machine, boot, pid and ``start_time`` (clock ticks since boot) together are never used again."""

    hostname: str
    user: str
    machine_id: str
    boot_id: str
    pid: int
    start_time: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Holder:
        return cls(**{name: value[name] for name in cls.__slots__})


@dataclass(frozen=True, slots=True)
class Owner:
    """What a host's lease says about its owner: the study, the controller, and the least epoch it asks for."""

    study: str
    controller: Holder
    epoch: int = 1

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Owner:
        return cls(value["study"], Holder.from_dict(value["controller"]), value["epoch"])

    def __str__(self) -> str:
        who = self.controller
        return f"study {self.study!r}, process {who.pid} of {who.user} on {who.hostname}"


def this_holder() -> Holder:
    """The process we are."""
    start = start_time(os.getpid())
    assert start is not None  # we are alive
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    return Holder(socket.gethostname(), user, _machine_id(), _boot_id(), os.getpid(), start)


def holder_alive(holder: Holder) -> bool:
    """Does it live? To be asked only on the holder's own machine (:func:`on_this_machine`); False after a reboot."""
    return holder.boot_id == _boot_id() and start_time(holder.pid) == holder.start_time


def on_this_machine(holder: Holder) -> bool:
    """Copies of a machine and containers of one image can share an id, so that the name has to be ours too."""
    return holder.machine_id == _machine_id() and holder.hostname == socket.gethostname()


def known_dead(holder: Holder) -> bool:
    """True where we can see that the holder is gone: its lease may be taken at once.

    Only a holder on this very machine can be seen; for one elsewhere the lease has to run out.
    """
    return on_this_machine(holder) and not holder_alive(holder)


def start_time(pid: int) -> int | None:
    """Start of a live process in clock ticks since boot (proc(5), stat, field 22); None where gone or a zombie."""
    try:
        return stat_start(Path(f"/proc/{pid}/stat").read_bytes())
    except OSError:
        return None


def stat_start(content: bytes) -> int | None:
    """The same from the content of a /proc/PID/stat, of whatever machine."""
    fields = content.rpartition(b")")[2].split()  # the name before it may hold spaces and brackets
    return int(fields[19]) if len(fields) > 19 and fields[0] not in (b"Z", b"X") else None


def _machine_id() -> str:
    try:
        return Path("/etc/machine-id").read_text().strip() or socket.gethostname()
    except OSError:
        return socket.gethostname()


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
