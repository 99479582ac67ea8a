"""Five configurations of Kimi-K2.5, once tried by hand: what nobody could say then is said by one command now."""

from __future__ import annotations

from typing import Any

import pytest
from e2e_helpers import User

pytestmark = [pytest.mark.ray, pytest.mark.long]
SHORTER = (
    ("simulate.time_scale", "0.1"),
    ("workload.max_tokens", "96"),
    ("workload.repeats", "1"),
    ("measurement.calibrate_launches", "1"),
    ("measurement.tolerance", "0.3"),  # a busy machine is no drifting GPU
    ("measurement.engine_default", "false"),
    ("measurement.confirm_top", "1"),
    ("measurement.confirm_launches", "1"),
)


def test_the_five_rows(user: User) -> None:
    sets = [word for key, value in SHORTER for word in ("--set", f"{key}={value}")]
    answer = user.json("start", "kimi_k25_eagle3", "--simulate", *sets, timeout_s=300)
    assert answer["simulated"] is True
    assert answer["counts"] == {"complete": 4, "drafter_ineffective": 1}
    assert answer["beats_baseline"] is False
    assert answer["baseline"]["by_objective"]["output_throughput@1"] == pytest.approx(90, rel=0.05)

    row1: Any = user.json("show", "0")
    assert row1["config"]["algorithm"] == "EAGLE"
    assert row1["verdict"] == "drafter_ineffective"
    assert "accept length 1.0" in row1["evidence"]
    assert "EAGLE3 head" in row1["advice"]
    assert "served as EAGLE" in row1["advice"]
    assert row1["launches"][0]["blocks"] == []  # it was not paid for
    assert "EAGLE3 head" in user.run("show", "0").stdout

    best = user.json("best")["best"]
    assert [entry["trial"] + 1 for entry in best] == [5, 4, 2, 3]  # the rows of the table, in the order of their speed
    row5 = best[0]
    assert row5["config"]["num_draft_tokens"] == 5
    assert row5["gain"]["stage"] == "confirm"
    assert row5["gain"]["estimate"] == pytest.approx(-0.086, abs=0.015)
    assert row5["gain"]["high"] < 0
    assert row5["comparison"] == "slower"
    assert row5["break_even_accept_length"] == pytest.approx(2.3, abs=0.1)
    assert row5["by_category"]["code"]["estimate"] > 0
    assert user.run("best").stdout.lower().index("nothing") < user.run("best").stdout.index("rank")
