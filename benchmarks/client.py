"""Chunks per second and CPU per chunk of the benchmark client, beside two others, in one run.

    python benchmarks/client.py [--json] [--rounds 2] [--concurrency 16] [--chunk-bytes 256]

A trivial server in a process of its own (stdlib asyncio, one write per pre-built event, shaped like SGLang's
``/generate`` stream, streams served in turn) is read by three clients, each in a process of its own, in turn:

* ours: ``run_block``, everything included (preparation, records, parsing after the stream);
* aiohttp: written as SGLang's own benchmark client is, line by line, every event parsed while it streams;
* httpx: plain httpx (its own transport), ``aiter_lines``, last event parsed.

Chunks per second: the server writes as fast as it can. CPU per chunk: the server is paced, so that every client gets
the same load and nearly every chunk is a read of its own, as with a real model. CPU is that of the client's thread
while it reads. The best of the rounds is printed: other work on the machine only ever takes away.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time

CLIENTS = ("ours", "aiohttp", "httpx")
PACE = 400.0  # chunks per second and stream where the server is paced


def event(index: int, size: int) -> bytes:
    """One cumulative event of about ``size`` bytes; the counters are those of a real stream."""
    meta = {"id": "0" * 32, "finish_reason": None, "prompt_tokens": 16, "completion_tokens": index + 1}
    value = {"text": "", "output_ids": [index], "meta_info": meta}
    value["text"] = "x" * max(1, size - len(json.dumps(value)) - 8)
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def last_event(count: int, size: int) -> bytes:
    value = json.loads(event(count - 1, size)[6:])
    value["meta_info"]["finish_reason"] = {"type": "length", "length": count}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


# ---------------------------------------------------------------------------------------------- server


async def serve(chunks: int, size: int) -> None:
    """Prints its port, then answers until it is ended. Every event is one HTTP chunk and one write."""

    def framed(data: bytes) -> bytes:
        return b"%x\r\n%s\r\n" % (len(data), data)

    stream = [framed(event(i, size)) for i in range(chunks - 1)]
    stream += [framed(last_event(chunks, size)), framed(b"data: [DONE]\n\n"), b"0\r\n\r\n"]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    ids = json.dumps({"tokens": [1, 2, 3], "count": 3, "max_model_len": 4096}).encode()
    small = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(ids), ids)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                length = 0
                for line in request.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                await reader.readexactly(length)
                if b"/generate " not in request.split(b"\r\n", 1)[0]:
                    writer.write(small)
                    continue
                writer.write(head)
                paced = request.startswith(b"POST /paced/")
                start = time.perf_counter()
                for index, data in enumerate(stream):
                    if paced:
                        await asyncio.sleep(max(0.0, start + index / PACE - time.perf_counter()))
                    else:
                        await asyncio.sleep(0)
                    writer.write(data)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    async with server:
        await server.serve_forever()


# ---------------------------------------------------------------------------------------------- clients


def run_ours(url: str, requests: int, concurrency: int, chunks: int) -> tuple[int, float, float]:
    from sweep.bench.client import run_block
    from sweep.bench.http import Target
    from sweep.bench.prepare import prepare
    from sweep.model import BlockSpec, Prompt, Stage

    prompts = tuple(Prompt(str(i), "code", ({"role": "user", "content": "x"},)) for i in range(requests))
    prepared = prepare(Target(url), prompts)
    spec = BlockSpec(Stage.SEARCH, concurrency, 0, prompts, max_tokens=chunks)
    result = run_block(Target(url), spec, prepared=prepared)
    assert all(row.ok for row in result.requests), result.invalid
    return result.client.chunks, result.elapsed_s, result.client.cpu_share * result.elapsed_s


def run_aiohttp(url: str, requests: int, concurrency: int, chunks: int) -> tuple[int, float, float]:
    import aiohttp

    async def one(session: aiohttp.ClientSession) -> int:
        seen, output_len, text, latency, gaps = 0, 0, "", 0.0, []
        start = recent = time.perf_counter()
        async with session.post(url + "/generate", json={"text": "x", "stream": True}) as response:
            async for line in response.content:
                line = line.strip()
                if not line:
                    continue
                payload = line[6:] if line.startswith(b"data: ") else line
                latency = time.perf_counter() - start
                if payload == b"[DONE]":
                    continue
                value = json.loads(payload)
                seen += 1
                if value.get("text"):
                    now = time.perf_counter()
                    text, count = value["text"], value["meta_info"]["completion_tokens"]
                    if count > output_len:
                        gaps.append((now - recent) / (count - output_len))
                    recent, output_len = now, count
        assert text, "no text came"
        assert latency > 0
        assert output_len == chunks, "the stream was cut"
        return seen

    async def run() -> tuple[int, float, float]:
        timeout = aiohttp.ClientTimeout(total=3600)
        async with aiohttp.ClientSession(timeout=timeout, read_bufsize=10 * 1024**2) as session:
            return await closed_loop([one(session) for _ in range(requests)], concurrency)

    return asyncio.run(run())


def run_httpx(url: str, requests: int, concurrency: int, chunks: int) -> tuple[int, float, float]:
    import httpx

    async def one(client: httpx.AsyncClient) -> int:
        seen, last = 0, ""
        async with client.stream("POST", url + "/generate", json={"text": "x", "stream": True}) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    seen, last = seen + 1, line
        assert json.loads(last[6:])["meta_info"]["completion_tokens"] == chunks, "the stream was cut"
        return seen

    async def run() -> tuple[int, float, float]:
        async with httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None)) as client:
            return await closed_loop([one(client) for _ in range(requests)], concurrency)

    return asyncio.run(run())


async def closed_loop(jobs, concurrency: int) -> tuple[int, float, float]:  # type: ignore[no-untyped-def] # coroutines
    """(chunks, wall seconds, CPU seconds of this thread)."""
    queue = iter(jobs)
    seen = 0

    async def worker() -> None:
        nonlocal seen
        for job in queue:
            count = await job  # awaited first: `seen += await` would read `seen` before other workers add to it
            seen += count

    cpu, wall = time.thread_time(), time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return seen, time.perf_counter() - wall, time.thread_time() - cpu


RUN = {"ours": run_ours, "aiohttp": run_aiohttp, "httpx": run_httpx}


# ---------------------------------------------------------------------------------------------- main


def child(*arguments: object) -> list[str]:
    return [sys.executable, __file__, *map(str, arguments)]


def measure(command: list[str]) -> tuple[int, float, float]:
    """Run one client process; (chunks, wall seconds, CPU seconds)."""
    chunks, wall, cpu = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=120).stdout)
    return chunks, wall, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--requests", type=int, default=64, help="streams per client and round")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--chunks", type=int, default=1000, help="events per stream")
    parser.add_argument("--chunk-bytes", type=int, default=256)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--client", nargs=2, metavar=("NAME", "URL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    shape = ("--chunks", options.chunks, "--chunk-bytes", options.chunk_bytes)
    if options.serve:
        asyncio.run(serve(options.chunks, options.chunk_bytes))
        return
    if options.client:
        name, url = options.client
        sys.stdout.write(json.dumps(RUN[name](url, options.requests, options.concurrency, options.chunks)))
        return
    server = subprocess.Popen(child("--serve", *shape), stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        load = ("--requests", options.requests, "--concurrency", options.concurrency, *shape)
        rate: dict[str, float] = dict.fromkeys(CLIENTS, 0.0)
        cpu: dict[str, float] = dict.fromkeys(CLIENTS, float("inf"))
        for _ in range(options.rounds):
            for name in CLIENTS:
                chunks, wall, _ = measure(child("--client", name, url, *load))
                rate[name] = max(rate[name], round(chunks / wall))
                few = ("--requests", options.concurrency, "--concurrency", options.concurrency, *shape)
                chunks, _, used = measure(child("--client", name, url + "/paced", *few))
                cpu[name] = min(cpu[name], round(1e6 * used / chunks, 2))
    finally:
        server.terminate()
        server.wait()
    if options.json:
        sys.stdout.write(json.dumps({"chunks_per_s": rate, "cpu_us_per_chunk": cpu}) + "\n")
        return
    sys.stdout.write(f"{'client':8} {'chunks/s':>10} {'us CPU/chunk':>13}\n")
    for name in CLIENTS:
        sys.stdout.write(f"{name:8} {rate[name]:>10} {cpu[name]:>13}\n")


if __name__ == "__main__":
    main()
