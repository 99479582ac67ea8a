"""Two tables recorded on a real server: what may be said about them, and what may not."""

from __future__ import annotations

import statistics

import pytest

from sweep.analysis import AnalysisSettings, StudyAnalysis, analyse
from sweep.model import Basis, Comparison, Objective
from tests.analysis_tests.recorded import TREES, llama8b, smollm2

LEVELS = (1, 4, 16, 32, 48)
OBJECTIVES = [Objective("output_throughput", level, True) for level in LEVELS]
ONE_LAUNCH_EACH = AnalysisSettings(metrics=("output_throughput",), launch_effects=False)
GAINING = (1, 4, 16)  # at these loads speculation pays, above it does not


def best_by_medians() -> dict[int, int]:
    """Concurrency -> the tree whose rounds have the highest median throughput in the table itself."""
    found: dict[int, dict[int, float]] = {}
    for launch in llama8b()[0]:
        for level in LEVELS:
            speeds = [b.output_tokens / b.elapsed_s for b in launch.blocks if b.concurrency == level]
            if launch.trial is not None:
                found.setdefault(level, {})[launch.trial] = statistics.median(speeds)
    return {level: max(speeds, key=lambda trial: speeds[trial]) for level, speeds in found.items()}


def analysed(*, without_half_speed: bool = False, settings: AnalysisSettings = ONE_LAUNCH_EACH) -> StudyAnalysis:
    launches, arms = llama8b(without_half_speed=without_half_speed)
    return analyse(launches, arms, objectives=OBJECTIVES, settings=settings)


@pytest.mark.parametrize("settings", [ONE_LAUNCH_EACH, AnalysisSettings(metrics=("output_throughput",))])
def test_llama8b_names_the_best_tree_at_each_load_or_a_tie_that_contains_it(settings: AnalysisSettings) -> None:
    found = analysed(settings=settings)
    best = best_by_medians()
    assert (best[1], best[4], best[16]) == (3, 3, 2)
    for objective in OBJECTIVES:
        ranking = found.ranking[objective.key]
        first = [r for r in ranking if r.rank == 1]
        words = {r.trial: r.result.comparison for r in ranking}
        assert all(r.result.gain is not None and r.result.gain.basis is Basis.RESIDENT for r in ranking)
        assert best[objective.concurrency] in [r.trial for r in first]
        if objective.concurrency in GAINING:
            assert set(words.values()) == {Comparison.FASTER}
        else:
            assert set(words.values()) == {Comparison.SLOWER}


def test_llama8b_gains_are_those_of_the_medians() -> None:
    found = analysed()
    medians = {(1, 1): 0.42, (2, 1): 0.59, (3, 1): 0.63, (2, 16): 0.16, (3, 16): 0.07, (1, 32): -0.11, (3, 48): -0.47}
    for (trial, level), expected in medians.items():
        row = found.find(trial, "output_throughput", level)
        assert row is not None
        assert row.gain is not None
        assert row.gain.estimate == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("settings", [ONE_LAUNCH_EACH, AnalysisSettings(metrics=("output_throughput",))])
def test_llama8b_crossover_lies_between_16_and_32_with_an_interval(settings: AnalysisSettings) -> None:
    found = analysed(settings=settings)
    assert {c.trial for c in found.crossovers} == set(TREES)
    for crossing in found.crossovers:
        assert crossing.low is not None
        assert crossing.estimate is not None
        assert crossing.high is not None
        assert 16 < crossing.low < crossing.estimate < crossing.high < 32
    assert found.envelope[-1].trial is None
    assert "none above" in found.sentences[-1]


@pytest.mark.parametrize("settings", [ONE_LAUNCH_EACH, AnalysisSettings(metrics=("output_throughput",))])
def test_three_half_speed_blocks_move_no_verdict(settings: AnalysisSettings) -> None:
    with_them = analysed(settings=settings)
    without = analysed(without_half_speed=True, settings=settings)
    for objective in OBJECTIVES:
        words = [
            {r.trial: (r.rank, r.result.comparison) for r in found.ranking[objective.key]}
            for found in (with_them, without)
        ]
        assert words[0] == words[1]
    assert with_them.not_comparable == {}
    assert [s.trial for s in with_them.envelope] == [s.trial for s in without.envelope]
    # They are in the table, and at half speed: no other block is as far from its launch's middle.
    spread = {}
    for name, launches in (("with", llama8b()[0]), ("without", llama8b(without_half_speed=True)[0])):
        speeds = [
            [b.output_tokens / b.elapsed_s for b in launch.blocks if b.concurrency == level]
            for launch in launches
            for level in LEVELS
        ]
        spread[name] = sorted(min(rounds) / statistics.median(rounds) for rounds in speeds)
    assert spread["with"][2] < 0.6 < spread["with"][3]
    assert spread["without"][0] > 0.7


def test_small_model_names_no_winner_and_no_loser_it_cannot_prove() -> None:
    launches, arms, trials = smollm2()
    objective = Objective("output_throughput", 1, True)
    found = analyse(launches, arms, objectives=[objective])
    ranking = found.ranking[objective.key]
    words = {trials[r.trial].label(): r.result.comparison for r in ranking}
    # Without CUDA graphs the server is fifteen times slower: that one is proved.
    assert words.pop("no speculation, no graphs") is Comparison.SLOWER
    assert set(words.values()) == {Comparison.TIE}
    assert len(words) == 12
    assert {r.rank for r in ranking} == {1, 13}
    assert "nothing is shown to beat the baseline" in found.sentences[0]
    chains = [r for r in ranking if trials[r.trial].topk == 1]
    assert len(chains) == 4
    for chain in chains:
        assert chain.result.gain is not None
        assert chain.result.gain.estimate < 0 < chain.result.gain.high  # below the baseline, unresolved
    noise = next(n for n in found.noise if n.metric == "output_throughput")
    assert noise.launch_mean_sd > 0.04
    assert noise.minimum_detectable_gain > 0.2


def test_small_model_relaunched_arms_use_both_launches() -> None:
    launches, arms, trials = smollm2()
    objective = Objective("output_throughput", 1, True)
    found = analyse(launches, arms, objectives=[objective])
    launched = {trials[r.trial].label(): r.result.n_launches for r in found.ranking[objective.key]}
    assert launched["EAGLE3 drafter 2/4/8"] == launched["EAGLE3 drafter 5/4/8"] == 2
    assert launched["EAGLE3 drafter 3/4/16"] == 1
