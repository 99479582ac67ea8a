"""A/A studies: no trials, the noise of the baseline, and what it takes to resolve a wanted gain."""

from __future__ import annotations

import math

import pytest

from storage.records import StudyState
from sweep import calibration, session
from sweep.cli.calibrate import parse_wanted
from sweep.errors import UsageError
from sweep.pool import InlinePool


def test_an_a_a_study_measures_the_baseline_alone_and_is_found_again(lab):
    noisy = {"effects": {"launch_cv": 0.03, "request_cv": 0.01}}
    spec = calibration.only_references(lab.spec("workload.concurrency=[1, 2]", profile=noisy), 3, 0.05)
    study = lab.create(spec)
    assert session.run(lab.store, study, spec, lambda books, settings: lab.heard, InlinePool()) == "finished"
    answer = calibration.describe(lab.store, lab.store.study_by_id(study.id))
    assert (answer["launches"], answer["hosts"], answer["simulated"]) == (3, ["gpu"], True)
    assert lab.store.trials(study.id) == []
    levels = {row["concurrency"]: row for row in answer["noise"] if row["metric"] == "output_throughput"}
    assert set(levels) == {1, 2}
    for row in levels.values():
        assert row["wanted_gain"] == 0.05
        assert row["launches_needed"] >= 1
        assert 0 < row["minimum_detectable_gain"] < 2
    # a launch effect of 3 % is what dominates here, and no number of rounds averages it away
    assert levels[1]["between_launch_sd"] > 0.005

    later = lab.spec("name=later", "workload.concurrency=[1, 2]", profile=noisy)
    found = calibration.known_for(lab.store, later)
    assert found is not None
    assert found["study"] == study.name
    assert calibration.known_for(lab.store, lab.spec("workload.concurrency=[1, 4]", profile=noisy)) is None
    other = lab.spec("workload.concurrency=[1, 2]", "server.args.page-size=16", profile=noisy)
    assert calibration.known_for(lab.store, other) is None
    lab.store.set_state(study.id, StudyState.STOPPED)
    assert calibration.known_for(lab.store, later) is None


def noise(between: float, launch: float, detectable: float, wanted: float = 0.03) -> dict[str, float]:
    return {
        "between_launch_sd": between,
        "launch_mean_sd": launch,
        "minimum_detectable_gain": detectable,
        "wanted_gain": wanted,
    }


def test_rounds_needed_follow_the_variance():
    # all of the variance is within launches: half the gain takes four times the rounds
    halved = math.expm1(2 * math.log1p(0.03))
    assert calibration.repeats_needed(noise(0.0, 0.01, halved), repeats=2) == 8
    assert calibration.repeats_needed(noise(0.0, 0.01, 0.03), repeats=2) == 2
    # launches differ by more than the gain allows: rounds do not help
    assert calibration.repeats_needed(noise(0.009, 0.01, halved), repeats=2) is None


@pytest.mark.parametrize(("text", "value"), [("3%", 0.03), ("0.03", 0.03), ("2.5 %", 0.025)])
def test_a_wanted_gain_is_percent_or_fraction(text, value):
    assert parse_wanted(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["0", "-1%", "three", "150%", ""])
def test_a_wanted_gain_that_is_none_is_refused(text):
    with pytest.raises(UsageError, match="is no gain"):
        parse_wanted(text)
