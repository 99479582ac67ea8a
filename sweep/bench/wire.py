"""What travels: request bodies, and answers read from a recorded stream. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sweep.bench.tape import CHAT, DONE, GENERATE, Tape, delta_text, json_object
from sweep.model import BlockSpec, Prompt

PATHS = {GENERATE: "/generate", CHAT: "/v1/chat/completions"}
_SHOWN_CHARS = 200


def generate_body(source: Sequence[int] | str, spec: BlockSpec, index: int) -> dict[str, Any]:
    """Body of a native ``/generate`` request; ``source`` is the prompt's token ids, or its text without them.

    Every sampling parameter that a server may default otherwise is stated. At temperature > 0 the seed differs per
    request but not per arm: ``spec.seed + index``.
    """
    sampling: dict[str, Any] = {
        "max_new_tokens": spec.max_tokens,
        "temperature": spec.temperature,
        "top_p": 1.0,
        "ignore_eos": spec.ignore_eos,
    }
    if spec.temperature > 0 and spec.seed is not None:
        sampling["sampling_seed"] = spec.seed + index
    if spec.stream_interval is not None:
        sampling["stream_interval"] = spec.stream_interval
    key = "text" if isinstance(source, str) else "input_ids"
    return {key: source if isinstance(source, str) else list(source), "sampling_params": sampling, "stream": True}


def chat_body(prompt: Prompt, spec: BlockSpec, index: int, model: str) -> dict[str, Any]:
    """Body of a ``/v1/chat/completions`` request. Counters are asked for; versions that have none ignore the key."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [dict(message) for message in prompt.messages],
        "max_tokens": spec.max_tokens,
        "temperature": spec.temperature,
        "top_p": 1.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_spec_tokens_details": True,
    }
    if spec.ignore_eos:
        body["ignore_eos"] = True
    if spec.temperature > 0 and spec.seed is not None:
        body["seed"] = spec.seed + index
    if spec.chat_template_args:
        body["chat_template_kwargs"] = dict(spec.chat_template_args)
    return body


@dataclass(frozen=True, slots=True)
class Answer:
    """What a stream said. ``end_at`` is the arrival of the last event with output or a finish reason.

    With ``error`` nothing else may be used. ``text`` is given only where the server sent no token count, so that the
    tokens can be counted afterwards.
    """

    end_at: float
    output_tokens: int | None = None
    token_source: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    verify_steps: int | None = None
    correct_drafts: int | None = None
    accept_histogram: tuple[int, ...] | None = None
    finish_reason: str | None = None
    retractions: int | None = None
    output_ids: tuple[int, ...] | None = None
    text: str | None = None
    error: str | None = None


def read_answer(tape: Tape, endpoint: str, max_tokens: int) -> Answer:
    """Parse a stream that ended without a transport error. Never raises: whatever is wrong is the answer's error."""
    events = tape.events()
    if events and events[-1][1] == DONE:
        events.pop()
    if not events:
        return Answer(0.0, error="the server ended the stream without any event")
    if tape.errors():
        return Answer(events[-1][0], error=_error_text(json_object(tape.errors()[0]), tape.errors()[0]))
    answer = _read_generate(*events[-1]) if endpoint == GENERATE else _read_chat(events)
    if answer.error is None and answer.finish_reason is None:
        return Answer(answer.end_at, error="the stream ended before its last event (no finish reason)")
    return check_count(answer, max_tokens)


def check_count(answer: Answer, max_tokens: int) -> Answer:
    """Refuse a token count that cannot be right: none at all, or more than was asked for."""
    if answer.error is not None or (answer.output_tokens is None and answer.text):
        return answer
    if not answer.output_tokens or answer.output_tokens < 0:
        return Answer(answer.end_at, error="the server generated no tokens")
    if answer.output_tokens > max_tokens:
        return Answer(answer.end_at, error=f"{answer.output_tokens} tokens came back, {max_tokens} were asked for")
    return answer


def _read_generate(at: float, payload: bytes) -> Answer:
    value = json_object(payload)
    if value is None:
        return Answer(at, error=f"the last event is no JSON object: {_shown(payload)}")
    if "error" in value:
        return Answer(at, error=_error_text(value, payload))
    meta = value.get("meta_info")
    if not isinstance(meta, dict):
        return Answer(at, error=f"the last event has no meta_info: {_shown(payload)}")
    finish = meta.get("finish_reason")
    kind = finish.get("type") if isinstance(finish, dict) else finish
    if kind == "abort":
        return Answer(at, error=f"aborted by the server: {_shown(json.dumps(finish).encode())}")
    tokens = _integer(meta.get("completion_tokens"))
    ids = value.get("output_ids")
    return Answer(
        end_at=at,
        output_tokens=tokens,
        token_source=None if tokens is None else "meta",
        prompt_tokens=_integer(meta.get("prompt_tokens")),
        cached_tokens=_integer(meta.get("cached_tokens")),
        **_counters(meta),
        finish_reason=kind if isinstance(kind, str) else None,
        retractions=_integer(meta.get("num_retractions")),
        # With --incremental-streaming-output the last event carries only its own ids.
        output_ids=tuple(ids) if isinstance(ids, list) and len(ids) == tokens else None,
        text=None if tokens is not None else str(value.get("text") or ""),
    )


def _read_chat(events: Sequence[tuple[float, bytes]]) -> Answer:
    end_at = events[-1][0]
    finish: str | None = None
    usage: dict[str, Any] = {}
    counters: dict[str, Any] = {}
    text = []
    for at, payload in events:
        value = json_object(payload)
        if value is None:
            return Answer(at, error=f"an event is no JSON object: {_shown(payload)}")
        if "error" in value or value.get("object") == "error":
            return Answer(at, error=_error_text(value, payload))
        choices = value.get("choices")
        if isinstance(choices, list) and choices:
            end_at = at
            text.append(delta_text(value))
            finish = choices[0].get("finish_reason") or finish
        if isinstance(value.get("usage"), dict):
            usage = value["usage"]
        extension = value.get("sglext")
        if isinstance(extension, dict) and isinstance(extension.get("spec_tokens_details"), dict):
            counters = extension["spec_tokens_details"]
    if finish == "abort":
        return Answer(end_at, error="aborted by the server")
    tokens = _integer(usage.get("completion_tokens"))
    details = usage.get("prompt_tokens_details")
    return Answer(
        end_at=end_at,
        output_tokens=tokens,
        token_source=None if tokens is None else "usage",
        prompt_tokens=_integer(usage.get("prompt_tokens")),
        cached_tokens=_integer(details.get("cached_tokens")) if isinstance(details, dict) else None,
        **_counters(counters),
        finish_reason=finish,
        text=None if tokens is not None else "".join(text),
    )


def _counters(meta: dict[str, Any]) -> dict[str, Any]:
    """Accept counters, all None where no step was verified: SGLang leaves them out or sends zeros then."""
    steps = _integer(meta.get("spec_verify_ct"))
    if not steps:
        return {}
    histogram = meta.get("spec_correct_drafts_histogram")
    return {
        "verify_steps": steps,
        "correct_drafts": _integer(meta.get("spec_num_correct_drafts")),
        "accept_histogram": tuple(histogram) if isinstance(histogram, list) else None,
    }


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _error_text(value: dict[str, Any] | None, payload: bytes) -> str:
    error = (value or {}).get("error", value)
    message = error.get("message") if isinstance(error, dict) else error
    return f"the server reported an error: {message or _shown(payload)}"


def _shown(payload: bytes) -> str:
    text = payload.decode("utf-8", "replace")
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"
