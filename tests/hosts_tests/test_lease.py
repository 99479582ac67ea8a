"""Who may use a host: the lock, the lease, and owners that were replaced."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hosts_helpers import Make, dead_holder, ended, gone, launch, log_until, ours, wait_for

from launchers.hosts.local import LocalSettings, LocalTransport
from launchers.locks import Holder, Owner, holder_alive, known_dead, this_holder
from launchers.servers import HostServers
from sweep.errors import BusyError


def here() -> LocalTransport:
    return LocalTransport(LocalSettings("here"))


def elsewhere() -> Holder:
    """A controller on another machine."""
    return Holder("far", "ann", "other-machine", "other-boot", 4711, 99)


def other_process() -> Any:
    return subprocess.Popen(["sleep", "60"])


def holder_of(process: Any) -> Holder:
    start = int(Path(f"/proc/{process.pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    return replace(this_holder(), pid=process.pid, start_time=start)


class TestHolders:
    def test_a_holder_survives_json(self) -> None:
        owner = Owner("study", this_holder(), 7)
        assert Owner.from_dict(json.loads(json.dumps(owner.as_dict()))) == owner

    def test_alive_and_dead(self) -> None:
        assert holder_alive(this_holder())
        assert not holder_alive(dead_holder()), "another process with our pid"
        assert not holder_alive(replace(this_holder(), boot_id="before the reboot"))
        process = other_process()
        holder = holder_of(process)
        assert holder_alive(holder)
        process.kill()
        wait_for(lambda: not holder_alive(holder), 5)  # a zombie is dead
        process.wait()

    def test_only_what_can_be_seen_is_known_dead(self) -> None:
        process = other_process()
        try:
            assert known_dead(dead_holder())
            assert not known_dead(holder_of(process))
            assert not known_dead(elsewhere())
            assert not known_dead(replace(dead_holder(), machine_id="other"))
            copy = replace(dead_holder(), hostname="copy")  # of a machine, or a container, with one id for all
            assert not known_dead(copy)
            assert not known_dead(replace(copy, boot_id="another"))
        finally:
            process.kill()
            process.wait()


class TestTaking:
    def test_a_living_holder_keeps_the_host(self, make_servers: Make) -> None:
        process = other_process()
        try:
            first = make_servers(here(), holder=holder_of(process), study="first")
            first.prepare()
            second = make_servers(here(), study="second")
            with pytest.raises(
                BusyError, match=rf"held by study 'first', process {process.pid} of .*`sweep stop first`"
            ):
                second.prepare()
            assert second.holder() == Owner("first", holder_of(process))
        finally:
            process.kill()
            process.wait()
        second.prepare()  # now it is dead, on this machine: at once
        assert second.holder() == Owner("second", this_holder())

    def test_a_holder_elsewhere_keeps_it_until_the_lease_runs_out(self, make_servers: Make) -> None:
        first = make_servers(here(), holder=elsewhere(), study="first", lease_s=1.5)
        first.prepare()
        second = make_servers(here(), study="second")
        with pytest.raises(BusyError, match=r"on far\..*runs out in [12] s"):
            second.prepare()
        time.sleep(1.6)
        second.prepare()

    def test_one_elsewhere_that_was_seen_to_be_dead_is_replaced_at_once(self, make_servers: Make) -> None:
        """The owner lives on a node of a cluster; the controller's own machine has seen the former controller dead."""
        make_servers(here(), holder=elsewhere(), study="first").prepare()
        with pytest.raises(BusyError):
            make_servers(here(), replaces=replace(elsewhere(), pid=1)).prepare()
        make_servers(here(), replaces=elsewhere()).prepare()

    def test_one_machine_named_as_two_hosts(self, make_servers: Make) -> None:
        """The second does not take it from the first, which goes on."""
        first = make_servers(here(), epoch=7)
        first.prepare()
        with pytest.raises(BusyError, match="another host of this study is the same machine"):
            make_servers(here(), epoch=7).prepare()
        first.renew()
        make_servers(here(), epoch=8).prepare()  # an owner that was lost and is made anew
        with pytest.raises(BusyError):
            first.renew()

    def test_a_reboot_ends_every_lease(self, make_servers: Make, tmp_path: Path) -> None:
        first = make_servers(here(), holder=elsewhere())
        first.prepare()
        (path,) = tmp_path.glob("base/*/lease.json")
        lease = json.loads(path.read_text())
        path.write_text(json.dumps({**lease, "boot_id": "before"}))
        make_servers(here(), study="second").prepare()

    def test_a_start_renews_a_lease_from_before_a_reboot(self, make_servers: Make, tmp_path: Path) -> None:
        """The owner lived through the host's reboot: what it starts next must not be ended for the old lease."""
        servers = make_servers(here())
        servers.prepare()
        (path,) = (tmp_path / "base").glob("*/lease.json")
        path.write_text(json.dumps(json.loads(path.read_text()) | {"boot_id": "the boot before"}))
        server = servers.start(launch(), "1")
        log_until(servers, server, b"ready")
        time.sleep(1.5)  # a supervisor looks at the lease twice a second
        assert servers.state(server).alive
        assert servers.stop(server).clean

    def test_two_at_once_one_wins(self, make_servers: Make) -> None:
        from concurrent.futures import ThreadPoolExecutor

        processes = [other_process() for _ in range(4)]
        contenders = [make_servers(here(), study=f"s{n}", holder=holder_of(p)) for n, p in enumerate(processes)]

        def attempt(servers: HostServers) -> bool:
            try:
                servers.prepare()
            except BusyError:
                return False
            return True

        try:
            with ThreadPoolExecutor(4) as pool:
                assert sorted(pool.map(attempt, contenders)) == [False, False, False, True]
        finally:
            for process in processes:
                process.kill()
                process.wait()

    def test_epochs_only_grow(self, make_servers: Make) -> None:
        markers = []
        for epoch in (5, 1, 1):
            servers = make_servers(here(), epoch=epoch)
            servers.prepare()
            markers.append(servers.start(launch("--exit", "0"), "1").epoch)
            servers.close()
        assert markers == [5, 6, 7]

    def test_a_broken_lease_file_is_no_lease(self, make_servers: Make, tmp_path: Path) -> None:
        make_servers(here(), holder=elsewhere()).prepare()
        (path,) = tmp_path.glob("base/*/lease.json")
        path.write_text('{"epoch": 3, "ow')
        make_servers(here(), study="second").prepare()

    def test_host_folders_are_apart(self, make_servers: Make, tmp_path: Path) -> None:
        """One home on NFS serves many hosts."""
        make_servers(here()).prepare()
        assert [path.name for path in (tmp_path / "base").iterdir()] == [os.uname().nodename]


class TestDeathOfAController:
    def test_kill_9_then_resume_at_once(self, make_servers: Make, tmp_path: Path) -> None:
        """A real controller process is killed with a server running: its successor takes the host at once."""
        program = f"""
            import sys, time
            sys.path.insert(0, {str(Path(__file__).parent)!r})
            from hosts_helpers import launch
            from launchers.hosts.local import LocalSettings, LocalTransport
            from launchers.locks import Owner, this_holder
            from launchers.servers import HostServers
            from sweep.seams import HostTools
            servers = HostServers(LocalTransport(LocalSettings("here")), tools=HostTools(gpu_query=("none",)),
                python=sys.executable, base_dir={str(tmp_path / "base")!r}, owner=Owner("s", this_holder()))
            servers.prepare()
            print(servers.start(launch(), "1").pid, flush=True)
            time.sleep(60)
        """
        controller = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
        )
        assert controller.stdout is not None
        pid = int(controller.stdout.readline())
        controller.stdout.close()
        os.kill(controller.pid, signal.SIGKILL)
        controller.wait()
        assert not gone(pid), "the server outlives its controller, until the lease runs out"
        after = make_servers(here())
        after.prepare()
        (found,) = after.reconcile()
        assert (found.launch, found.pid) == ("1", pid)
        assert ours(tmp_path) == []

    def test_release_ends_servers_that_still_run(self, make_servers: Make) -> None:
        servers = make_servers(here())
        servers.prepare()
        server = servers.start(launch(), "1")
        log_until(servers, server, b"ready")
        servers._owned("release")
        assert ended(servers, server, 5).reason == "released"

    def test_reconcile_on_a_host_with_nothing(self, make_servers: Make) -> None:
        servers = make_servers(here())
        servers.prepare()
        assert servers.reconcile() == ()

    def test_reconcile_ends_what_another_study_left(self, make_servers: Make) -> None:
        before = make_servers(here(), holder=dead_holder(), study="other")
        before.prepare()
        server = before.start(launch(), "1")
        log_until(before, server, b"ready")
        after = make_servers(here(), study="mine")
        after.prepare()
        (found,) = after.reconcile()
        assert (found.study, found.pid) == ("other", server.pid)
        assert gone(server.pid)

    def test_same_launch_started_twice_is_one_server(self, make_servers: Make) -> None:
        """As when the answer to a start was lost with the connection."""
        servers = make_servers(here())
        servers.prepare()
        first = servers.start(launch(), "1")
        second = servers.start(launch(), "1")
        assert (first.pid, first.port) == (second.pid, second.port)
        assert len(servers.ps()) == 1

    def test_records_from_before_a_reboot_name_nobody(self, make_servers: Make, tmp_path: Path) -> None:
        """Pids of the record live, but are other processes now: they are neither listed nor touched."""
        bystander = other_process()
        try:
            before = make_servers(here(), holder=dead_holder())
            before.prepare()
            server = before.start(launch("--exit", "0"), "1")
            ended(before, server)
            record = Path(server.run_dir, "state.json")
            wait_for(lambda: json.loads(record.read_text())["finished"])
            start = holder_of(bystander).start_time
            state = {**json.loads(record.read_text()), "boot_id": "before", "finished": False}
            state["server"] = {"pid": bystander.pid, "start": start}
            state["processes"] = [{"pid": bystander.pid, "start": start, "comm": "sleep"}]
            record.write_text(json.dumps(state))
            after = make_servers(here())
            after.prepare()
            assert after.ps() == ()
            after.reconcile()
            assert bystander.poll() is None
            assert json.loads(record.read_text())["finished"]
        finally:
            bystander.kill()
            bystander.wait()
