"""The baseline over time."""

from __future__ import annotations

import numpy as np
import pytest

from sweep.analysis.drift import CHUNK, Chunk, brackets_disagree, chunks
from sweep.analysis.figures import extract
from sweep.model import Comparison, Flag, Role
from tests.analysis_tests.made import AT_8, Night, load_block


def rounds(speed: float) -> list:  # type: ignore[type-arg]  # BlockResult
    return [load_block(speed, k) for k in range(3)]


def drifting(per_slot: float, gain: float) -> Night:
    """A baseline that changes by ``per_slot`` from launch to launch; every arm gains ``gain``."""
    night = Night()
    for slot in range(16):
        level = 800.0 * float(np.exp(per_slot * slot))
        if slot in (0, 1, 5, 10, 15):
            night.add(None, rounds(level))
        else:
            night.add(slot % 12, rounds(level * (1 + gain)), slot=slot)
    return night


@pytest.mark.parametrize("per_slot", [-0.008, 0.0, 0.008])
def test_a_steady_ramp_does_not_reach_the_gain(per_slot: float) -> None:
    # 0.8 % a launch is 5 % an hour: over the night the level moves by 12 %, ten times the gain.
    found = drifting(per_slot, 0.012).analyse()
    gains = [r.result.gain.estimate for r in found.ranking[AT_8.key] if r.result.gain]
    assert len(gains) == 10  # one of them launched twice
    assert gains == pytest.approx([0.012] * len(gains), abs=0.002)
    assert found.drift[0].per_hour == pytest.approx(6 * per_slot, abs=1e-4)
    assert len(found.drift[0].points) == 5


def test_trials_of_two_hosts_are_compared_through_their_own_baselines() -> None:
    night = Night()
    for host, level, trial, gain in (("fast", 1000.0, 0, 1.02), ("slow", 600.0, 1, 1.08)):
        for _ in range(2):
            night.add(None, rounds(level), host=host)
        night.add(trial, rounds(level * gain), host=host)
        night.add(None, rounds(level), host=host)
    found = night.analyse()
    estimates = {r.trial: r.result.gain.estimate for r in found.ranking[AT_8.key] if r.result.gain}
    assert estimates == {0: pytest.approx(0.02), 1: pytest.approx(0.08)}
    assert {d.host for d in found.drift} == {"fast", "slow"}
    # The sampler sees both on one scale, whatever host they ran on.
    values = [found.value(trial, AT_8) for trial in (0, 1)]
    assert values[0] is not None
    assert values[1] is not None
    assert values[1][0] / values[0][0] == pytest.approx(1.08 / 1.02)


def test_brackets_that_disagree_make_the_trial_not_comparable() -> None:
    night = Night()
    for level in (800.0, 804.0, 798.0):
        night.add(None, rounds(level))
    night.add(0, rounds(840.0))
    night.add(None, rounds(801.0))
    night.add(1, rounds(840.0))
    night.add(None, rounds(700.0))  # a step of 13 % somewhere in between
    night.add(2, rounds(735.0))
    night.add(None, rounds(699.0))
    found = night.analyse()
    assert set(found.not_comparable) == {1}
    assert "differ by -12.6%" in found.not_comparable[1]
    assert found.flags(1) == (Flag.NOT_COMPARABLE,)
    row = found.find(1, "output_throughput", 8)
    assert row is not None
    assert row.comparison is Comparison.NOT_COMPARABLE
    assert row.gain is None
    assert found.value(1, AT_8) is None
    assert {r.trial for r in found.ranking[AT_8.key]} == {0, 2}
    # Measured again between steady baselines it is comparable.
    night.add(1, rounds(735.0))
    night.add(None, rounds(700.0))
    again = night.analyse()
    assert again.not_comparable == {}
    row = again.find(1, "output_throughput", 8)
    assert row is not None
    assert row.gain is not None
    assert row.n_launches == 1


@pytest.mark.parametrize(
    ("last", "refused"),
    [
        (800.0, False),
        (765.0, False),  # 4.5 %: within the tolerance
        (735.0, False),  # 8.5 %: two launches that vary by 3 to 4 % each do that
        (700.0, True),
        (915.0, True),
    ],
)
def test_two_baselines_alone_can_disagree(last: float, refused: bool) -> None:
    night = Night()
    night.add(None, rounds(800.0))
    night.add(0, rounds(840.0))
    night.add(None, rounds(last))
    assert bool(night.analyse().not_comparable) is refused


@pytest.mark.parametrize("last", [706.0, 735.0, 870.0, 906.0])
def test_a_step_that_two_baselines_may_hide_decides_nothing(last: float) -> None:
    # 9 to 14 %, not refused: then the interval must know of it, whichever baseline the candidate belongs to.
    night = Night()
    night.add(None, rounds(800.0))
    night.add(0, rounds(min(800.0, last)))
    night.add(1, rounds(max(800.0, last)))
    night.add(None, rounds(last))
    found = night.analyse()
    assert found.not_comparable == {}
    rows = [found.find(trial, "output_throughput", 8) for trial in (0, 1)]
    assert [row and row.comparison for row in rows] == [Comparison.TIE, Comparison.TIE]


@pytest.mark.parametrize(("baselines", "limit"), [(2, 0.03), (3, 0.03), (4, 0.02), (6, 0.03), (10, 0.03)])
@pytest.mark.parametrize("sd", [0.01, 0.02, 0.03, 0.04])
def test_launches_that_only_vary_are_seldom_refused(baselines: int, limit: float, sd: float) -> None:
    """The share of brackets refused for nothing, over studies of pure launch noise."""
    chunk, rng = alternating(baselines), np.random.default_rng(7)
    refused = sum(len(brackets_disagree(chunk, rng.normal(0, sd, 2 * baselines), 0.05, 0.0)) for _ in range(800))
    assert refused / (800 * (baselines - 1)) <= limit


@pytest.mark.parametrize(("baselines", "step"), [(3, 0.11), (5, 0.09), (9, 0.07), (25, 0.055)])
def test_the_more_baselines_agree_the_smaller_a_step_is_refused(baselines: int, step: float) -> None:
    chunk = alternating(baselines)
    after = np.arange(2 * baselines) > baselines
    quiet = np.random.default_rng(3).normal(0, 0.002, 2 * baselines)
    assert len(brackets_disagree(chunk, quiet + step * after, 0.05, 0.0)) == 1
    assert brackets_disagree(chunk, quiet + 0.04 * after, 0.05, 0.0) == {}


def alternating(baselines: int) -> Chunk:
    """Baseline, candidate, baseline, ...: the last launch is a candidate that no baseline follows."""
    every = np.arange(2 * baselines)
    return Chunk(every, every % 2 == 0, every.astype(np.float64), "h", False, 60.0, {})


def test_a_third_baseline_teaches_the_noise_that_two_could_not() -> None:
    night = Night()
    night.add(None, rounds(800.0))
    night.add(0, rounds(840.0))
    night.add(None, rounds(690.0))
    assert set(night.analyse().not_comparable) == {0}
    night.add(0, rounds(830.0))
    night.add(None, rounds(805.0))  # launches vary by that much here, again
    assert night.analyse().not_comparable == {}


def test_noise_within_launches_is_allowed_for_two_baselines() -> None:
    rng = np.random.default_rng(5)

    def launch(speed: float, noise: float) -> list:  # type: ignore[type-arg]  # BlockResult
        scatter = noise * rng.permutation([-1.4, -0.9, -0.4, 0.4, 0.9, 1.4])
        return [load_block(speed * float(np.exp(away)), k) for k, away in enumerate(scatter)]

    def refused(noise: float) -> bool:
        night = Night()
        for trial, speed in ((None, 800.0), (0, 840.0), (None, 680.0)):
            night.add(trial, launch(speed, noise))
        return bool(night.analyse().not_comparable)

    assert refused(0.01)  # 16 % between launches that are known to 0.4 %
    assert not refused(0.10)  # and between launches that are known to 4 %


def test_brackets_within_what_noise_explains_are_not_refused() -> None:
    night = Night()
    for level in (800.0, 690.0, 790.0, 900.0):  # launches that vary by 12 % anyway
        night.add(None, rounds(level))
        night.add(0 if level == 690.0 else 1, rounds(800.0))
    night.add(None, rounds(810.0))
    assert night.analyse().not_comparable == {}


def test_without_a_baseline_on_its_host_a_trial_is_not_comparable() -> None:
    night = Night()
    for _ in range(2):
        night.add(None, rounds(800.0), host="a")
    night.add(0, rounds(900.0), host="b")
    found = night.analyse()
    assert "no baseline was measured on b" in found.not_comparable[0]


def test_a_launch_whose_rounds_contradict_each_other_is_measured_again() -> None:
    night = Night()
    for _ in range(3):
        night.add(None, rounds(800.0))
    night.add(0, [load_block(880.0, 0), load_block(430.0, 1), load_block(440.0, 2)])
    night.add(1, rounds(880.0))
    night.add(None, rounds(800.0))
    found = night.analyse()
    assert "contradict" in found.not_comparable[0]
    assert 1 not in found.not_comparable


def test_long_nights_are_cut_into_overlapping_stretches() -> None:
    night = Night()
    for slot in range(3 * CHUNK):
        night.add(None if slot % 2 == 0 else 0, rounds(800.0))
    figures = [extract(launch, ()) for launch in night.launches]
    parts = chunks(figures)
    assert len(parts) == 2
    assert sum(len(p.members) for p in parts) == len(figures) + 1
    shared = set(parts[0].members) & set(parts[1].members)
    assert [figures[i].role for i in shared] == [Role.BASELINE]
