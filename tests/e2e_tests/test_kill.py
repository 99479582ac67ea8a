"""kill -9 of the controller: everything of it ends, nothing that was measured is lost, the study comes out the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from e2e_helpers import User

pytestmark = [pytest.mark.ray, pytest.mark.slow]
QUICK = ("--set", "simulate.time_scale=0.2")

FINISHED = "select t.number from trials t where t.state = 'finished'"
# The last trial of the search is measured; the baseline that closes its bracket is being launched.
IN_LAST_BRACKET = (
    "select 1 from launches where trial_id is null and state != 'ended' "
    "and (select count(*) from trials where state = 'finished') = 3"
)
SEARCHED = "select role from launches where stage = 'search' and verdict = 'complete' order by sequence"
# A trial's server process is there and not ready; then, later, a block of one is under way.
IN_LAUNCH = "select 1 from launches where trial_id is not null and state = 'begun'"
IN_BLOCK = "select 1 from events where kind = 'block' and json_extract(detail, '$.trial') = 1"


def outcome(user: User) -> set[tuple[str, str]]:
    """Configuration and verdict of every finished trial."""
    rows = user.query("select a.config, t.verdict from trials t join arms a on a.id = t.arm_id order by t.number")
    return {(json.dumps(json.loads(config), sort_keys=True), verdict) for config, verdict in rows}


def test_killed_twice_and_resumed_at_once(user: User, smoke: tuple[User, str]) -> None:
    first = user.spawn("start", "smoke", "--simulate", *QUICK, "--json")
    user.until(IN_LAUNCH)
    first.kill()
    assert user.json("status")["state"] == "stopped"
    measured = user.query("select id from blocks")

    second = user.spawn("resume", "--json")
    user.until(IN_BLOCK)
    before: Any = user.query(FINISHED)
    second.kill()

    answer = user.json("resume")
    assert answer["state"] == "finished"
    assert answer["counts"] == {"complete": 3}
    assert outcome(user) == outcome(smoke[0])
    assert set(measured) <= set(user.query("select id from blocks"))
    assert before  # a trial had been finished; it was not measured again for the search
    counted = (
        "select count(*) from launches l join trials t on t.id = l.trial_id where l.stage = 'search' and t.number = 0"
    )
    abandoned = user.query("select reason, verdict from launches where verdict = 'cancelled'")
    assert abandoned == [("abandoned", "cancelled")] * 2
    assert user.query(counted + " and l.verdict = 'complete'") == [(1,)]
    assert user.query("select 1 from launches where state != 'ended'") == []
    user.require_clean()


def test_a_killed_closing_bracket_is_made_up_for_and_a_finished_study_launches_nothing(user: User) -> None:
    only = (*QUICK, "--set", "measurement.confirm_top=0")
    first = user.spawn("start", "smoke", "--simulate", *only, "--json")
    user.until(IN_LAST_BRACKET)
    first.kill()
    assert user.query(SEARCHED)[-1] == ("candidate",)

    assert user.json("resume")["state"] == "finished"
    assert user.query(SEARCHED)[-1] == ("baseline",)
    launches = user.query("select count(*) from launches")

    assert user.json("resume")["state"] == "finished"
    assert user.query("select count(*) from launches") == launches
    user.require_clean()
