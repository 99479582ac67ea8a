"""Each validity gate: fired, and not fired just inside its bound."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sweep.bench.health import (
    CPU_SHARE_LIMIT,
    LAG_MIN_ELAPSED_S,
    LAG_P50_LIMIT_S,
    LAG_P99_LIMIT_S,
    PATH_FACTOR,
    why_invalid,
)
from sweep.model import ClientHealth, RequestRecord

GOOD = ClientHealth(lag_p50_s=0.0002, lag_p99_s=0.002, cpu_share=0.1, chunks=1000)


def rows(good: int, bad: int) -> list[RequestRecord]:
    ok = [RequestRecord(i, f"p{i}", "code", 0.0, 0.1, 1.0, output_tokens=10) for i in range(good)]
    return ok + [RequestRecord(good + i, "q", "code", 0.0, None, 1.0, error="http 500: no") for i in range(bad)]


def judge(health: ClientHealth, good: int = 100, bad: int = 0, elapsed_s: float = 10.0) -> str | None:
    return why_invalid(rows(good, bad), health, elapsed_s, cancelled=False, asked=good + bad)


@pytest.mark.parametrize(
    ("health", "word"),
    [
        (replace(GOOD, lag_p50_s=LAG_P50_LIMIT_S * 1.1), "5.5 ms late in the median"),
        (replace(GOOD, lag_p99_s=LAG_P99_LIMIT_S * 1.01), "101 ms at the 99th percentile"),
        (replace(GOOD, cpu_share=CPU_SHARE_LIMIT * 1.01), "0.91 of a core"),
        (replace(GOOD, path_capacity_chunks_per_s=PATH_FACTOR * 100 * 0.99), "297 chunks/s, the load was 100"),
    ],
)
def test_client_gates_fire_with_numbers(health: ClientHealth, word: str) -> None:
    reason = judge(health)
    assert reason is not None
    assert word in reason


@pytest.mark.parametrize(
    "health",
    [
        GOOD,
        replace(GOOD, lag_p50_s=LAG_P50_LIMIT_S),
        replace(GOOD, lag_p99_s=LAG_P99_LIMIT_S),
        replace(GOOD, cpu_share=CPU_SHARE_LIMIT),
        replace(GOOD, path_capacity_chunks_per_s=PATH_FACTOR * 100),
    ],
)
def test_client_gates_keep_quiet_at_their_bounds(health: ClientHealth) -> None:
    assert judge(health) is None


def test_lag_is_judged_only_where_there_are_enough_samples() -> None:
    late = replace(GOOD, lag_p50_s=1.0, lag_p99_s=1.0, chunks=10)
    assert judge(late, elapsed_s=LAG_MIN_ELAPSED_S) is not None
    assert judge(late, elapsed_s=LAG_MIN_ELAPSED_S * 0.99) is None


def test_success_gate() -> None:
    assert judge(GOOD, good=99, bad=1) is None
    assert judge(GOOD, good=98, bad=2) == "98 of 100 requests succeeded (0.980 < 0.99): 2 x http 500: no"
    assert judge(GOOD, good=0, bad=0) == "0 of 0 requests succeeded (0.000 < 0.99): nothing was sent"


def test_cancelled_is_said_before_anything_else() -> None:
    assert why_invalid(rows(1, 1), GOOD, 1.0, cancelled=True, asked=9) == "cancelled after 2 of 9 requests"
