"""kill -9 of the controller at every named point of a trial's life; `resume` right after it ends with the same results.

A point of the store is exact: the process dies before the row is written or after it is on disk. Inside a call of the
host's owner (during) it dies 0.05 s after the call began; inside a launch, as soon as the server's log moves.
"""

from __future__ import annotations

import pytest
from faults_helpers import Lab, changed, marked, read

# In the order of a trial's life; the first launch of a study is a baseline's, the second its first trial's.
POINTS = [
    "during:prepare",  # the host's lock is being taken
    "after:add_trial",  # proposed, not yet given to a host
    "after:start_trial",  # running, no launch yet
    "after:begin_launch:2",  # a launch row, nothing started
    "during:launch:2",  # the process is there, weights load, graphs are captured
    "before:launch_started:2",  # it is ready; no row says so
    "after:launch_ready:2",
    "during:probe",
    "after:launch_probed",
    "during:warm_up:2",
    "during:measure:3",  # in the middle of the trial's first block
    "before:add_block:3",  # measured, not stored
    "after:add_block:3",  # between two blocks
    "after:add_block:4",  # all is measured, nothing stopped
    "during:stop:2",
    "before:finish_launch:2",  # stopped, no row says so
    "after:finish_launch:2",  # the launch is complete, its trial still running
    "before:finish_trial",
    "after:finish_trial",  # the sampler has not heard of it
    "after:replace_analysis:2",
    "after:begin_launch:4",  # the closing baseline
    "during:close",
]


@pytest.mark.parametrize("point", POINTS)
def test_killed_controller(lab: Lab, point: str) -> None:
    lab.run("start", exit_code=-9, kill=point)
    if point == "during:launch:2":
        assert marked(lab.base)
    before = lab.blocks()
    lab.run("resume")
    lab.check(before)


def test_the_points_lie_where_they_say(lab: Lab) -> None:
    """Between two blocks one block of the trial is stored, and its server still runs."""
    lab.run("start", exit_code=-9, kill="after:add_block:3")
    stored = lab.query("SELECT count(*) FROM blocks b JOIN launches l ON l.id = b.launch_id WHERE l.trial_id NOT NULL")
    assert stored == [(1,)]
    assert lab.query("SELECT state, verdict FROM trials WHERE number = 0") == [("running", None)]
    before = lab.blocks()
    lab.run("resume")
    lab.check(before)


def test_killed_with_two_servers_beside_each_other(lab: Lab) -> None:
    """Resident pairing: baseline and candidate live on the same GPUs; both are found and ended."""
    pins = {"server": {"args": {"max-total-tokens": 8192, "sleep-on-idle": True}}}
    lab.write(changed(pins, {"measurement": {"pairing": "resident"}}))
    # Two calibration baselines have measured six blocks; the eighth is the candidate's beside its baseline.
    lab.run("start", exit_code=-9, kill="during:measure:8")
    assert len({read(pid, "cmdline") for pid in marked(lab.base) if b"--port" in read(pid, "cmdline")}) >= 2
    before = lab.blocks()
    lab.run("resume")
    lab.check(before)
    assert lab.query("SELECT count(*) FROM gains WHERE basis = 'resident'") != [(0,)], "they were measured as a pair"


def test_killed_in_the_confirm_stage(lab: Lab) -> None:
    """What the winner still lacks is made up for, and the search is not repeated."""
    lab.write({"measurement": {"confirm_top": 1, "confirm_launches": 1}})
    # Two blocks a launch: baseline, two trials, closing baseline, the confirming baseline, then the winner's first.
    lab.run("start", exit_code=-9, kill="during:measure:11")
    assert lab.query("SELECT count(*) FROM launches WHERE stage = 'confirm' AND verdict = 'complete'") == [(1,)]
    before = lab.blocks()
    lab.run("resume")
    lab.check(before)
    confirmed = lab.query("SELECT role FROM launches WHERE stage = 'confirm' AND verdict = 'complete'")
    assert ("candidate",) in confirmed
    assert ("baseline",) in confirmed
    searched = "SELECT count(*) FROM launches WHERE stage = 'search' AND role = 'candidate' AND verdict = 'complete'"
    assert lab.query(searched) == [(2,)]


def test_killed_again_and_again(lab: Lab) -> None:
    lab.run("start", exit_code=-9, kill="during:measure:3")
    for point in ("during:launch", "during:measure:3", "before:finish_trial"):
        before = lab.blocks()
        lab.run("resume", exit_code=-9, kill=point)
        assert {number: lab.blocks()[number] for number in before} == before
    before = lab.blocks()
    lab.run("resume")
    lab.check(before)
