"""The client against a real server on loopback: what it sends, what it records, and its own limits."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from sweep.bench.client import run_block
from sweep.bench.http import Target
from sweep.bench.prepare import prepare
from sweep.metrics import block_summary
from sweep.model import BlockSpec

Make = Callable[..., BlockSpec]


def test_native_request_is_recorded_whole(server: Any, make_spec: Make) -> None:
    before = time.time()
    result = run_block(server.target, make_spec("hello"))
    assert result.invalid is None
    assert before <= result.started_at <= time.time()
    (row,) = result.requests
    assert (row.prompt_id, row.category, row.index, row.error) == ("p0", "code", 0, None)
    assert (row.output_tokens, row.token_source, row.prompt_tokens, row.cached_tokens) == (13, "meta", 7, 3)
    assert (row.verify_steps, row.correct_drafts, row.accept_histogram) == (4, 8, (0, 0, 4))
    assert (row.finish_reason, row.retractions, row.chunks) == ("length", 0, 5)
    assert row.output_ids == tuple(range(13))
    assert row.ttft_s is not None
    assert 0 <= row.sent_s < row.sent_s + row.ttft_s < row.end_s
    assert result.elapsed_s == pytest.approx(row.end_s - row.sent_s)
    assert result.client.prompt_format == "chat_template"
    assert result.client.chunks == 5
    assert result.client.rtt_s is not None
    assert 0 < result.client.rtt_s < 0.1
    (request,) = server.requests
    assert request.body["input_ids"] == list(b"hello")
    assert request.body["stream"] is True
    assert request.body["sampling_params"] == {
        "max_new_tokens": 64,
        "temperature": 0.0,
        "top_p": 1.0,
        "ignore_eos": False,
    }
    summary = block_summary(result)
    assert summary["accept_length"] == 3.0
    assert summary["success_ratio"] == 1.0


def test_baseline_has_no_counters(server: Any, make_spec: Make) -> None:
    server.accepted = None
    (row,) = run_block(server.target, make_spec("a")).requests
    assert (row.output_tokens, row.verify_steps, row.correct_drafts, row.accept_histogram) == (5, None, None, None)


def test_sampling_seed_and_interval_travel_only_when_asked(server: Any, make_spec: Make) -> None:
    run_block(server.target, make_spec("a", "b", temperature=0.7, seed=40, stream_interval=8, ignore_eos=True))
    first, second = (r.body["sampling_params"] for r in server.requests)
    assert (first["sampling_seed"], second["sampling_seed"]) == (40, 41)
    assert (first["temperature"], first["stream_interval"], first["ignore_eos"]) == (0.7, 8, True)


def test_chat_request(server: Any, make_spec: Make) -> None:
    spec = make_spec("a", endpoint="chat", chat_template_args={"enable_thinking": False}, temperature=0.5, seed=3)
    result = run_block(server.target, spec)
    (row,) = result.requests
    assert (row.output_tokens, row.token_source, row.verify_steps, row.correct_drafts) == (13, "usage", 4, 8)
    assert result.client.prompt_format == "chat_endpoint"
    (request,) = server.requests
    assert request.path == "/v1/chat/completions"
    assert request.body["model"] == "tiny"
    assert request.body["messages"] == [{"role": "user", "content": "a"}]
    assert request.body["stream_options"] == {"include_usage": True}
    assert request.body["chat_template_kwargs"] == {"enable_thinking": False}
    assert (request.body["temperature"], request.body["top_p"], request.body["seed"]) == (0.5, 1.0, 3)
    assert server.tokenized == []


def test_template_arguments_reach_the_tokenizer(server: Any, make_spec: Make) -> None:
    run_block(server.target, make_spec("a", chat_template_args={"enable_thinking": False}))
    assert server.tokenized[0]["chat_template_kwargs"] == {"enable_thinking": False}


def test_first_token_is_the_first_with_text_and_the_end_mark_is_no_output(server: Any, make_spec: Make) -> None:
    server.steps, server.step_s, server.done_delay_s = 1, 0.1, 0.6
    for endpoint in ("chat", "generate"):
        (row,) = run_block(server.target, make_spec("a", endpoint=endpoint)).requests
        assert row.ttft_s is not None
        role_event = 0.1 if endpoint == "chat" else 0.0  # an event without text comes first
        assert role_event <= row.ttft_s < role_event + 0.095
        assert row.end_s - row.sent_s < 0.6


# ------------------------------------------------------------------------------------------- load


def test_closed_loop_keeps_its_concurrency_and_order(server: Any, make_spec: Make) -> None:
    texts = [f"t{i}" for i in range(24)]
    result = run_block(server.target, make_spec(*texts, concurrency=6))
    assert server.most_in_flight == 6
    assert [r.prompt_id for r in result.requests] == [f"p{i}" for i in range(24)]
    sends = [r.sent_s for r in result.requests]
    assert sends == sorted(sends)
    summary = block_summary(result)
    assert summary["achieved_concurrency"] is not None
    assert 4.5 < summary["achieved_concurrency"] <= 6


def test_concurrency_one_never_overlaps(server: Any, make_spec: Make) -> None:
    run_block(server.target, make_spec(*[f"t{i}" for i in range(8)]))
    assert server.most_in_flight == 1
    assert [r.text for r in server.requests] == [f"t{i}" for i in range(8)]


def test_open_loop_sends_at_seeded_poisson_times(server: Any, make_spec: Make) -> None:
    server.step_s = 0.05  # slower than the arrivals: a closed loop at concurrency 1 could not keep up
    result = run_block(server.target, make_spec(*[f"t{i}" for i in range(20)], request_rate=50.0, seed=5))
    arrivals, due = random.Random(5), 0.0
    for row in result.requests:
        due += arrivals.expovariate(50.0)
        assert row.sent_s == pytest.approx(due, abs=0.06)
    assert server.most_in_flight > 3


def test_preparation_is_outside_the_block_and_can_be_shared(server: Any, make_spec: Make) -> None:
    spec = make_spec("a", "b")
    prepared = prepare(server.target, spec.prompts)
    assert prepared.sources == {"p0": (97,), "p1": (98,)}
    for _ in range(2):
        assert run_block(server.target, spec, prepared=prepared).invalid is None
    assert len(server.tokenized) == 2


def test_runs_in_any_thread_and_says_how_many_are_done(server: Any, make_spec: Make) -> None:
    done: list[int] = []
    results = []
    spec = make_spec("a", "b", "c", concurrency=2)
    thread = threading.Thread(target=lambda: results.append(run_block(server.target, spec, on_request=done.append)))
    thread.start()
    thread.join(10)
    assert results[0].invalid is None
    assert done == [1, 2, 3]


# ------------------------------------------------------------------------------------------- preparation


def test_older_tokenizer_path(server: Any, make_spec: Make) -> None:
    server.tokenize_paths = ("/tokenize",)
    result = run_block(server.target, make_spec("a", "b"))
    assert result.invalid is None
    assert result.client.prompt_format == "chat_template"


def test_no_tokenizer_means_plain_text_and_says_so(server: Any, make_spec: Make) -> None:
    server.tokenize_paths = ()
    result = run_block(server.target, make_spec("add two numbers"))
    assert result.invalid is None
    assert result.client.prompt_format == "plain_text"
    assert server.requests[0].body["text"] == "User: add two numbers\n\nAssistant:"


@pytest.mark.parametrize("endpoint", ["generate", "chat"])
def test_missing_count_is_tokenized_and_said(server: Any, make_spec: Make, endpoint: str) -> None:
    server.faults["a"] = "no_count"
    (row,) = run_block(server.target, make_spec("a", endpoint=endpoint)).requests
    assert (row.output_tokens, row.token_source) == (13, "tokenized")
    assert server.tokenized[-1] == {"prompt": "x" * 13, "add_special_tokens": False}


def test_missing_count_without_tokenizer_is_a_failure(server: Any, make_spec: Make) -> None:
    server.faults["a"] = "no_count"
    server.tokenize_paths = ()
    (row,) = run_block(server.target, make_spec("a", endpoint="chat")).requests
    assert row.error == "the server sent no token count and cannot tokenize"
    assert row.output_tokens is None


def test_api_key_is_sent_and_never_shown(server: Any, make_spec: Make) -> None:
    server.api_key = "sk-secret"
    assert run_block(server.target, make_spec("a")).invalid is None
    assert server.requests[0].headers["authorization"] == "Bearer sk-secret"
    assert "secret" not in repr(server.target)
    result = run_block(Target(server.url, "wrong"), make_spec("a", "b"))
    assert result.invalid is not None
    assert result.invalid.startswith("the server refuses the API key (http 401")
    assert [r.ok for r in result.requests] == [False, False]


# ------------------------------------------------------------------------------------------- the client's own limits


def test_a_blocked_event_loop_is_found_out(server: Any, make_spec: Make) -> None:
    texts = [f"t{i}" for i in range(6)]  # together longer than half a second: lag is judged from there on
    result = run_block(server.target, make_spec(*texts), on_request=lambda done: time.sleep(0.15))
    assert result.client.lag_p99_s > 0.1
    assert result.invalid is not None
    assert result.invalid.startswith("the client was the limit: its event loop woke")


def test_path_capacity_is_carried_and_judged(server: Any, make_spec: Make) -> None:
    wide = run_block(server.target, make_spec("a", "b"), path_capacity=1e6)
    assert (wide.invalid, wide.client.path_capacity_chunks_per_s) == (None, 1e6)
    narrow = run_block(server.target, make_spec("a", "b"), path_capacity=50.0)
    assert narrow.invalid is not None
    assert narrow.invalid.startswith("the path to the server was the limit: it carries 50 chunks/s")
    assert "raise workload.stream_interval" in narrow.invalid
