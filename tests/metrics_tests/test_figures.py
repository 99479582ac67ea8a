"""Figures against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sweep.errors import ConfigError
from sweep.metrics import METRICS, Slo, accept_histogram, block_summary, by_category, value
from sweep.model import BlockResult, ClientHealth, RequestRecord, Stage

HEALTH = ClientHealth(0.0, 0.0, 0.0, 0)


def request(index: int, sent: float, ttft: float, end: float, tokens: int, **more: object) -> RequestRecord:
    row = RequestRecord(index, f"p{index}", "code", sent, ttft, end, output_tokens=tokens)
    return replace(row, **more)  # type: ignore[arg-type] # any field may be given


def block(*requests: RequestRecord, elapsed_s: float = 4.0, invalid: str | None = None) -> BlockResult:
    return BlockResult(Stage.SEARCH, 1, 0, "h", 0.0, elapsed_s, requests, HEALTH, invalid=invalid)


TWO = block(
    request(0, 0.0, 0.1, 1.1, 11, verify_steps=4, correct_drafts=6, accept_histogram=(1, 0, 3)),
    request(1, 1.0, 0.3, 4.0, 28, verify_steps=6, correct_drafts=3, accept_histogram=(3, 3)),
)


def test_every_metric_has_its_row_and_its_value() -> None:
    summary = block_summary(TWO, slo=Slo(ttft_ms=200), num_draft_tokens=4)
    assert set(summary) == set(METRICS)
    assert all(figure is not None for figure in summary.values())
    for name, metric in METRICS.items():
        assert metric.name == name
        assert metric.unit
        assert metric.formula
        assert metric.source


def test_throughput_latency_and_speed() -> None:
    summary = block_summary(TWO)
    assert summary["output_throughput"] == pytest.approx(39 / 4)
    assert summary["request_throughput"] == pytest.approx(0.5)
    assert summary["achieved_concurrency"] == pytest.approx((1.1 + 3.0) / 4)
    assert summary["ttft_mean"] == pytest.approx(200)
    assert summary["ttft_p90"] == pytest.approx(280)  # linear between 100 and 300
    assert summary["tpot_mean"] == pytest.approx(100)  # 1.0 s / 10 and 2.7 s / 27
    assert summary["e2e_p50"] == pytest.approx((1100 + 3000) / 2)
    assert summary["per_user_speed_p50"] == pytest.approx(10)
    assert summary["per_user_speed_p5"] == pytest.approx(10)


def test_acceptance() -> None:
    summary = block_summary(TWO, num_draft_tokens=4)
    assert summary["accept_length"] == pytest.approx(1 + 9 / 10)
    assert summary["accept_length_request_mean"] == pytest.approx((1 + 6 / 4 + 1 + 3 / 6) / 2)
    assert summary["accept_rate"] == pytest.approx(9 / (10 * 3))
    assert block_summary(TWO)["accept_rate"] is None
    assert accept_histogram(TWO) == (4, 3, 3)


def test_goodput_needs_every_limit() -> None:
    assert block_summary(TWO)["goodput"] is None
    assert block_summary(TWO, slo=Slo(ttft_ms=200))["goodput"] == pytest.approx(1 / 4)
    assert block_summary(TWO, slo=Slo(ttft_ms=300, tpot_ms=101))["goodput"] == pytest.approx(2 / 4)
    assert block_summary(TWO, slo=Slo(ttft_ms=300, e2e_ms=1000))["goodput"] == 0.0


def test_failures_count_in_the_ratio_and_nowhere_else() -> None:
    failed = RequestRecord(2, "p2", "code", 0.0, 9.0, 100.0, error="http 500")
    with_failure = block_summary(replace(TWO, requests=(*TWO.requests, failed)))
    assert with_failure.pop("success_ratio") == pytest.approx(2 / 3)
    without = block_summary(TWO)
    assert without.pop("success_ratio") == 1.0
    assert with_failure == without


def test_nothing_measured_is_none_and_not_zero() -> None:
    failed = RequestRecord(0, "p", "code", 0.0, None, 1.0, error="stalled")
    summary = block_summary(block(failed), slo=Slo(ttft_ms=1), num_draft_tokens=4)
    assert summary.pop("success_ratio") == 0.0
    assert set(summary.values()) == {None}
    assert accept_histogram(block(failed)) == ()
    assert set(block_summary(block()).values()) == {None}


def test_a_single_token_has_no_tpot() -> None:
    summary = block_summary(block(request(0, 0.0, 0.1, 0.1, 1)), slo=Slo(tpot_ms=1))
    assert summary["tpot_p50"] is None
    assert summary["per_user_speed_p50"] is None
    assert summary["goodput"] == pytest.approx(1 / 4)


def test_value_refuses_invalid_blocks_and_unknown_names() -> None:
    assert value(TWO, "output_throughput") == pytest.approx(39 / 4)
    assert value(replace(TWO, invalid="cancelled"), "output_throughput") is None
    with pytest.raises(ConfigError, match="did you mean 'ttft_p99'"):
        value(TWO, "ttft_p98")


def test_categories_share_the_wall_time() -> None:
    rows = (TWO.requests[0], replace(TWO.requests[1], category="math"))
    parts = by_category(replace(TWO, requests=rows))
    assert list(parts) == ["code", "math"]
    share = 4.0 * 1.1 / 4.1
    assert parts["code"]["output_throughput"] == pytest.approx(11 / share)
    assert parts["code"]["accept_length"] == pytest.approx(2.5)
    assert parts["math"]["success_ratio"] == 1.0
    assert by_category(TWO)["code"] == pytest.approx(block_summary(TWO))


def test_a_category_that_failed_whole_has_no_speed() -> None:
    failed = RequestRecord(2, "p2", "math", 0.0, None, 1.0, error="http 500")
    parts = by_category(replace(TWO, requests=(*TWO.requests, failed)))
    assert parts["math"]["output_throughput"] is None
    assert parts["math"]["success_ratio"] == 0.0
