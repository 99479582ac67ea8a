"""Servers that misbehave in the middle of a study: the verdict is theirs alone, and nothing of them is left."""

from __future__ import annotations

from typing import Any

import pytest
from faults_helpers import EXPECTED, Lab, changed, failing

# Limits short enough for a test; what is healthy logs or answers far more often.
IMPATIENT = {"measurement": {"stall_timeout_s": 6.0, "max_attempts": 2}}


def study(lab: Lab, kind: str, *, steps: int | None = 3, **more: Any) -> None:
    lab.write(changed(IMPATIENT, failing(kind, steps=steps, **more)))
    lab.run("start")


@pytest.mark.parametrize(
    ("kind", "steps", "more"),
    [
        ("ignore_term", 3, {}),
        ("fork_away", None, {}),
        ("escape_session", None, {}),
        ("close_stdout", 3, {}),
        ("log_flood", 3, {"mb": 200}),
        ("garbage_sse", 3, {"after_tokens": 5}),  # events that are none of ours to read; the last one says everything
        ("slow_jit", 3, {"seconds": 9.0}),  # longer than the limit, and said so in the log: not a hang
    ],
)
def test_measured_all_the_same(lab: Lab, kind: str, steps: int | None, more: dict[str, Any]) -> None:
    study(lab, kind, steps=steps, **more)
    lab.check(lab.blocks())
    assert lab.query("SELECT count(*) FROM launches WHERE verdict != 'complete'") == [(0,)]


@pytest.mark.parametrize(
    ("kind", "more", "verdict", "reason"),
    [
        ("no_newline", {}, "launch_timeout", "no_progress"),
        ("hang_at_capture", {}, "launch_timeout", "no_progress"),
        ("oom_at_capture", {}, "launch_oom", "gpu_oom"),
        ("exit_at_start", {}, "crashed", "unknown"),
        ("crash_after_tokens", {"tokens": 1}, "crashed", "illegal_access"),
        ("no_tokens", {}, "hung", "no_tokens"),
        ("stall", {"after_tokens": 5}, "hung", "no_tokens"),
        ("http_500", {}, "measurement_invalid", "requests_failed"),
        ("truncated_json", {"after_tokens": 5}, "measurement_invalid", "requests_failed"),
        ("reset", {"after_tokens": 5}, "measurement_invalid", "requests_failed"),
    ],
)
def test_the_arm_fails_alone(lab: Lab, kind: str, more: dict[str, Any], verdict: str, reason: str) -> None:
    study(lab, kind, **more)
    lab.check(lab.blocks(), {(1, "complete"), (3, verdict)})
    assert {found[:2] for found in lab.verdicts(3)} == {(verdict, reason)}
    assert all(evidence for _, _, evidence in lab.verdicts(3))


def test_a_crash_once_is_tried_again(lab: Lab) -> None:
    study(lab, "crash_after_tokens", tokens=30, times=1)
    lab.check(lab.blocks(), EXPECTED)
    assert [found[0] for found in lab.verdicts(3)] == ["crashed", "complete"]


BASELINE = {"algorithm": None}


def test_a_baseline_that_crashes_once_is_launched_again(lab: Lab) -> None:
    study(lab, "crash_after_tokens", steps=None, when=BASELINE, tokens=30, times=1)
    lab.check(lab.blocks(), EXPECTED)
    assert lab.query("SELECT count(*) FROM launches WHERE role = 'baseline' AND verdict = 'crashed'") == [(1,)]


@pytest.mark.parametrize(("kind", "launches"), [("http_500", 3), ("oom_at_capture", 1)])
def test_a_baseline_that_cannot_be_measured_is_the_end(lab: Lab, kind: str, launches: int) -> None:
    """In words, and not for ever: what may be chance is tried three times."""
    lab.write(changed(IMPATIENT, failing(kind, steps=None, when=BASELINE)))
    lab.run("start", exit_code=1)
    assert "the baseline cannot be measured" in lab.said()
    assert lab.query("SELECT count(*) FROM launches") == [(launches,)]
    assert lab.query("SELECT count(*) FROM trials") == [(0,)]
    lab.check_scores()


def test_a_stream_that_stalls_in_a_block(lab: Lab) -> None:
    """Probe and warm-up went well; then the server is healthy and says nothing more."""
    study(lab, "stall", after_requests=5)
    lab.check(lab.blocks(), {(1, "complete"), (3, "hung")})
    begun = lab.query("SELECT count(*) FROM events WHERE kind = 'block'")[0][0]
    assert begun > 6, "the arm that hangs came as far as its blocks"
    stalled = lab.query("SELECT b.invalid FROM blocks b JOIN launches l ON l.id = b.launch_id WHERE l.verdict = 'hung'")
    assert stalled
    assert all("no token on any stream for 6 s" in row[0] for row in stalled)
