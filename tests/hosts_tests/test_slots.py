"""Slots of a host: owners whose GPUs differ work beside each other, those whose GPUs might be the same do not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hosts_helpers import Make, dead_holder, ended, gone, launch, log_until, ours

from launchers.hosts.local import LocalSettings, LocalTransport
from launchers.locks import Holder, Owner, this_holder
from launchers.servers import HostServers
from sweep.errors import BusyError


def here() -> LocalTransport:
    return LocalTransport(LocalSettings("here"))


@pytest.fixture
def living() -> Iterator[Holder]:
    """Another controller that lives."""
    process = subprocess.Popen(["sleep", "60"])
    start = int(Path(f"/proc/{process.pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    yield replace(this_holder(), pid=process.pid, start_time=start)
    process.kill()
    process.wait()


def slot(make: Make, *gpus: int, **more: Any) -> HostServers:
    servers = make(here(), slot=gpus or None, **more)
    servers.prepare()
    return servers


class TestWhoExcludesWhom:
    @pytest.mark.parametrize(
        ("held", "asked", "busy"),
        [
            ((0, 1), (2, 3), False),
            ((0, 1), (0, 1), True),
            ((0, 1), (1, 2), True),
            ((1,), (11,), False),
            ((0, 1), (), True),
            ((), (0, 1), True),
        ],
    )
    def test_two_controllers(
        self, make_servers: Make, living: Holder, held: tuple[int, ...], asked: tuple[int, ...], busy: bool
    ) -> None:
        first = slot(make_servers, *held, holder=living, study="first")
        if busy:
            with pytest.raises(BusyError, match=rf"held by study 'first', process {living.pid} of "):
                slot(make_servers, *asked)
        else:
            slot(make_servers, *asked)
        first.renew()

    def test_slots_of_one_controller(self, make_servers: Make) -> None:
        """Beside each other, and none of them mistaken for an earlier owner of the other's GPUs."""
        first, second = slot(make_servers, 0), slot(make_servers, 1)
        first.renew()
        second.renew()
        with pytest.raises(BusyError):
            slot(make_servers, 0, 1)
        slot(make_servers, 0, epoch=2)  # an owner that was lost: a new one of the same controller for the same place
        with pytest.raises(BusyError):
            first.renew()
        second.renew()

    def test_a_dead_controller_s_slots_are_taken_with_the_whole_host(self, make_servers: Make, tmp_path: Path) -> None:
        before = [slot(make_servers, gpu, holder=dead_holder(), study="s") for gpu in range(4)]
        servers = [each.start(launch(), str(number)) for number, each in enumerate(before)]
        whole = slot(make_servers)
        assert {found.launch for found in whole.reconcile()} <= {"0", "1", "2", "3"}
        assert all(gone(server.pid) for server in servers)
        for each in before:
            with pytest.raises(BusyError):
                each.renew()
        assert ours(tmp_path) == []

    def test_a_dead_controller_s_whole_host_is_taken_with_a_slot(self, make_servers: Make) -> None:
        before = slot(make_servers, holder=dead_holder())
        server = before.start(launch(), "1")
        log_until(before, server, b"ready")
        after = slot(make_servers, 2, 3)
        after.reconcile()
        assert ended(before, server).reason in ("released", "stopped")

    def test_a_slot_ends_nothing_of_its_neighbours(self, make_servers: Make) -> None:
        first, second = slot(make_servers, 0), slot(make_servers, 1)
        server = first.start(launch(), "1")
        log_until(first, server, b"ready")
        assert second.reconcile() == ()
        assert second.ps() == ()
        second.close()
        assert first.state(server).alive
        assert first.stop(server).clean


def test_a_folder_that_is_called_slots_is_no_slot(make_servers: Make, tmp_path: Path) -> None:
    servers = make_servers(here(), base_dir=str(tmp_path / "base" / "slots"))
    servers.prepare()
    assert not (tmp_path / "base" / "lock").exists()
    servers.renew()


def test_ports_are_apart(make_servers: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also where the first server does not listen yet; with so few ports, chance would give one twice."""
    slots = [slot(make_servers, gpu) for gpu in range(4)]
    for source in tmp_path.glob("base/*/slots/*/bin/specsweep_supervisor_*.py"):
        source.write_text(source.read_text().replace("PORTS = (20000, 32000)", "PORTS = (21000, 21010)  # few"))
    with ThreadPoolExecutor(4) as pool:
        servers = list(pool.map(lambda each: each.start(launch("--ready-after", "60"), "1"), slots))
    assert len({server.port for server in servers}) == 4
    assert all(21000 <= server.port < 21010 for server in servers)
    for each, server in zip(slots, servers, strict=True):
        assert each.stop(server, grace_s=0.2).clean


def test_ps_and_clean_see_the_slots(make_servers: Make, private_home: Path, tmp_path: Path) -> None:
    def sweep(*argv: str) -> Any:
        done = subprocess.run([sys.executable, "-m", "sweep", *argv], capture_output=True, text=True, timeout=90)
        assert done.returncode == 0, done
        return json.loads(done.stdout)

    slots = [slot(make_servers, gpu, holder=dead_holder(), base_dir=None) for gpu in range(2)]
    servers = [each.start(launch(), str(number)) for number, each in enumerate(slots)]
    listed = sweep("ps", "local", "--json")
    assert {found["launch"] for found in listed["found"]} == {"0", "1"}
    assert Owner.from_dict(listed["holder"]).study == "s"
    done = sweep("clean", "local", "--yes", "--json")
    assert len(done["ended"]) <= 2  # one whose lease was taken may have ended by itself before it was looked for
    assert all(gone(server.pid) for server in servers)
    assert ours(tmp_path) == []
