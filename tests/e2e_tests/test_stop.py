"""Ways to end a running study: Ctrl-C once and twice, SIGHUP, `sweep stop`; each leaves nothing running."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
from e2e_helpers import User, wait_for

pytestmark = [pytest.mark.ray, pytest.mark.slow]
QUICK = ("--set", "simulate.time_scale=0.2")

IN_BLOCK = (
    "select 1 from launches l, events e"
    " where l.state = 'ready' and e.kind = 'block' and json_extract(e.detail, '$.launch') = l.id"
)
LOADING = "select 1 from launches where state = 'begun'"


def test_interrupts_and_rivals(user: User) -> None:
    """One study, ended four times and finished at last; while it runs it can be watched and has no second owner."""
    running = user.spawn("start", "smoke", "--simulate", *QUICK, "--json")
    user.until(IN_BLOCK)

    watched = wait_for(lambda: [s for s in [user.json("status")] if s["hosts"] and s["hosts"][0]["phase"]], 20.0)[0]
    assert watched["state"] == "running"
    assert watched["hosts"][0]["state"] == "busy"
    rival = user.run("resume", "smoke", exit_code=6)
    assert str(running.pid) in rival.stderr
    assert "sweep stop smoke" in rival.stderr

    user.until(LOADING)
    os.killpg(running.pid, signal.SIGINT)  # a terminal sends it to the whole group
    answer = json.loads(running.communicate(timeout=60)[0])
    assert running.returncode == 130
    assert answer["state"] == "stopped"
    assert user.query("select state, controller from studies") == [("stopped", None)]
    assert user.query("select verdict from launches order by id desc limit 1") == [("cancelled",)]
    assert user.query("select 1 from launches where state != 'ended'") == []
    assert "Traceback" not in user.log()
    user.require_clean(2.0)

    running = user.spawn("resume", "--json")
    user.until(LOADING)
    running.send_signal(signal.SIGHUP)
    running.send_signal(signal.SIGTERM)  # the second signal, whichever it is: stop now
    begun = time.monotonic()
    running.communicate(timeout=60)
    assert running.returncode == 130
    assert time.monotonic() - begun < 15
    user.require_clean(2.0)

    said = user.run("resume", "--detach").stdout
    assert "sweep stop smoke" in said
    user.until(LOADING)
    assert user.json("status")["state"] == "running"
    assert "has stopped" in user.run("stop").stdout
    wait_for(lambda: user.json("status")["state"] == "stopped", 10.0)
    user.require_clean()
    detached = (user.home / "smoke.log").read_text()
    assert "Traceback" not in detached
    assert "asked by `sweep stop`" in detached

    assert user.json("resume")["counts"] == {"complete": 3}
    assert "Traceback" not in user.log()
    assert "***" not in user.log()  # Ray's dump of a stack at SIGTERM
