"""What Ray adds to the ways to die: a host's actor, the head of the cluster, the controller above both."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

import pytest
from faults_helpers import Lab, marked, processes, read, wait_for

from sweep import runner

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


@contextlib.contextmanager
def hanging(pids: list[int]) -> Iterator[None]:
    """These processes live and do nothing; who is still there at the end goes on."""
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def test_actor_hangs_when_the_study_is_to_stop(lab: Lab) -> None:
    """One Ctrl-C is enough: the host is given up, which is said; `resume` ends what is left there and finishes."""
    lab.write({"simulate": {"time_scale": 4.0}, "workload": {"max_tokens": 100}})
    process = lab.spawn("start", ray=1)
    lab.until(lab.measuring())
    before = lab.blocks()
    with hanging(of_cluster(lab, b"ray::HostActor")):
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        lab.ends(process, exit_code=130)
    assert time.monotonic() - begun < runner.ANSWER_S + 20
    ((why,),) = lab.query("SELECT json_extract(detail, '$.why') FROM events WHERE kind = 'given_up'")
    name = lab.host["name"]
    assert f"the owner of host {name} has not answered for 20 s" in why
    assert "within 60 s, its lease" in why
    assert f"`sweep ps {name} --space YAML`" in why
    assert marked(lab.base), "nobody could end the server"
    assert lab.query("SELECT state, controller FROM studies") == [("stopped", None)]
    assert lab.query("SELECT count(*) FROM launches WHERE state != 'ended'") == [(0,)]
    wait_for(lambda: not of_cluster(lab, b"ray"), 10)
    lab.run("resume", ray=1)
    lab.check(before)
    assert lab.query("SELECT count(*) FROM events WHERE kind = 'left_over'") == [(1,)]


def test_actor_hangs_in_a_block(lab: Lab) -> None:
    """Nobody asks to stop: an owner that answers no heartbeats is replaced, and the trial is tried again."""
    lab.write({"simulate": {"time_scale": 4.0}, "workload": {"max_tokens": 100}})
    process = lab.spawn("start", ray=1, silent=3)
    lab.until(lab.measuring())
    before = lab.blocks()
    with hanging(of_cluster(lab, b"ray::HostActor")):
        lab.ends(process)
    lab.check(before)
    assert lab.query("SELECT count(*) FROM events WHERE kind = 'given_up'") == [(1,)]
    assert lab.query("SELECT count(*) FROM launches WHERE reason = 'host_lost'") == [(1,)]
    wait_for(lambda: not of_cluster(lab, b"ray"), 10)
