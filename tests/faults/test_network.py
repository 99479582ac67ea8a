"""The way to a host is spoilt in the middle of a block and mended again: the study ends as if nothing had been.

Requests that were lost are marked and the block is measured once more on the same server where it was reached again in
time; else the launch ends as the surroundings' fault and its trial is tried again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults_helpers import Lab, wait_for
from network import NetHost, net_host

# A request takes about two seconds, so that a fault meets a block in its middle.
SLOW = {"simulate": {"time_scale": 10.0}, "workload": {"max_tokens": 100}}
NOTICED_S = 22.0  # longer than what TCP gives unacknowledged bytes before it ends the connection


@pytest.fixture
def host(tmp_path: Path) -> Iterator[NetHost]:
    with net_host(tmp_path / "net") as host:
        yield host


@pytest.fixture
def far(host: NetHost, tmp_path: Path) -> Iterator[Lab]:
    """A study on the host behind the wire."""
    entry = {"name": "gpu", "ssh": "gpu-a", "gpus": 1, "base_dir": str(tmp_path / "host"), "python": sys.executable}
    lab = Lab(tmp_path, entry, {"SWEEP_SSH_CONFIG": str(host.config)})
    lab.write(SLOW)
    try:
        yield lab
        lab.check_nothing_left()
    finally:
        lab.end()


def ended_launches(lab: Lab) -> list[tuple[str, str | None]]:
    return [tuple(row) for row in lab.query("SELECT verdict, reason FROM launches ORDER BY id")]  # type: ignore[misc]


@pytest.mark.parametrize("seconds", [3.0, NOTICED_S])
def test_cable_pulled_and_put_back(far: Lab, host: NetHost, seconds: float) -> None:
    """The block is repeated: briefly, TCP carries on and the block looks slow; for longer than TCP is patient, the
    connection is made anew."""
    process = far.spawn("start")
    far.until(far.measuring())
    before = far.blocks()
    time.sleep(0.7)
    host.cable(False)
    time.sleep(seconds)
    host.cable(True)
    far.ends(process)
    far.check(before)
    invalid = [row[0] for row in far.query("SELECT invalid FROM blocks WHERE invalid NOT NULL")]
    if seconds < NOTICED_S:
        assert any("the path to the host stood still for" in words for words in invalid), invalid
        assert far.query("SELECT count(*) FROM requests WHERE error NOT NULL") == [(0,)]
    else:
        lost = far.query("SELECT count(*) FROM requests WHERE error LIKE 'disconnected%'")
        assert lost[0][0] >= 1
        assert invalid
    assert {verdict for verdict, _ in ended_launches(far)} == {"complete"}, "the same server was measured again"


@pytest.mark.parametrize(("there", "back"), [(True, True), (True, False), (False, True)], ids=["all", "there", "back"])
def test_loss(far: Lab, host: NetHost, there: bool, back: bool) -> None:
    process = far.spawn("start")
    far.until(far.measuring())
    before = far.blocks()
    host.lose(there=there, back=back)
    assert not host.answers()
    time.sleep(NOTICED_S)
    host.lose()
    far.ends(process)
    far.check(before)


def test_cable_pulled_for_longer_than_the_lease(far: Lab, host: NetHost) -> None:
    """The host ends the server by itself; the controller calls that the surroundings' fault and tries again."""
    process = far.spawn("start", lease=12)
    far.until(far.measuring())
    before = far.blocks()
    host.cable(False)
    wait_for(lambda: not [pid for pid in host.pids() if host.is_server(pid)], 60)
    time.sleep(15)
    host.cable(True)
    far.ends(process)
    far.check(before)
    assert ("infra_error", "host") in ended_launches(far)


def test_two_seconds_of_delay(far: Lab, host: NetHost) -> None:
    """Everything is slow and nothing is wrong. What is measured over such a path is another question."""
    far.write()
    process = far.spawn("start")
    far.until(far.measuring(trial=None))
    before = far.blocks()
    host.delay(2.0)
    assert not host.answers()  # within two seconds
    time.sleep(20)
    host.undelay()
    far.ends(process)
    far.check(before)


def test_sshd_killed(far: Lab, host: NetHost) -> None:
    """The server lives on without any sshd; when there is one again it is measured to its end."""
    process = far.spawn("start")
    far.until(far.measuring())
    before = far.blocks()
    host.kill_sshd()
    time.sleep(3)
    host.power_on()
    far.ends(process)
    far.check(before)
    assert {verdict for verdict, _ in ended_launches(far)} == {"complete"}


def test_host_rebooted(far: Lab, host: NetHost) -> None:
    process = far.spawn("start")
    far.until(far.measuring())
    before = far.blocks()
    host.reboot()
    far.ends(process)
    far.check(before)
    assert ("infra_error", "host") in ended_launches(far)


def test_host_rebooted_and_controller_killed(far: Lab, host: NetHost) -> None:
    far.run("start", exit_code=-9, kill="during:measure:3")
    before = far.blocks()
    host.reboot()
    far.run("resume")
    far.check(before)


def test_controller_killed(far: Lab) -> None:
    """Its server is found on the host and ended at once: nobody waits for the lease."""
    far.run("start", exit_code=-9, kill="during:measure:3")
    before = far.blocks()
    begun = time.monotonic()
    process = far.spawn("resume")
    far.until("SELECT 1 FROM events WHERE kind = 'left_over'")
    assert time.monotonic() - begun < 55, "the lease was waited for"
    far.ends(process)
    far.check(before)


def test_a_host_that_stays_away_is_set_aside(far: Lab, host: NetHost, tmp_path: Path) -> None:
    """Circuit breaker: after some failures in a row the study goes on elsewhere, and says so."""
    here = {"name": "here", "kind": "local", "gpus": 1, "base_dir": str(tmp_path / "near"), "python": sys.executable}
    far.write({**SLOW, "budget": {"trials": 2}, "simulate": {"time_scale": 2.0}})
    space = far.space()
    far.save({**space, "hosts": [far.host, here]})
    process = far.spawn("start", lease=12, reconnect=4)
    far.until("SELECT 1 FROM blocks b JOIN launches l ON l.id = b.launch_id WHERE l.host = 'gpu'")
    host.power_off()
    far.ends(process)
    assert far.results() == {(1, "complete"), (3, "complete")}
    assert far.query("SELECT state FROM hosts WHERE name = 'gpu'") == [("set_aside",)]
    assert "infrastructure failures in a row" in far.query("SELECT note FROM hosts WHERE name = 'gpu'")[0][0]
    far.check_scores()
