"""Streams recorded from a real server, cut into reads of every kind, and long ones that do not fit the window."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sweep.bench.tape import CHAT, GENERATE, Tape
from sweep.bench.wire import read_answer

SSE = Path(__file__).parent.parent / "data" / "sse"


def play(raw: bytes, endpoint: str, size: int) -> Tape:
    """Feed ``raw`` in reads of ``size`` bytes; the clock is the number of bytes so far."""
    tape = Tape(endpoint)
    for start in range(0, len(raw), size):
        tape.feed(float(min(start + size, len(raw))), raw[start : start + size])
    return tape


@pytest.mark.parametrize("crlf", [False, True])
@pytest.mark.parametrize("size", [1, 7, 1000, 1_000_000])
@pytest.mark.parametrize("name", ["baseline_generate", "eagle3_generate", "eagle3_chat"])
def test_recorded_stream_reads_the_same_however_it_is_cut(name: str, size: int, crlf: bool) -> None:
    raw = (SSE / f"{name}.sse").read_bytes()
    count = raw.count(b"data: {")
    if crlf:
        raw = raw.replace(b"\n", b"\r\n")
    endpoint = CHAT if "chat" in name else GENERATE
    tape = play(raw, endpoint, size)
    answer = read_answer(tape, endpoint, max_tokens=64)
    assert answer.error is None
    assert (answer.output_tokens, answer.prompt_tokens, answer.finish_reason) == (64, 56, "length")
    assert answer.token_source == ("usage" if endpoint == CHAT else "meta")
    assert tape.chunks == count
    if name == "eagle3_generate":
        assert (answer.verify_steps, answer.correct_drafts) == (33, 30)
        assert answer.accept_histogram == (16, 8, 5, 4)
        assert answer.output_ids is not None
        assert len(answer.output_ids) == 64
    else:
        assert (answer.verify_steps, answer.correct_drafts, answer.accept_histogram) == (None, None, None)


def test_times_are_those_of_the_first_and_last_event_with_output() -> None:
    raw = (SSE / "eagle3_chat.sse").read_bytes()
    tape = play(raw, CHAT, 1)
    answer = read_answer(tape, CHAT, 64)
    role = raw.index(b"\n\n")
    assert tape.first_at == raw.index(b"\n", role + 2) + 1  # the end of the second event: the first is empty
    finish = raw.index(b"\n", raw.index(b'"finish_reason":"length"'))
    assert answer.end_at == finish + 1  # neither usage nor [DONE] counts as output


def cumulative(count: int, width: int, *, error_at: int | None = None) -> bytes:
    out = []
    for n in range(1, count + 1):
        finish = {"type": "stop"} if n == count else None
        value = {"text": "data: {}\n" * width, "meta_info": {"completion_tokens": n, "finish_reason": finish}}
        out.append(b"data: " + json.dumps(value).encode() + b"\n\n")
        if n == error_at:
            out.append(b'data: {"error": {"message": "lost a rank"}}\n\n')
    return b"".join(out) + b"data: [DONE]\n\n"


@pytest.mark.parametrize("size", [777, 4096, 65_536])
@pytest.mark.parametrize("width", [10, 3000])
def test_long_streams_are_counted_exactly_and_not_kept(size: int, width: int) -> None:
    raw = cumulative(200 if width == 3000 else 8000, width)
    assert len(raw) > 1_000_000
    tape = play(raw, GENERATE, size)
    held = sum(len(data) for _, data in tape._reads)
    assert held < 400_000, "old events were kept"
    answer = read_answer(tape, GENERATE, 10_000)
    expected = raw.count(b'"completion_tokens"')
    assert answer.error is None
    assert (answer.output_tokens, tape.chunks) == (expected, expected)


def test_an_error_event_long_before_the_end_is_not_forgotten() -> None:
    raw = cumulative(8000, 10, error_at=3)
    assert read_answer(play(raw, GENERATE, 4096), GENERATE, 10_000).error == (
        "the server reported an error: lost a rank"
    )


def test_text_that_looks_like_an_error_is_none() -> None:
    text = json.dumps({"text": 'data: {"error"', "meta_info": {"completion_tokens": 1, "finish_reason": "stop"}})
    raw = f"data: {text}\n\ndata: [DONE]\n\n".encode()
    assert read_answer(play(raw, GENERATE, 9), GENERATE, 4).error is None


def test_delta_streaming_keeps_no_partial_ids() -> None:
    meta = {"completion_tokens": 5, "finish_reason": {"type": "length"}}
    raw = b"data: " + json.dumps({"text": "x", "output_ids": [4, 5], "meta_info": meta}).encode() + b"\n\n"
    answer = read_answer(play(raw, GENERATE, 50), GENERATE, 5)
    assert (answer.output_tokens, answer.output_ids) == (5, None)
