"""Warm-up and the probe right after ready."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from sweep.bench.probe import probe, warm_up
from sweep.model import BlockSpec

Make = Callable[..., BlockSpec]


def test_probe_stops_when_it_has_seen_enough(server: Any, make_spec: Make) -> None:
    server.steps = 20
    result = probe(server.target, make_spec(*"abcdefgh").prompts)
    assert len(server.requests) == 3
    assert (result.accept_length, result.verify_steps, result.histogram) == (3.0, 60, (0, 0, 60))
    assert (result.output_tokens, result.error) == (183, None)
    assert 0 < result.seconds < 10


def test_probe_sees_a_useless_drafter(server: Any, make_spec: Make) -> None:
    server.steps, server.accepted = 30, 0
    result = probe(server.target, make_spec(*"abc").prompts)
    assert (result.accept_length, result.verify_steps, result.histogram) == (1.0, 60, (60,))


@pytest.mark.parametrize(
    ("correct", "answers", "length"),
    [
        (3, 4, 1.05),  # 60 steps of a head served as the wrong kind: near 1, so it is looked at four times as long
        (9, 1, 1.15),
        (0, 1, 1.0),
    ],
)
def test_probe_looks_longer_at_a_drafter_near_one(
    server: Any, make_spec: Make, correct: int, answers: int, length: float
) -> None:
    server.steps, server.correct = 60, correct
    result = probe(server.target, make_spec(*"abcdef").prompts)
    assert len(server.requests) == answers
    assert result.accept_length == pytest.approx(length)
    assert result.verify_steps == 60 * answers


def test_probe_of_the_baseline_asks_no_more_than_twice(server: Any, make_spec: Make) -> None:
    server.accepted = None
    result = probe(server.target, make_spec(*"abcdef").prompts)
    assert (result.accept_length, result.verify_steps, result.error) == (None, 0, None)
    assert len(server.requests) == 2


@pytest.mark.parametrize(("fault", "word"), [("zero_tokens", "no tokens"), ("stall", "stalled"), ("http500", "500")])
def test_probe_says_why_it_could_not(server: Any, make_spec: Make, fault: str, word: str) -> None:
    server.faults["b"] = fault
    result = probe(server.target, make_spec(*"abc").prompts, timeout_s=0.3)
    assert result.error is not None
    assert word in result.error
    assert len(server.requests) == 2


def test_probe_without_prompts_or_when_cancelled(server: Any, make_spec: Make) -> None:
    assert probe(server.target, ()).error == "no prompts to probe with"
    cancel = threading.Event()
    cancel.set()
    server.faults["a"] = "stall"
    assert probe(server.target, make_spec("a").prompts, cancel=cancel).error == "cancelled"


def test_warm_up_fills_every_slot_with_prompts_that_are_not_cached(server: Any, make_spec: Make) -> None:
    order: list[int] = []
    spec = make_spec("a", "b", concurrency=5, max_tokens=500, request_rate=3.0)
    results = warm_up(server.target, spec, passes=2, flush=lambda: order.append(len(server.requests)))
    assert [len(r.requests) for r in results] == [1, 5, 5]
    assert all(r.invalid is None for r in results)
    assert server.most_in_flight == 5
    assert order == [1, 6], "the cache is emptied before each pass of the crowd, never before the first request"
    assert {r.body["sampling_params"]["max_new_tokens"] for r in server.requests} == {64}
