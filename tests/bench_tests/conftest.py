"""A small server that speaks SGLang's recorded shapes over real sockets, and misbehaves on demand.

Token ids are the bytes of the text, so that a prompt is known again however it was sent. Faults are asked for by the
user's text: ``server.faults["some prompt"] = "stall"``.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from sweep.bench.http import Target
from sweep.model import BlockSpec, Prompt, Stage

SAMPLING_KEYS = {
    "max_new_tokens",
    "temperature",
    "top_p",
    "ignore_eos",
    "sampling_seed",
    "stream_interval",
}


@dataclass
class Request:
    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    text: str
    at: float  # seconds of the server's loop


@dataclass
class FakeServer:
    """Switches are read per request; ``requests`` holds generation requests in order of arrival."""

    faults: dict[str, str] = field(default_factory=dict)
    steps: int = 4  # verify steps per answer after the prefill token
    accepted: int | None = 2  # drafts accepted in each step; None: no speculation
    correct: int | None = None  # drafts accepted in an answer, one a step; None: ``accepted`` in each step
    step_s: float = 0.002
    tokenize_paths: tuple[str, ...] = ("/v1/tokenize", "/tokenize")
    api_key: str | None = None
    done_delay_s: float = 0.0
    requests: list[Request] = field(default_factory=list)
    tokenized: list[dict[str, Any]] = field(default_factory=list)
    most_in_flight: int = 0
    in_flight: int = 0
    url: str = ""

    @property
    def target(self) -> Target:
        return Target(self.url, self.api_key)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                line, *rows = head.split("\r\n")
                headers = {k.lower(): v for k, v in (row.split(": ", 1) for row in rows if row)}
                raw = await reader.readexactly(int(headers.get("content-length", 0)))
                await self.route(line.split()[1], json.loads(raw or b"{}"), headers, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def route(
        self, path: str, body: dict[str, Any], headers: dict[str, str], writer: asyncio.StreamWriter
    ) -> None:
        if self.api_key is not None and headers.get("authorization") != f"Bearer {self.api_key}":
            reply(writer, 401, {"error": "Unauthorized"})
        elif path in self.tokenize_paths:
            self.tokenized.append(body)
            text = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
            ids = list(text.encode())
            reply(writer, 200, {"tokens": ids, "count": len(ids), "max_model_len": 8192})
        elif path == "/v1/models":
            reply(writer, 200, {"object": "list", "data": [{"id": "tiny", "object": "model"}]})
        elif path in ("/generate", "/v1/chat/completions"):
            await self.generate(path, body, headers, writer)
        else:
            reply(writer, 404, {"detail": "Not Found"})

    async def generate(
        self, path: str, body: dict[str, Any], headers: dict[str, str], writer: asyncio.StreamWriter
    ) -> None:
        native = path == "/generate"
        if native and not set(body["sampling_params"]) <= SAMPLING_KEYS:
            reply(writer, 500, "Internal Server Error")
            return
        if native:
            text = bytes(body["input_ids"]).decode() if "input_ids" in body else body["text"]
        else:
            text = body["messages"][-1]["content"]
        self.requests.append(Request(path, body, headers, text, asyncio.get_running_loop().time()))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await self.stream(native, body, self.faults.get(text, ""), writer)
        finally:
            self.in_flight -= 1

    def events(self, native: bool, body: dict[str, Any], fault: str) -> list[dict[str, Any]]:
        limit = body["sampling_params"]["max_new_tokens"] if native else body["max_tokens"]
        per_step = 1 + (self.accepted or 0)
        counts = [min(limit, 1 + i * per_step) for i in range(self.steps + 1)]
        if fault == "too_many":
            counts[-1] = limit + 1
        if fault == "zero_tokens":
            counts = [0]
        if native:
            return [self.native_event(n, i, counts, fault) for i, n in enumerate(counts)]
        return self.chat_events(counts, body, fault)

    def native_event(self, n: int, index: int, counts: list[int], fault: str) -> dict[str, Any]:
        meta: dict[str, Any] = {"id": "a" * 32, "finish_reason": None, "prompt_tokens": 7, "num_retractions": 0}
        meta |= {"completion_tokens": n, "cached_tokens": 3}
        if index == len(counts) - 1:
            meta["finish_reason"] = {"type": "length", "length": n}
            if self.accepted is not None:
                histogram, correct = [0] * self.accepted + [self.steps], self.steps * self.accepted
                if self.correct is not None:
                    histogram, correct = [self.steps - self.correct, self.correct], self.correct
                meta |= {"spec_verify_ct": self.steps, "spec_num_correct_drafts": correct}
                meta["spec_correct_drafts_histogram"] = histogram
            if fault == "abort":
                meta["finish_reason"] = {"type": "abort", "message": "out of pages"}
            if fault == "no_finish":
                meta["finish_reason"] = None
        if fault == "no_count":
            del meta["completion_tokens"]
        return {"text": "x" * n, "output_ids": list(range(n)), "meta_info": meta}

    def chat_events(self, counts: list[int], body: dict[str, Any], fault: str) -> list[dict[str, Any]]:
        def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
            return {"object": "chat.completion.chunk", "choices": [{"delta": delta, "finish_reason": finish}]}

        out = [chunk({"role": "assistant", "content": ""})]
        before = 0
        for n in counts:
            out.append(chunk({"content": "x" * (n - before)}))
            before = n
        out.append(chunk({}, "abort" if fault == "abort" else None if fault == "no_finish" else "length"))
        if self.accepted is not None and body.get("return_spec_tokens_details") and fault != "no_count":
            details = {"spec_verify_ct": self.steps, "spec_num_correct_drafts": self.steps * self.accepted}
            out.append({"choices": [], "sglext": {"spec_tokens_details": details}})
        if body["stream_options"]["include_usage"] and fault != "no_count":
            out.append({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": counts[-1]}})
        return out

    async def stream(self, native: bool, body: dict[str, Any], fault: str, writer: asyncio.StreamWriter) -> None:
        if fault.startswith("http"):
            reply(writer, int(fault[4:]), {"error": {"message": "not today"}})
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        end = b"\r\n\r\n" if fault == "crlf" else b"\n\n"
        events = [b"data: " + json.dumps(e).encode() + end for e in self.events(native, body, fault)]
        if fault == "comments":
            events = [part for e in events for part in (b": ping\n\n", b"event: message\nid: 7\n" + e)]
        if fault == "error_event":
            events[2:] = [b'data: {"error": {"message": "cuda went away", "type": "x"}}\n\n']
        if fault == "truncated_json":
            events[-1] = events[-1][:40]
        if fault == "garbage":
            events[-1] = b"data: \xff\xfe<html>\n\n"
        if fault == "no_meta":
            events = [b'data: {"text": "x"}\n\n']
        if fault == "empty":
            events = []
        for index, data in enumerate(events):
            if fault == "disconnect" and index == 2:
                writer.transport.abort()
                raise ConnectionResetError
            if fault == "stall" and index == 2:
                await asyncio.sleep(30)
            for piece in [data[i : i + 1] for i in range(len(data))] if fault == "split" else [data]:
                chunk(writer, piece)
                await asyncio.sleep(0)
            await asyncio.sleep(self.step_s)
        await asyncio.sleep(self.done_delay_s)
        if fault not in ("truncated_json", "no_done"):
            chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")


def chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))


def reply(writer: asyncio.StreamWriter, status: int, value: object) -> None:
    data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
    writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%s" % (status, len(data), data))


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()
    started = threading.Event()
    loop: asyncio.AbstractEventLoop | None = None
    stop: asyncio.Event | None = None

    async def serve() -> None:
        nonlocal loop, stop
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        listening = await asyncio.start_server(fake.handle, "127.0.0.1", 0)
        fake.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        started.set()
        await stop.wait()
        listening.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)  # transports close in the loop's next turn

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(5)
    yield fake
    assert loop is not None
    assert stop is not None
    loop.call_soon_threadsafe(stop.set)
    thread.join(5)
    assert not thread.is_alive()


@pytest.fixture
def make_spec() -> Callable[..., BlockSpec]:
    """``make_spec("a", "b", concurrency=2, ...)``: a block of these user texts."""

    def make(*texts: str, concurrency: int = 1, max_tokens: int = 64, **more: Any) -> BlockSpec:
        prompts = tuple(Prompt(f"p{i}", "code", ({"role": "user", "content": t},)) for i, t in enumerate(texts))
        return BlockSpec(Stage.SEARCH, concurrency, 0, prompts, max_tokens, **more)

    return make
