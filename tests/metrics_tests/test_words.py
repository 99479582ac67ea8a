"""Objectives and constraints as written by a user."""

from __future__ import annotations

import pytest

from sweep.errors import ConfigError
from sweep.metrics import parse_constraint, parse_objective, satisfied
from sweep.model import Constraint, Objective


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ttft_p99 < 200 ms", ("ttft_p99", None, True, 200.0)),
        ("ttft_p99@32 < 0.2 s", ("ttft_p99", 32, True, 200.0)),
        ("TTFT p99 @ 8 <= 1500us", ("ttft_p99", 8, True, 1.5)),
        ("success_ratio>=0.995", ("success_ratio", None, False, 0.995)),
        ("output_throughput@1 > 1e2 tok/s", ("output_throughput", 1, False, 100.0)),
        ("tpot_mean < 12", ("tpot_mean", None, True, 12.0)),
    ],
)
def test_constraint(text: str, expected: tuple[str, int | None, bool, float]) -> None:
    parsed = parse_constraint(text)
    assert (parsed.metric, parsed.concurrency, parsed.below) == expected[:3]
    assert parsed.limit == pytest.approx(expected[3])
    assert parsed.text == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ttft_p99", "cannot read constraint"),
        ("ttft_p99 < fast", "cannot read constraint"),
        ("ttft_p99 == 3", "cannot read constraint"),
        ("ttft_p99 < 200 tok/s", "ttft_p99 is in ms, not in 'tok/s'"),
        ("success_ratio > 99 %", "success_ratio is in fraction, not in '%'"),
        ("ttft_p999 < 1 s", "did you mean 'ttft_p99'"),
        ("ttft_p99@0 < 1 s", "concurrency must be at least 1"),
    ],
)
def test_bad_constraint(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_constraint(text)


def test_satisfied_includes_the_limit() -> None:
    below = Constraint("ttft_p99", None, True, 200.0, "")
    assert [satisfied(below, x) for x in (199.0, 200.0, 200.1)] == [True, True, False]
    above = Constraint("success_ratio", None, False, 0.99, "")
    assert [satisfied(above, x) for x in (0.98, 0.99, 1.0)] == [False, True, True]


def test_objective() -> None:
    assert parse_objective("output_throughput@8") == Objective("output_throughput", 8, maximize=True)
    assert parse_objective("ttft_p50", concurrency=4) == Objective("ttft_p50", 4, maximize=False)
    assert parse_objective("ttft_p50@2", concurrency=4).key == "ttft_p50@2"
    assert parse_objective("e2e_p90").concurrency == 1
    assert parse_objective("e2e_p90", direction="minimize").maximize is False


@pytest.mark.parametrize(
    ("text", "direction", "message"),
    [
        ("output_throughput@8@9", None, "cannot read objective"),
        ("throughput", None, "did you mean 'request_throughput'|did you mean 'output_throughput'"),
        ("output_throughput", "minimize", "is better when higher"),
        ("output_throughput", "up", "direction 'up' is wrong"),
        ("output_throughput@0", None, "at least 1"),
    ],
)
def test_bad_objective(text: str, direction: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_objective(text, direction=direction)
