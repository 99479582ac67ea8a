"""Where speculation stops paying, and why it pays."""

from __future__ import annotations

import math
import re

import pytest

from sweep.analysis import AnalysisSettings, ArmGain
from sweep.analysis.crossover import crossover
from sweep.model import Basis, Comparison, Gain, Objective, Stage
from tests.analysis_tests.made import AT_1, Night, block, load_block, request
from tests.analysis_tests.made import THROUGHPUT_ONLY as ONLY


def row(level: int, gain: float, se: float = 0.01) -> ArmGain:
    reach = 2.0 * se
    low, high = (math.expm1(math.log1p(gain) + s * reach) for s in (-1, 1))
    return ArmGain(
        0, "output_throughput", level, None, "baseline", Comparison.TIE,
        Gain(gain, low, high, Basis.BRACKETED, Stage.SEARCH), log_se=se, df=60.0,
    )  # fmt: skip


def test_crossover_interpolates_in_log_concurrency_with_an_interval_around_it() -> None:
    found = crossover(0, [row(1, 0.5), row(16, 0.1), row(32, -1 + 1 / 1.1)], 0.05)
    assert found is not None
    assert found.estimate == pytest.approx(math.sqrt(16 * 32))  # halfway in both logs
    assert found.low is not None
    assert found.high is not None
    assert 16 < found.low < found.estimate < found.high < 32


def test_crossover_outside_the_measured_levels_is_said_not_guessed() -> None:
    up = crossover(0, [row(1, 0.5), row(16, 0.1)], 0.05)
    assert up is not None
    assert (up.estimate, up.why) == (None, "still gains at 16, the highest concurrency measured")
    down = crossover(0, [row(1, -0.1), row(16, -0.2)], 0.05)
    assert down is not None
    assert (down.estimate, down.why) == (None, "loses from 1 on, the lowest concurrency measured")
    assert crossover(0, [row(1, 0.5)], 0.05) is None
    unsure = crossover(0, [row(1, 0.5), row(16, 0.01, 0.05)], 0.05)
    assert unsure is not None
    assert unsure.why.endswith("by its estimate alone: the interval there includes 0")
    open_ended = crossover(0, [row(1, 0.01, 0.05), row(16, -0.01, 0.05)], 0.05)
    assert open_ended is not None
    assert open_ended.estimate == pytest.approx(4.0, rel=0.05)
    assert (open_ended.low, open_ended.high) == (None, None)


def test_the_story_of_the_hand_made_experiments() -> None:
    """82.3 against 90 tok/s at accept length 2.1: -8.6 %, break-even at 2.30, and code already wins."""
    speeds = {
        "p0": ("writing", 75.6),
        "p1": ("code", 101.8),
        "p2": ("math", 76.5),
        "p3": ("qa", 79.4),
        "p4": ("chat", 82.4),
    }
    rows = [
        request(k, s, prompt=p, category=c, tokens=2100, accept=2.1) for k, (p, (c, s)) in enumerate(speeds.items())
    ]
    base = [request(k, 90.0, prompt=p, category=c, tokens=2100) for k, (p, (c, _)) in enumerate(speeds.items())]
    night = Night()
    for trial in (None, None, 0, None):
        night.add(trial, [block(base if trial is None else rows)])
    found = night.analyse(AT_1)
    whole = found.find(0, "output_throughput", 1)
    assert whole is not None
    assert whole.gain is not None
    assert whole.gain.estimate == pytest.approx(-0.08, abs=0.012)
    assert whole.break_even == pytest.approx(2.3, abs=0.03)
    code = found.find(0, "output_throughput", 1, "code")
    assert code is not None
    assert code.gain is not None
    assert code.gain.estimate == pytest.approx(0.131, abs=0.001)
    (why,) = found.explanations
    assert why.accept_length == pytest.approx(2.1)
    assert why.step_cost == pytest.approx(why.break_even)
    assert why.from_acceptance + why.from_step_cost == pytest.approx(math.log1p(whole.gain.estimate))
    assert why.baseline_step_ms == pytest.approx(1000 / 90.0, rel=0.01)
    assert why.step_ms == pytest.approx(2.28 * 1000 / 90.0, rel=0.02)
    assert why.categories["code"] > 0 > why.categories["math"]


def test_envelope_keeps_an_arm_while_it_ties_and_ends_where_none_pays() -> None:
    factors = {0: {1: 1.6, 8: 1.1, 32: 0.8}, 1: {1: 1.3, 8: 1.3, 32: 0.9}}
    night = Night()
    for trial in (None, None, 0, 1, None):
        blocks = []
        for level in (1, 8, 32):
            factor = 1.0 if trial is None else factors[trial][level]
            blocks += [
                block(
                    [request(k, 90 * factor, accept=None if trial is None else 2.5) for k in range(max(level, 4))],
                    concurrency=level,
                    number=n,
                )
                for n in range(3)
            ]
        night.add(trial, blocks)
    objectives = [Objective("output_throughput", level, True) for level in (1, 8, 32)]
    found = night.analyse(*objectives, settings=ONLY)
    assert [step.trial for step in found.envelope] == [0, 1, None]
    first, second, _ = found.envelope
    assert first.to_concurrency is not None
    assert second.to_concurrency is not None
    assert 1 < first.to_concurrency < 8 < second.to_concurrency < 32
    assert re.fullmatch(
        r"Use EAGLE3 drafter 1/1/2 up to \d concurrent requests, \S+ \S+ \S+ up to \d+, none above\.",
        found.sentences[-1],
    ), found.sentences[-1]


def test_no_accept_counters_no_explanation() -> None:
    night = Night()
    for trial in (None, None, 0, None):
        night.add(trial, [load_block(800.0, k) for k in range(3)])
    found = night.analyse(settings=AnalysisSettings(metrics=("output_throughput",)))
    assert found.explanations == ()
    row = found.find(0, "output_throughput", 8)
    assert row is not None
    assert row.break_even is None
