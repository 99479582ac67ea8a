"""A word that its interval seems to deny gives its reason; a gain says where it comes from and where it ends."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from storage import reading
from storage.store import Store
from sweep.model import Comparison, Tie
from tests.commands import Run

CORRECTED = Tie("correction", -0.009, 0.056, 12)
BAND = Tie("tie_band", -0.01, 0.01)
EXPLAINED = {
    "trial": 1, "concurrency": 8, "accept_length": 2.1, "break_even": 1.68, "step_ms": 18.6, "baseline_step_ms": 11.1,
    "step_cost": 1.68, "from_acceptance": 0.742, "from_step_cost": -0.519, "categories": {"math": -0.02, "code": 0.31},
}  # fmt: skip
CROSSOVER = {"trial": 1, "estimate": 22.4, "low": 18.1, "high": None, "why": "gains below 22 concurrent requests"}


def retold(url: str, tie: Tie | None) -> None:
    """The study's analysis again, its trial 1 now a tie with the baseline in the first objective."""
    with Store.open(url) as store:
        study = store.study("night")
        first = study.objectives[0]
        key = (1, first.metric, first.concurrency, None, "baseline")
        rows = [
            replace(row, comparison=Comparison.TIE, tie=tie) if row.key == key else row
            for row in reading.gains(store, study.id)
        ]
        names = ("trial", "metric", "concurrency", "category", "reference")
        ties = [] if tie is None else [{**dict(zip(names, key, strict=True)), **tie.as_dict()}]
        told = {"ties": ties, "crossover": [CROSSOVER], "explanations": [EXPLAINED]}
        store.replace_analysis(study.id, rows, {**(store.analysis(study.id) or {}), **told})
        assert [row.tie for row in reading.gains(store, study.id) if row.key == key] == [tie]


@pytest.mark.parametrize(
    ("tie", "cell", "why"),
    [
        (
            CORRECTED,
            "tie (12 compared)",
            "because 12 comparisons are made together: with Holm's correction for them the interval is "
            "-0.9 % to +5.6 %",
        ),
        (BAND, "tie (too small)", "because gains within -1.0 % to +1.0 % count as equal"),
        (None, "tie", None),
    ],
)
def test_best_and_show_say_why_it_is_a_tie(sweep: Run, own_url: str, tie: Tie | None, cell: str, why: str) -> None:
    retold(own_url, tie)
    row = next(r for r in json.loads(sweep("best", "--json", db=own_url)[1])["best"] if r["trial"] == 1)
    assert row["tie_because"] == (None if tie is None else tie.as_dict())
    text = sweep("best", db=own_url)[1]
    assert cell in text
    shown = json.loads(sweep("show", "1", "--json", db=own_url)[1])
    (kept,) = [g["tie_because"] for g in shown["gains"] if g["tie_because"] is not None] or [None]
    assert kept == row["tie_because"]
    if why is None:
        assert "tie (" not in text
        assert "is a tie because" not in text
    else:
        assert f"#1 is a tie {why}." in text
        assert f"; a tie {why}" in sweep("show", "1", db=own_url)[1]


def test_show_says_where_the_gain_comes_from_and_ends(sweep: Run, own_url: str) -> None:
    retold(own_url, None)
    text = sweep("show", "1", db=own_url)[1]
    assert (
        "why        at 8: 2.10 tokens a step (+110.0 %), each step 1.68 times as long (-40.5 %); it pays from 1.68 "
        "tokens a step on\n             by prompts: code +31.0 %, math -2.0 %\n"
    ) in text
    assert "crossover  gains below 22 concurrent requests (95 %: 18 to above)" in text
    other = sweep("show", "0", db=own_url)[1]
    assert "crossover" not in other
    assert "tokens a step" not in other
