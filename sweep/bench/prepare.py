"""What is done to prompts before a block, so that the block measures the server and not the preparation.

Native path: the server applies its own chat template (``/v1/tokenize`` with ``messages``) and token ids are sent, so
that the answer carries accept counters on every version. A server without that endpoint gets plain text with role
markers, and the record says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from sweep.bench.http import Target, open_client, post_json, status_words, transport_words
from sweep.bench.tape import CHAT
from sweep.errors import HostError
from sweep.model import Prompt

CHAT_TEMPLATE = "chat_template"
PLAIN_TEXT = "plain_text"
CHAT_ENDPOINT = "chat_endpoint"
_TOKENIZE_PATHS = ("/v1/tokenize", "/tokenize")
_PARALLEL = 8
_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """Prompts ready to send. ``sources``: prompt id -> token ids, or text where ``prompt_format`` is ``plain_text``;
    empty for the chat endpoint. ``model`` is the served model's name. Valid for every server of the same model."""

    prompt_format: str
    model: str = "default"
    sources: Mapping[str, tuple[int, ...] | str] = field(default_factory=dict, repr=False)


def prepare(
    target: Target,
    prompts: Sequence[Prompt],
    *,
    endpoint: str = "generate",
    chat_template_args: Mapping[str, Any] | None = None,
) -> Prepared:
    """Prepare prompts once for many blocks. Raises ``HostError`` where the server does not answer or refuses."""

    async def run() -> Prepared:
        async with open_client(target) as client:
            return await prepare_async(client, prompts, endpoint, chat_template_args or {})

    return asyncio.run(run())


async def prepare_async(
    client: httpx.AsyncClient, prompts: Sequence[Prompt], endpoint: str, template_args: Mapping[str, Any]
) -> Prepared:
    """As :func:`prepare`, inside a running loop."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            if endpoint == CHAT:
                return Prepared(CHAT_ENDPOINT, model=await _served_model(client))
            return await _token_ids(client, prompts, template_args)
    except httpx.TransportError as error:
        raise HostError(
            f"the server did not answer while prompts were prepared: {transport_words(error, 0)}"
        ) from error
    except TimeoutError as error:
        raise HostError(f"the server did not tokenize {len(prompts)} prompts within {_TIMEOUT_S:.0f} s") from error


async def count_tokens(client: httpx.AsyncClient, text: str) -> int | None:
    """Tokens of a generated text by the server's tokenizer; None where it has no such endpoint or does not answer."""
    for path in _TOKENIZE_PATHS:
        try:
            status, value = await post_json(client, path, {"prompt": text, "add_special_tokens": False})
        except httpx.TransportError:
            return None
        ids = _ids(status, value)
        if ids is not None:
            return len(ids)
    return None


async def _served_model(client: httpx.AsyncClient) -> str:
    response = await client.get("/v1/models")
    _refuse(response.status_code, response.content)
    try:
        name = response.json()["data"][0]["id"]
    except (ValueError, LookupError, TypeError):
        return "default"  # SGLang answers to any name
    return str(name)


async def _token_ids(
    client: httpx.AsyncClient, prompts: Sequence[Prompt], template_args: Mapping[str, Any]
) -> Prepared:
    gate = asyncio.Semaphore(_PARALLEL)

    async def ids(path: str, prompt: Prompt) -> tuple[int, ...] | None:
        body: dict[str, Any] = {"messages": [dict(message) for message in prompt.messages]}
        if template_args:
            body["chat_template_kwargs"] = dict(template_args)
        async with gate:
            status, value = await post_json(client, path, body)
        _refuse(status, repr(value).encode())
        return _ids(status, value)

    for path in _TOKENIZE_PATHS:
        # One request decides whether the endpoint is there and knows `messages`; only then are the others sent.
        first = await ids(path, prompts[0]) if prompts else None
        if first is None:
            continue
        rest = await asyncio.gather(*(ids(path, prompt) for prompt in prompts[1:]))
        sources = dict(zip((p.id for p in prompts), [first, *rest], strict=True))
        missing = [name for name, value in sources.items() if value is None]
        if missing:
            raise HostError(f"the server's {path} refused prompt {missing[0]!r} though it took others")
        return Prepared(CHAT_TEMPLATE, sources={name: value for name, value in sources.items() if value is not None})
    return Prepared(PLAIN_TEXT, sources={prompt.id: plain_text(prompt) for prompt in prompts})


def _ids(status: int, value: Any) -> tuple[int, ...] | None:
    tokens = value.get("tokens") if status == 200 and isinstance(value, dict) else None
    if isinstance(tokens, list) and all(isinstance(token, int) for token in tokens):
        return tuple(tokens)
    return None


def _refuse(status: int, body: bytes) -> None:
    if status in (401, 403):
        raise HostError(f"the server refuses the API key ({status_words(status, body)})")


def plain_text(prompt: Prompt) -> str:
    """Messages with role markers, ending where the assistant is to begin."""
    parts = [f"{message['role'].capitalize()}: {message['content']}" for message in prompt.messages]
    return "\n\n".join([*parts, "Assistant:"])
