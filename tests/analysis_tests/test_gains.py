"""Gains, their intervals and where their degrees of freedom come from."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from sweep.analysis import ENGINE_DEFAULT_REFERENCE, AnalysisSettings
from sweep.analysis.gains import satterthwaite
from sweep.model import Basis, Comparison, Role, Stage
from tests.analysis_tests.made import AT_1, AT_8, THROUGHPUT_ONLY, Night, block, load_block, request


def rounds(speed: float, count: int = 3, **more: object) -> list:  # type: ignore[type-arg]  # BlockResult
    return [load_block(speed, k, **more) for k in range(count)]


def test_gain_at_concurrency_1_is_the_exponential_of_the_mean_log_ratio() -> None:
    base = [75.0, 90.0, 110.0, 60.0, 95.0]
    arm = [70.0, 99.0, 104.0, 63.0, 80.0]
    night = Night()
    night.add(None, [block([request(k, s) for k, s in enumerate(base)])])
    night.add(0, [block([request(k, s) for k, s in enumerate(arm)])])
    night.add(None, [block([request(k, s) for k, s in enumerate(base)])])
    row = night.analyse(AT_1).find(0, "output_throughput", 1)
    assert row is not None
    assert row.gain is not None
    expected = math.exp(np.mean(np.log(np.array(arm) / np.array(base)))) - 1
    assert row.gain.estimate == pytest.approx(expected)
    # The prompts differ in what they gain, so the interval is wider than the launches alone would make it.
    logs = np.log(np.array(arm) / np.array(base))
    assert row.log_se is not None
    assert row.log_se > 0.9 * logs.std(ddof=1) / math.sqrt(5)


def test_a_category_that_gains_is_seen_and_not_fenced_away() -> None:
    night = Night()
    speeds = {"code": 1.3, "math": 0.9, "writing": 0.9}

    def one(factors: dict[str, float]) -> list:  # type: ignore[type-arg]  # BlockResult
        return [
            block(
                [
                    request(3 * k + n, (60 + 7 * k) * factors.get(name, 1.0), category=name, accept=2.0)
                    for k in range(8)
                    for n, name in enumerate(("code", "math", "writing"))
                ]
            )
        ]

    for _ in range(3):
        night.add(None, one({}))
    night.add(0, one(speeds))
    night.add(None, one({}))
    found = night.analyse(AT_1)
    by_name = {name: found.find(0, "output_throughput", 1, name) for name in speeds}
    assert {n: r.gain.estimate for n, r in by_name.items() if r and r.gain} == {
        "code": pytest.approx(0.3),
        "math": pytest.approx(-0.1),
        "writing": pytest.approx(-0.1),
    }
    whole = found.find(0, "output_throughput", 1)
    assert whole is not None
    assert whole.gain is not None
    assert whole.gain.estimate == pytest.approx((1.3 * 0.9 * 0.9) ** (1 / 3) - 1)


def test_one_launch_each_gives_an_interval_that_is_neither_zero_nor_infinite() -> None:
    night = Night()
    night.add(None, rounds(800.0))
    night.add(0, rounds(880.0))
    row = night.analyse().find(0, "output_throughput", 8)
    assert row is not None
    assert row.gain is not None
    assert row.df == pytest.approx(2.0)  # the prior's, nothing else is known
    half = math.log(1 + row.gain.high) - math.log(1 + row.gain.estimate)
    assert 0.03 < half < 0.15


def test_degrees_of_freedom_of_repeated_baselines_are_carried() -> None:
    rng = np.random.default_rng(5)
    widths = []
    for baselines in (2, 4, 12):
        night = Night()
        for _ in range(baselines):
            night.add(None, rounds(800.0 * float(np.exp(rng.normal(0, 0.008)))))
        night.add(0, rounds(880.0))
        night.add(None, rounds(800.0))
        row = night.analyse().find(0, "output_throughput", 8)
        assert row is not None
        assert row.df is not None
        widths.append(row.df)
    assert widths[0] < widths[1] < widths[2]
    assert 8 < widths[2] < 15


def test_confirm_gain_replaces_the_search_gain_and_keeps_it_beside() -> None:
    night = Night()
    for _ in range(2):
        night.add(None, rounds(800.0))
    night.add(0, rounds(920.0))  # lucky
    night.add(1, rounds(810.0))
    night.add(None, rounds(800.0))
    for trial, speed in ((None, 700.0), (0, 735.0), (0, 735.0), (None, 700.0)):
        night.add(trial, rounds(speed, prompts_hash="fresh"), stage=Stage.CONFIRM, pair=1)
    found = night.analyse()
    row = found.find(0, "output_throughput", 8)
    assert row is not None
    assert row.gain is not None
    assert row.search_gain is not None
    assert (row.gain.stage, row.gain.basis) == (Stage.CONFIRM, Basis.ALTERNATE)
    assert row.gain.estimate == pytest.approx(0.05)
    assert (row.search_gain.stage, row.search_gain.basis) == (Stage.SEARCH, Basis.BRACKETED)
    assert row.search_gain.estimate == pytest.approx(0.15)
    assert [r.confirmed for r in found.ranking[AT_8.key] if r.trial == 0] == [True]
    unconfirmed = found.find(1, "output_throughput", 8)
    assert unconfirmed is not None
    assert unconfirmed.search_gain is None


def test_alternating_order_cancels_a_drift_that_a_plain_order_would_report() -> None:
    def confirm(order: list[int | None]) -> float:
        night = Night()
        for slot, trial in enumerate(order):
            speed = 800.0 * math.exp(-0.01 * slot) * (1.0 if trial is None else 1.04)
            night.add(trial, rounds(speed), stage=Stage.CONFIRM, pair=1)
        row = night.analyse().find(0, "output_throughput", 8)
        assert row is not None
        assert row.gain is not None
        return row.gain.estimate

    assert confirm([None, 0, 0, None]) == pytest.approx(0.04, abs=1e-6)
    assert confirm([0, None, None, 0]) == pytest.approx(0.04, abs=1e-6)


def test_servers_alive_together_are_paired_round_by_round() -> None:
    # The host halves its speed in the middle of the launch; both servers feel it in the same rounds.
    spell = [1.0, 1.0, 0.5, 0.5, 0.5, 1.0, 1.0, 1.0]
    night = Night()
    base = [load_block(800.0 * f, k) for k, f in enumerate(spell)]
    arm = [load_block(840.0 * f, k) for k, f in enumerate(spell)]
    night.add(None, base, pair=7, slot=0)
    night.add(0, arm, pair=7, slot=0)
    found = night.analyse(settings=AnalysisSettings(metrics=("output_throughput",), launch_effects=True))
    row = found.find(0, "output_throughput", 8)
    assert row is not None
    assert row.gain is not None
    assert row.gain.basis is Basis.RESIDENT
    assert row.gain.estimate == pytest.approx(0.05)
    assert row.n_pairs == 8


def test_gain_over_the_engine_default_shares_the_baseline_error() -> None:
    night = Night()
    for _ in range(2):
        night.add(None, rounds(800.0))
    night.add(None, rounds(840.0), role=Role.ENGINE_DEFAULT)
    night.add(0, rounds(882.0))
    night.add(None, rounds(800.0))
    found = night.analyse()
    row = found.find(0, "output_throughput", 8, None, ENGINE_DEFAULT_REFERENCE)
    assert row is not None
    assert row.gain is not None
    assert row.gain.estimate == pytest.approx(0.05)
    default = found.find(None, "output_throughput", 8)
    assert default is not None
    assert default.gain is not None
    assert default.gain.estimate == pytest.approx(0.05)
    assert all(r.trial is not None for r in found.ranking[AT_8.key])  # a reference is not ranked


def test_a_confirmed_arm_meets_the_engine_default_with_what_was_confirmed() -> None:
    """The default was launched in the search only, when the host was faster; the search flattered the arm."""
    night = Night()
    for _ in range(2):
        night.add(None, rounds(800.0))
    night.add(None, rounds(840.0), role=Role.ENGINE_DEFAULT)  # + 5 %
    night.add(0, rounds(920.0))  # + 15 %
    night.add(1, rounds(880.0))
    night.add(None, rounds(800.0))
    searched = night.analyse().find(0, "output_throughput", 8, None, ENGINE_DEFAULT_REFERENCE)
    for trial, speed in ((None, 700.0), (0, 770.0), (0, 770.0), (None, 700.0)):  # + 10 %
        night.add(trial, rounds(speed, prompts_hash="fresh"), stage=Stage.CONFIRM, pair=1)
    found = night.analyse()
    row = found.find(0, "output_throughput", 8, None, ENGINE_DEFAULT_REFERENCE)
    assert row is not None
    assert row.gain is not None
    assert row.search_gain is not None
    assert row.gain.estimate == pytest.approx(1.10 / 1.05 - 1)
    assert row.gain.stage is Stage.CONFIRM
    assert row.search_gain.estimate == pytest.approx(1.15 / 1.05 - 1)
    # both stages' baselines stand between the two, so no interval is narrower for it than the one over the baseline
    over_baseline = found.find(0, "output_throughput", 8)
    assert over_baseline is not None
    assert over_baseline.log_se is not None
    assert row.log_se is not None
    assert row.log_se > over_baseline.log_se
    other = found.find(1, "output_throughput", 8, None, ENGINE_DEFAULT_REFERENCE)
    assert other is not None
    assert other.gain is not None
    assert other.gain.stage is Stage.SEARCH
    assert searched is not None
    assert searched.gain is not None
    assert searched.gain.estimate == pytest.approx(row.search_gain.estimate)


def test_latency_gain_is_positive_when_latency_falls_and_its_value_is_in_its_unit() -> None:
    night = Night()

    def one(ttft: float) -> list:  # type: ignore[type-arg]  # BlockResult
        rows = [request(k, 100.0, ttft_s=ttft) for k in range(8)]
        return [block(rows, concurrency=8, number=n) for n in range(3)]

    for _ in range(3):
        night.add(None, one(0.2))
    night.add(0, one(0.16))
    night.add(None, one(0.2))
    objective = type(AT_8)("ttft_p50", 8, False)
    found = night.analyse(objective)
    row = found.find(0, "ttft_p50", 8)
    assert row is not None
    assert row.gain is not None
    assert row.gain.estimate == pytest.approx(0.25)
    value = found.value(0, objective)
    assert value is not None
    assert value[0] == pytest.approx(160.0)  # milliseconds
    assert row.comparison is Comparison.FASTER


def test_launch_variance_widens_the_interval_and_rounds_as_units_do_not_know_it() -> None:
    rng = np.random.default_rng(6)
    night = Night()
    for number in range(12):
        trial = None if number % 3 == 0 or number == 11 else number % 12
        night.add(trial, rounds(800.0 * float(np.exp(rng.normal(0, 0.05)))))
    with_launches = night.analyse()
    only_rounds = night.analyse(settings=AnalysisSettings(metrics=("output_throughput",), launch_effects=False))

    def widest(found: object) -> float:
        ranking = found.ranking[AT_8.key]  # type: ignore[attr-defined]  # StudyAnalysis
        return max(r.result.log_se or 0.0 for r in ranking)

    assert widest(with_launches) > 0.03
    assert widest(only_rounds) < 1e-6
    noise = next(n for n in with_launches.noise if n.concurrency == 8)
    assert 0.02 < noise.between_launch_sd < 0.1
    assert noise.minimum_detectable_gain > 0.1


def test_stated_minimum_detectable_gain_and_repeats_agree_with_their_formula() -> None:
    rng = np.random.default_rng(7)
    night = Night()
    for number in range(10):
        night.add(None if number % 2 == 0 else number % 12, rounds(800.0 * float(np.exp(rng.normal(0, 0.01)))))
    night.add(None, rounds(800.0))
    found = night.analyse()
    noise = next(n for n in found.noise if n.concurrency == 8)
    reach = stats.t.ppf(0.975, noise.df) + stats.t.ppf(0.8, noise.df)
    assert noise.launches_needed == math.ceil(2 * noise.launch_mean_sd**2 * (reach / math.log(1.03)) ** 2)
    assert noise.minimum_detectable_gain > math.expm1(reach * noise.launch_mean_sd)
    assert THROUGHPUT_ONLY.wanted_gain == noise.wanted_gain == 0.03


def test_satterthwaite_of_equal_parts_doubles_and_of_one_part_is_its_own() -> None:
    one = np.array([2.0])
    assert satterthwaite([(one, 5.0), (one, 5.0)]) == pytest.approx([10.0])
    assert satterthwaite([(one, 5.0), (np.array([0.0]), 3.0)]) == pytest.approx([5.0])


def test_input_order_does_not_matter_and_the_result_is_the_same_twice() -> None:
    rng = np.random.default_rng(8)
    night = Night()
    for number in range(9):
        night.add(None if number % 3 == 0 else number, rounds(800.0 * float(np.exp(rng.normal(0, 0.01)))))
    first = night.analyse()
    night.launches.reverse()
    assert night.analyse().as_dict() == first.as_dict()
