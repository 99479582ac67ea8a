"""The benchmark worker: sends one block of prompts to a running server and records what came back, when.

It runs an event loop of its own, so that it can be called from any thread. While a block is measured nothing is
parsed and nothing is computed: requests are built before, answers are read after.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx

from sweep.bench.health import Sampler, why_invalid
from sweep.bench.http import Target, body_stream, open_client, status_words, transport_words
from sweep.bench.prepare import Prepared, count_tokens, prepare_async
from sweep.bench.tape import CHAT, Tape
from sweep.bench.wire import PATHS, Answer, chat_body, check_count, generate_body, read_answer
from sweep.errors import HostError
from sweep.model import BlockResult, BlockSpec, ClientHealth, Prompt, RequestRecord

_RTT_PROBES = 5


@dataclass(slots=True)
class _Sent:
    """One request on its way: clock readings of ``time.perf_counter``."""

    index: int
    prompt: Prompt
    request: httpx.Request
    tape: Tape
    sent_at: float = 0.0
    ended_at: float = 0.0
    error: str | None = None


def run_block(
    target: Target,
    spec: BlockSpec,
    *,
    prepared: Prepared | None = None,
    path_capacity: float | None = None,
    cancel: threading.Event | None = None,
    on_request: Callable[[int], None] | None = None,
) -> BlockResult:
    """Measure one block. Never raises for what a server does: failures are in the rows and in ``invalid``.

    Closed loop: ``spec.concurrency`` requests in flight, prompts taken in the given order. With ``spec.request_rate``
    the loop is open: arrivals are Poisson with ``spec.seed``, nothing waits for a free slot, and ``concurrency`` is
    only the block's label.

    ``prepared`` spares tokenizing the same prompts again; ``path_capacity`` (chunks/s, as measured by the transport)
    is carried and judged; ``cancel`` ends the block early and makes it invalid; ``on_request`` is told the number of
    requests done so far, in the loop's thread, and must return at once.
    """
    return asyncio.run(_Block(target, spec, prepared, path_capacity, cancel, on_request).run())


class _Block:
    """One run of :func:`run_block`."""

    def __init__(
        self,
        target: Target,
        spec: BlockSpec,
        prepared: Prepared | None,
        path_capacity: float | None,
        cancel: threading.Event | None,
        on_request: Callable[[int], None] | None,
    ) -> None:
        self.target = target
        self.spec = spec
        self.prepared = prepared
        self.path_capacity = path_capacity
        self.sampler = Sampler(cancel)
        self.on_request = on_request
        self.sent: list[_Sent] = []
        self.done = 0
        self.stalled = False

    async def run(self) -> BlockResult:
        async with open_client(self.target) as client:
            try:
                prepared = self.prepared or await prepare_async(
                    client, self.spec.prompts, self.spec.endpoint, self.spec.chat_template_args
                )
            except HostError as error:
                return self._nothing(str(error))
            waiting = [self._build(client, prepared, i, p) for i, p in enumerate(self.spec.prompts)]
            rtt = await _round_trip(client)
            self.sampler.start()
            started_at, origin = time.time(), time.perf_counter()
            try:
                await self._drive(client, waiting, origin)
            finally:
                lag_p50, lag_p99, cpu = self.sampler.stop()
            rows = [await self._record(client, sent, origin) for sent in sorted(self.sent, key=lambda s: s.index)]
        health = ClientHealth(
            lag_p50_s=lag_p50,
            lag_p99_s=lag_p99,
            cpu_share=cpu,
            chunks=sum(row.chunks for row in rows),
            rtt_s=rtt,
            path_capacity_chunks_per_s=self.path_capacity,
            prompt_format=prepared.prompt_format,
        )
        ends = [row.end_s for row in rows if row.ok] or [row.end_s for row in rows]
        elapsed = max(ends) - min(row.sent_s for row in rows) if rows else 0.0
        cancelled = self.sampler.cancelled.is_set()
        invalid = why_invalid(rows, health, elapsed, cancelled=cancelled, asked=len(self.spec.prompts))
        if self.stalled and invalid is None:
            invalid = f"{self._stall_words()}, after {self.done} of {len(self.spec.prompts)} requests"
        return self._result(started_at, elapsed, rows, health, invalid)

    def _result(
        self,
        started_at: float,
        elapsed: float,
        rows: Sequence[RequestRecord],
        health: ClientHealth,
        invalid: str | None,
    ) -> BlockResult:
        return BlockResult(
            stage=self.spec.stage,
            concurrency=self.spec.concurrency,
            round=self.spec.round,
            prompts_hash=self.spec.prompts_hash,
            started_at=started_at,
            elapsed_s=elapsed,
            requests=tuple(rows),
            client=health,
            invalid=invalid,
            stalled=self.stalled,
        )

    def _nothing(self, reason: str) -> BlockResult:
        """The block of a server that could not even be asked: every prompt failed with the same reason."""
        rows = [
            RequestRecord(i, p.id, p.category, 0.0, None, 0.0, error=reason) for i, p in enumerate(self.spec.prompts)
        ]
        health = ClientHealth(0.0, 0.0, 0.0, 0, path_capacity_chunks_per_s=self.path_capacity)
        return self._result(time.time(), 0.0, rows, health, reason)

    def _build(self, client: httpx.AsyncClient, prepared: Prepared, index: int, prompt: Prompt) -> _Sent:
        if self.spec.endpoint == CHAT:
            body = chat_body(prompt, self.spec, index, prepared.model)
        else:
            body = generate_body(prepared.sources[prompt.id], self.spec, index)
        request = client.build_request("POST", PATHS[self.spec.endpoint], content=json.dumps(body).encode())
        return _Sent(index, prompt, request, Tape(self.spec.endpoint))

    async def _drive(self, client: httpx.AsyncClient, waiting: list[_Sent], origin: float) -> None:
        """Send everything; returns when all have ended or the block was cancelled."""
        if self.spec.request_rate is None:
            queue = iter(waiting)
            jobs = [self._worker(client, queue) for _ in range(min(self.spec.concurrency, len(waiting)))]
        else:
            jobs = [self._open_loop(client, waiting, origin, self.spec.request_rate)]
        work = asyncio.gather(*jobs)
        ends: list[asyncio.Future[Any]] = [asyncio.ensure_future(self.sampler.cancelled.wait())]
        if self.spec.stall_s is not None:
            ends.append(asyncio.ensure_future(self._stall(self.spec.stall_s)))
        await asyncio.wait([work, *ends], return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        if not work.done():
            work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        if not self.sampler.cancelled.is_set() and not self.stalled:
            work.result()  # a defect of ours must not look like a finished block

    async def _stall(self, limit_s: float) -> None:
        """Returns when requests are on their way and no stream has moved for ``limit_s``: the server hangs."""
        while not self.stalled:
            await asyncio.sleep(min(1.0, limit_s / 4))
            moved = max((max(s.sent_at, s.tape.last_at, s.ended_at) for s in self.sent), default=0.0)
            waiting = any(not s.ended_at for s in self.sent)
            self.stalled = waiting and time.perf_counter() - moved > limit_s

    def _stall_words(self) -> str:
        return f"stalled: no token on any stream for {self.spec.stall_s:g} s"

    async def _worker(self, client: httpx.AsyncClient, queue: Iterator[_Sent]) -> None:
        for sent in queue:
            await self._request(client, sent)

    async def _open_loop(self, client: httpx.AsyncClient, waiting: list[_Sent], origin: float, rate: float) -> None:
        arrivals = random.Random(self.spec.seed or 0)
        due = origin
        async with asyncio.TaskGroup() as group:
            for sent in waiting:
                due += arrivals.expovariate(rate)
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                group.create_task(self._request(client, sent))

    async def _request(self, client: httpx.AsyncClient, sent: _Sent) -> None:
        self.sent.append(sent)
        clock, feed = time.perf_counter, sent.tape.feed
        sent.sent_at = clock()
        try:
            async with asyncio.timeout(self.spec.timeout_s):
                response = await client.send(sent.request, stream=True)
                try:
                    if response.status_code != 200:
                        sent.error = status_words(response.status_code, await response.aread())
                    else:
                        async for data in body_stream(response):
                            feed(clock(), data)
                finally:
                    await response.aclose()
        except TimeoutError:
            chunks = sent.tape.count()
            sent.error = f"stalled: no end within {self.spec.timeout_s:g} s, {chunks} chunks came"
        except httpx.TransportError as error:
            sent.error = transport_words(error, sent.tape.count())
        except asyncio.CancelledError:
            chunks = sent.tape.count()
            sent.error = f"{self._stall_words()}, {chunks} chunks came before" if self.stalled else "cancelled"
            raise
        finally:
            sent.ended_at = clock()
        self.done += 1
        if self.on_request is not None:
            self.on_request(self.done)

    async def _record(self, client: httpx.AsyncClient, sent: _Sent, origin: float) -> RequestRecord:
        if sent.error is not None:
            sent.tape.count()
            answer = Answer(sent.ended_at, error=sent.error)
        else:
            answer = read_answer(sent.tape, self.spec.endpoint, self.spec.max_tokens)
            if answer.error is None and answer.output_tokens is None:
                tokens = await count_tokens(client, answer.text or "")
                if tokens is None:
                    answer = Answer(answer.end_at, error="the server sent no token count and cannot tokenize")
                else:
                    counted = replace(answer, output_tokens=tokens, token_source="tokenized", text=None)
                    answer = check_count(counted, self.spec.max_tokens)
        first = sent.tape.first_at
        return RequestRecord(
            index=sent.index,
            prompt_id=sent.prompt.id,
            category=sent.prompt.category,
            sent_s=sent.sent_at - origin,
            ttft_s=None if first is None else first - sent.sent_at,
            end_s=(answer.end_at or sent.ended_at) - origin,
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            output_tokens=answer.output_tokens,
            token_source=answer.token_source,
            verify_steps=answer.verify_steps,
            correct_drafts=answer.correct_drafts,
            accept_histogram=answer.accept_histogram,
            finish_reason=answer.finish_reason,
            retractions=answer.retractions,
            chunks=sent.tape.chunks,
            error=answer.error,
            output_ids=answer.output_ids,
        )


async def _round_trip(client: httpx.AsyncClient) -> float | None:
    """Median seconds of a small request on an open connection; any answer will do. None where none came."""
    times = []
    try:
        for _ in range(_RTT_PROBES + 1):
            start = time.perf_counter()
            await client.get("/ready", timeout=5.0)
            times.append(time.perf_counter() - start)
    except httpx.TransportError:
        return None
    return statistics.median(times[1:])  # the first one opened the connection
