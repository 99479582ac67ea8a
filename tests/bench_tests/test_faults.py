"""Every way a server can fail, each a request with a reason and never a number; and streams that only look odd."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from sweep.bench.client import run_block
from sweep.bench.http import Target
from sweep.bench.prepare import prepare
from sweep.model import BlockSpec

Make = Callable[..., BlockSpec]


@pytest.mark.parametrize("fault", ["split", "crlf", "comments", "no_done"])
@pytest.mark.parametrize("endpoint", ["generate", "chat"])
def test_unusual_but_valid_streams(server: Any, make_spec: Make, fault: str, endpoint: str) -> None:
    server.faults["a"] = fault
    (row,) = run_block(server.target, make_spec("a", endpoint=endpoint)).requests
    assert (row.error, row.output_tokens, row.verify_steps) == (None, 13, 4)
    assert row.chunks == (5 if endpoint == "generate" else 9)


FAULTS = {
    "http500": "http 500: ",
    "http400": 'http 400: {"error": {"message": "not today"}}',
    "http503": "http 503: ",
    "garbage": "no JSON object: ",
    "truncated_json": "no JSON object: ",
    "error_event": "the server reported an error: cuda went away",
    "disconnect": "disconnected after 2 chunks: ",
    "stall": "stalled: no end within 0.5 s, 2 chunks came",
    "too_many": "65 tokens came back, 64 were asked for",
    "zero_tokens": "the server generated no tokens",
    "abort": "aborted by the server",
    "no_finish": "the stream ended before its last event",
    "empty": "the server ended the stream without any event",
    "no_meta": "has no meta_info",
}


@pytest.mark.parametrize(
    ("fault", "endpoint"),
    [(f, "generate") for f in FAULTS] + [(f, "chat") for f in FAULTS if f != "no_meta"],  # chat has no meta_info
)
def test_a_failed_request_is_a_reason_and_never_a_number(
    server: Any, make_spec: Make, fault: str, endpoint: str
) -> None:
    server.faults["bad"] = fault
    result = run_block(server.target, make_spec("good", "bad", "good too", endpoint=endpoint, timeout_s=0.5))
    good, bad, after = result.requests
    assert good.ok
    assert after.ok, "a failed request must not spoil the next"
    assert bad.error is not None
    assert FAULTS[fault] in bad.error
    assert (bad.ok, bad.output_tokens, bad.verify_steps, bad.speed) == (False, None, None, None)
    assert result.output_tokens == 26
    assert result.invalid is not None
    assert result.invalid.startswith("2 of 3 requests succeeded (0.667 < 0.99): 1 x ")
    assert bad.error in result.invalid


def test_success_gate_lets_one_in_a_hundred_pass_and_not_two(server: Any, make_spec: Make) -> None:
    server.step_s = 0.0
    texts = [f"t{i}" for i in range(100)]
    server.faults["t7"] = "http500"
    assert run_block(server.target, make_spec(*texts, concurrency=10)).invalid is None
    server.faults["t50"] = "http500"
    result = run_block(server.target, make_spec(*texts, concurrency=10))
    assert result.invalid is not None
    assert "98 of 100 requests succeeded (0.980 < 0.99)" in result.invalid


def test_nobody_listens(make_spec: Make, server: Any) -> None:
    target = Target("http://127.0.0.1:9")  # the discard port: nothing of ours ever listens there
    result = run_block(target, make_spec("a", "b"))
    assert result.invalid is not None
    assert "cannot connect" in result.invalid
    assert len(result.requests) == 2
    prepared = prepare(server.target, make_spec("a", "b").prompts)
    result = run_block(target, make_spec("a", "b"), prepared=prepared)
    assert all(r.error is not None and r.error.startswith("cannot connect") for r in result.requests)
    assert result.client.rtt_s is None


def test_cancel_ends_a_block_at_once(server: Any, make_spec: Make) -> None:
    server.faults["b"] = "stall"
    cancel = threading.Event()
    timer = threading.Timer(0.3, cancel.set)
    timer.start()
    start = time.perf_counter()
    result = run_block(server.target, make_spec("a", "b", "c"), cancel=cancel)
    timer.join()
    assert time.perf_counter() - start < 2
    assert result.invalid == "cancelled after 2 of 3 requests"
    assert [r.error for r in result.requests] == [None, "cancelled"]


def test_a_defect_of_ours_is_not_a_finished_block(server: Any, make_spec: Make) -> None:
    def broken(done: int) -> None:
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        run_block(server.target, make_spec("a"), on_request=broken)


def test_silence_on_every_stream_ends_the_block(server: Any, make_spec: Make) -> None:
    """The rest is not asked for: a server that hangs would cost the limit again and again."""
    server.faults["b"] = "stall"
    result = run_block(server.target, make_spec("a", "b", "c", stall_s=0.4, timeout_s=60.0))
    assert result.stalled
    assert [r.ok for r in result.requests] == [True, False]
    assert result.requests[1].error == "stalled: no token on any stream for 0.4 s, 2 chunks came before"
    assert result.invalid is not None
    assert "no token on any stream" in result.invalid


def test_a_slow_stream_and_a_silent_one_beside_a_live_one_are_no_hang(server: Any, make_spec: Make) -> None:
    server.step_s = 0.5
    slow = run_block(server.target, make_spec("a", stall_s=1.5))
    assert (slow.stalled, slow.invalid) == (False, None)
    assert slow.elapsed_s > 1.5, "the whole took longer than the limit"
    server.faults["b"] = "stall"
    # The silent one gives up after the live ones have ended, and before it was alone for the limit.
    beside = run_block(server.target, make_spec("b", "a", "c", concurrency=3, stall_s=1.5, timeout_s=3.0))
    assert not beside.stalled
    assert [r.ok for r in beside.requests] == [False, True, True]
