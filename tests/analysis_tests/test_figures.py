"""What reaches the arithmetic, and what must not."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from sweep.analysis import AnalysisSettings
from sweep.analysis.figures import extract, prompt_is_unit
from sweep.metrics import Slo, by_category
from sweep.model import BlockResult, Comparison, Objective
from tests.analysis_tests.made import AT_1, AT_8, Night, block, load_block, request


def test_failed_requests_and_invalid_blocks_never_enter() -> None:
    good = [request(k, 100.0) for k in range(4)]
    failed = replace(request(4, 5000.0), error="timeout", output_tokens=None)
    night = Night()
    with_failures = extract(night.add(None, [block([*good, failed], elapsed=8.0)]), ())
    without = extract(night.add(None, [block(good, elapsed=8.0)]), ())
    assert with_failures.prompts == without.prompts
    assert with_failures.levels["output_throughput", 1] == pytest.approx(100.0)
    spoilt = extract(night.add(None, [load_block(800.0), load_block(9.0, 1, invalid="client limited")]), ())
    assert list(spoilt.cells["output_throughput", 8, None].values()) == [pytest.approx(math.log(800.0))]


def test_a_round_without_goodput_is_not_left_out_of_its_mean() -> None:
    slo, night = Slo(ttft_ms=100.0), Night()
    good, late = load_block(800.0, 0), load_block(800.0, 1)
    late = replace(late, requests=tuple(replace(row, ttft_s=0.5) for row in late.requests))
    kept = extract(night.add(None, [good, load_block(700.0, 1)]), ("goodput",), slo)
    mixed = extract(night.add(0, [good, late]), ("goodput",), slo)
    assert len(kept.cells["goodput", 8, None]) == 2
    assert ("goodput", 8, None) not in mixed.cells
    assert ("goodput", 8) not in mixed.levels
    assert len(mixed.cells["output_throughput", 8, None]) == 2


def test_latencies_are_inverted_so_that_positive_is_better() -> None:
    night = Night()
    slow = extract(night.add(None, [block([request(0, 100.0, ttft_s=0.2)])]), ("ttft_p50",))
    fast = extract(night.add(None, [block([request(0, 100.0, ttft_s=0.1)])]), ("ttft_p50",))
    unit = ("set", "p0")
    assert fast.prompts["ttft_p50", 1][unit] - slow.prompts["ttft_p50", 1][unit] == pytest.approx(math.log(2))


def test_category_throughput_under_load_is_the_one_of_the_metrics_up_to_a_factor_of_the_block() -> None:
    rows = [
        request(k, 50.0 if k % 2 else 80.0, category="code" if k % 2 else "math", tokens=100 + 7 * k) for k in range(8)
    ]
    measured = block(rows, concurrency=8)
    cells = extract(Night().add(None, [measured]), ()).cells
    expected = by_category(measured)
    unit = ("set", "0")
    ours = cells["output_throughput", 8, "math"][unit] - cells["output_throughput", 8, "code"][unit]
    theirs = math.log((expected["math"]["output_throughput"] or 0) / (expected["code"]["output_throughput"] or 1))
    assert ours == pytest.approx(theirs)


def test_the_prompt_is_the_unit_at_concurrency_1_only_and_not_for_tail_percentiles() -> None:
    assert prompt_is_unit("output_throughput", 1)
    assert prompt_is_unit("ttft_p50", 1)
    assert not prompt_is_unit("ttft_p99", 1)
    assert not prompt_is_unit("output_throughput", 8)


def test_pairs_are_only_made_between_equal_prompt_lists() -> None:
    night = Night()
    for _ in range(3):
        night.add(None, [load_block(800.0, k) for k in range(3)])
    night.add(0, [load_block(1600.0, k, prompts_hash="another set") for k in range(3)])
    night.add(1, [load_block(880.0, k) for k in range(3)])
    night.add(None, [load_block(800.0, k) for k in range(3)])
    found = night.analyse(AT_8)
    assert [r.trial for r in found.ranking[AT_8.key]] == [1]
    row = found.find(0, "output_throughput", 8)
    assert row is not None
    assert (row.gain, row.comparison) == (None, Comparison.NOT_COMPARABLE)
    assert "no baseline was measured on h with the same prompts" in found.not_comparable[0]


def test_concurrency_1_pairs_prompt_by_prompt_when_some_are_missing() -> None:
    speeds = [20.0, 40.0, 80.0, 160.0, 320.0, 640.0]
    whole = [request(k, speed) for k, speed in enumerate(speeds)]
    night = Night()
    for _ in range(3):
        night.add(None, [block(whole)])
    # The arm is 10 % faster on every prompt, and lost the two fastest: an unpaired mean would call it slower.
    night.add(0, [block([request(k, 1.1 * speed) for k, speed in enumerate(speeds[:4])])])
    night.add(None, [block(whole)])
    row = night.analyse(AT_1).find(0, "output_throughput", 1)
    assert row is not None
    assert row.gain is not None
    assert row.gain.estimate == pytest.approx(0.1)
    assert row.n_pairs == 4


@pytest.mark.parametrize("level", [1, 8])
def test_latencies_have_gains_by_category_like_throughput(level: int) -> None:
    """One arm answers code twice as soon and writing half as soon, with the same throughput."""
    objective = Objective("ttft_p50", level, False)

    def measured(factor: float) -> list[BlockResult]:
        rows = [
            request(k, 100.0, category=c, ttft_s=0.1 * (k + 1) * (1 / factor if c == "code" else factor))
            for k, c in enumerate(["code", "writing"] * 4)
        ]
        return [block(rows, concurrency=level, number=n, elapsed=16.0) for n in range(3)]

    night = Night()
    for trial, factor in ((None, 1.0), (None, 1.0), (0, 2.0), (None, 1.0)):
        night.add(trial, measured(factor))
    found = night.analyse(objective, settings=AnalysisSettings())
    gains = {
        (metric, category): row.gain.estimate
        for metric in ("ttft_p50", "tpot_p50", "output_throughput")
        for category in ("code", "writing")
        if (row := found.find(0, metric, level, category)) is not None and row.gain is not None
    }
    assert gains["ttft_p50", "code"] == pytest.approx(1.0)
    assert gains["ttft_p50", "writing"] == pytest.approx(-0.5)
    assert gains["output_throughput", "code"] == pytest.approx(0.0, abs=1e-9)
    assert gains["tpot_p50", "code"] < 0 < gains["tpot_p50", "writing"]  # what came sooner took longer from there
    assert found.find(0, "ttft_p50", 64, "code") is None
