"""The race on one launch: whom it stops, whom it must not, and how often it is wrong over all its looks."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from sweep import screening
from sweep.agenda import Job
from sweep.analysis import LaunchFigures
from sweep.analysis.types import ArmGain, Drift, NoiseFloor, StudyAnalysis
from sweep.hostwork import HostState, HostWork
from sweep.launching import LaunchPlan
from sweep.model import BASELINE, ArmConfig, Basis, Comparison, Gain, Objective, Role, Stage
from sweep.screening import Noise, Rival, hopeless, mixture_boundary, upper_bound

QUIET = Noise(launch=0.008, block=0.006, drift=0.008, df=4.0)
ONE, MANY = Objective("output_throughput", 1, True), Objective("output_throughput", 32, True)
CELLS = {ONE: ("p", "h"), MANY: ("h", "")}


def rival(log_gain: float = 0.3, se: float = 0.011) -> Rival:
    return Rival(0, log_gain, se, 4.0)


def test_an_arm_a_third_slower_is_hopeless_after_its_first_block() -> None:
    assert upper_bound([0.3 + math.log(0.7)], rival(), QUIET, 1) < math.log(0.9)


@pytest.mark.parametrize("worse", [0.0, 0.01, 0.02])
def test_an_arm_within_noise_is_not(worse: float) -> None:
    for count in range(1, 6):
        assert upper_bound([0.3 - worse] * count, rival(), QUIET, 1) > 0


def test_more_blocks_more_rivals_and_more_noise_do_what_they_should() -> None:
    worse = 0.3 + math.log(0.9)
    bounds = [upper_bound([worse] * count, rival(), QUIET, 1) for count in (1, 2, 4, 16)]
    assert bounds == sorted(bounds, reverse=True)
    assert upper_bound([worse], rival(), QUIET, 5) > upper_bound([worse], rival(), QUIET, 1)
    for name in ("launch", "block", "drift"):
        noisier = replace(QUIET, **{name: 3 * getattr(QUIET, name)})
        assert upper_bound([worse], rival(), noisier, 1) > upper_bound([worse], rival(), QUIET, 1)


def test_the_boundary_holds_at_every_length() -> None:
    """Sums of independent normal errors, looked at after each of 200: above the boundary anywhere in at most alpha."""
    rng = np.random.default_rng(1)
    sums = np.cumsum(rng.standard_normal((20_000, 200)), axis=1)
    limits = np.array([mixture_boundary(n, 1.0, 0.05) for n in range(1, 201)])
    crossed = float((sums > limits).any(axis=1).mean())
    assert 0.005 < crossed <= 0.05


@pytest.mark.parametrize("rivals", [1, 5])
def test_a_whole_race_is_wrong_in_at_most_five_per_cent(rivals: int) -> None:
    """An arm as good as each of its rivals, compared with each after every one of eight blocks. Launch effects,
    drift and the rivals' errors are drawn, and the variances are known only as well as four degrees of freedom let
    them be."""
    rng = np.random.default_rng([7, rivals])
    races, df, wrong = 500, 4.0, 0
    for _ in range(races):
        known = math.sqrt(rng.chisquare(df) / df)  # estimated over true standard deviation of launches
        noise = Noise(0.01 * known, 0.006, 0.01 * known, df)
        shared = 0.01 * rng.standard_normal(3).sum()  # launch of the arm, of the baseline, drift
        errors = 0.012 * rng.standard_normal(rivals)
        blocks = shared + 0.006 * rng.standard_normal(8)
        wrong += any(
            upper_bound(list(blocks[:count]), Rival(0, error, 0.012 * known, df), noise, rivals) < 0
            for error in errors
            for count in range(1, 9)
        )
    assert wrong / races <= 0.05


# ---------------------------------------------------------------------------------------------- over objectives


def analysis(gains: dict[Objective, dict[int, float]], *, known: bool = True) -> StudyAnalysis:
    """Trials with these log gains; noise as of :data:`QUIET`."""
    rows = {
        (trial, goal.metric, goal.concurrency, None, "baseline"): ArmGain(
            trial, goal.metric, goal.concurrency, None, "baseline", Comparison.FASTER,
            gain=Gain(math.expm1(log), 0.0, 1.0, Basis.BRACKETED, Stage.SEARCH), log_se=0.011, df=4.0,
        )
        for goal, found in gains.items()
        for trial, log in found.items()
    }  # fmt: skip
    noise = tuple(NoiseFloor(g.metric, g.concurrency, 0.006, 0.01, 0.008, 4.0, 0.03, 0.03, 2) for g in gains)
    drift = tuple(Drift("gpu", g.metric, g.concurrency, (), 0.02, 0.01) for g in gains)
    return StudyAnalysis(
        tuple(gains), (), {}, noise if known else (), drift, (), (), (), {}, {}, {}, {}, (), _index=rows
    )


def figures(values: dict[Objective, float]) -> LaunchFigures:
    """A launch (or one block of it) that ran these objectives' loads, at these log figures."""
    cells, prompts = {}, {}
    for goal, value in values.items():
        cells[goal.metric, goal.concurrency, None] = {("h", "0"): value}
        if goal.concurrency == 1:
            prompts[goal.metric, 1] = {("h", "p1"): value, ("h", "p2"): value}
    conduct = tuple(SimpleNamespace(concurrency=goal.concurrency) for goal in values)
    return LaunchFigures(
        1, "k", Role.BASELINE, None, "gpu", False, 0, None, 0.0, (0.0, 1.0), cells, prompts, {}, {}, {}, {},
        cast("Any", conduct),
    )  # fmt: skip


BASE = figures({ONE: 5.0, MANY: 7.0})
BEST = {ONE: {0: 0.3, 1: 0.1}, MANY: {0: 0.2, 1: 0.25}}


def judge(blocks: list[dict[Objective, float]], known: StudyAnalysis, rivals: tuple[int, ...] = (0, 1)) -> Any:
    seen = [figures({goal: {ONE: 5.0, MANY: 7.0}[goal] + log for goal, log in block.items()}) for block in blocks]
    return hopeless(seen, BASE, known, (ONE, MANY), rivals, hours=0.1, margin=0.01)


def test_hopeless_where_one_rival_is_better_at_every_load() -> None:
    found = judge([{ONE: -0.1}, {MANY: -0.2}], analysis(BEST))
    assert found is not None
    trial, losses = found
    assert trial == 0
    words = screening.in_words(losses, "#0 x")
    assert words.startswith("output_throughput@1: at least 2")
    assert "; output_throughput@32: at least" in words
    assert words.endswith("worse than #0 x after 1 block")


@pytest.mark.parametrize(
    ("blocks", "known", "rivals"),
    [
        ([{ONE: -0.1}, {ONE: -0.1}], analysis(BEST), (0, 1)),  # never at a load it has not run
        ([{ONE: -0.1}, {MANY: 0.2}], analysis(BEST), (0, 1)),  # leads, or nearly, at another load
        # worse than the best of each load, but than no single rival at both
        ([{ONE: 0.1}, {MANY: 0.1}], analysis({ONE: {0: 0.6, 1: 0.0}, MANY: {0: 0.0, 1: 0.6}}), (0, 1)),
        ([{ONE: -0.1}, {MANY: -0.2}], analysis(BEST), ()),  # nothing was measured before it
        ([{ONE: -0.1}, {MANY: -0.2}], analysis(BEST, known=False), (0, 1)),  # nothing is known of the noise
        ([{ONE: -0.1}, {MANY: -0.2}], analysis({ONE: BEST[ONE], MANY: {}}), (0, 1)),  # rivals have no gain there
    ],
    ids=["load not run", "other load", "no single rival", "no rival", "no noise", "no gain"],
)
def test_not_hopeless(blocks: list[dict[Objective, float]], known: StudyAnalysis, rivals: tuple[int, ...]) -> None:
    assert judge(blocks, known, rivals) is None


def test_a_host_that_drifts_makes_the_bound_wider() -> None:
    near, far = (screening.noise_of(analysis(BEST), BASE, ONE, hours) for hours in (0.0, 2.0))
    assert near is not None
    assert far is not None
    assert near.drift == pytest.approx(0.008)
    assert far.drift == pytest.approx(math.hypot(0.008, 2 * math.hypot(0.02, 0.01)))


# ---------------------------------------------------------------------------------------------- whose launches


@pytest.mark.parametrize(
    ("role", "stage", "asked", "raced"),
    [
        (Role.CANDIDATE, Stage.SEARCH, True, True),
        (Role.CANDIDATE, Stage.SEARCH, False, False),
        (Role.CANDIDATE, Stage.CONFIRM, True, False),
        (Role.BASELINE, Stage.SEARCH, True, False),
        (Role.ENGINE_DEFAULT, Stage.SEARCH, True, False),
    ],
)
def test_only_search_launches_of_candidates_are_raced(role: Role, stage: Stage, asked: bool, raced: bool) -> None:
    plans = {stage: LaunchPlan((), (), ()) for stage in Stage}
    books = SimpleNamespace(hopeless=lambda host, arm, blocks: None)
    none = cast("Any", None)
    parts = dict.fromkeys((field.name for field in fields(HostWork)), none)
    work = HostWork(**{**parts, "books": books, "plans": plans, "screening": asked})
    arm = ArmConfig("EAGLE3", "head", 3, 1, 4) if role is Role.CANDIDATE else BASELINE
    plan = work._plan(cast("HostState", SimpleNamespace(name="gpu")), Job(arm, role, stage, 0))
    assert (plan.screen is not None) is raced
