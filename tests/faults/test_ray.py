"""What Ray adds to the ways to die: a host's actor, the head of the cluster, the controller above both."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest
from faults_helpers import Lab, processes, read, wait_for

pytestmark = pytest.mark.ray
SLOW = {"simulate": {"time_scale": 10.0}, "workload": {"max_tokens": 100}}


def of_cluster(lab: Lab, word: bytes) -> list[int]:
    """Processes of this study's Ray whose command line holds ``word``."""
    home = f"HOME={lab.folder}".encode()
    return [p for p in processes() if word in read(p, "cmdline") and home in read(p, "environ").split(b"\0")]


def end(pids: list[int]) -> None:
    assert pids
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_actor_killed_in_a_block(lab: Lab) -> None:
    """A new actor of a higher epoch takes the host, ends what the old one left, and the trial is tried again."""
    lab.write(SLOW)
    process = lab.spawn("start", ray=1)
    lab.until(lab.measuring())
    before = lab.blocks()
    end(of_cluster(lab, b"ray::HostActor"))
    lab.ends(process)
    lab.check(before)
    assert lab.query("SELECT count(*) FROM launches WHERE reason = 'host_lost'") == [(1,)]


def test_head_killed_in_a_block(lab: Lab) -> None:
    """Without its Ray the controller cannot go on: it says so and ends; nothing is left, and `resume` finishes."""
    lab.write(SLOW)
    process = lab.spawn("start", ray=1, lease=20)
    lab.until(lab.measuring())
    before = lab.blocks()
    end(of_cluster(lab, b"gcs_server"))
    process.wait(timeout=150)
    wait_for(lambda: not of_cluster(lab, b"ray"), 60)
    lab.check_nothing_left()
    lab.run("resume", ray=1)
    lab.check(before)


def test_controller_killed_in_a_block(lab: Lab) -> None:
    """The actor outlives its controller for a moment; `resume` takes the host from it at once."""
    lab.write(SLOW)
    process = lab.spawn("start", ray=1)
    lab.until(lab.measuring())
    before = lab.blocks()
    process.kill()
    process.wait()
    lab.run("resume", ray=1)
    lab.check(before)
    wait_for(lambda: not of_cluster(lab, b"ray"), 60)
